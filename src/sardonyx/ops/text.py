"""Operator family: text."""
