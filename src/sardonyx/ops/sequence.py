"""Operator family: sequence."""
