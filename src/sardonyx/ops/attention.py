"""Operator family: attention."""
