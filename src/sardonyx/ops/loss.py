"""Operator family: loss."""
