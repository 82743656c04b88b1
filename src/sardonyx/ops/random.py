"""Operator family: random."""
