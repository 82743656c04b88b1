"""Operator family: ml."""
