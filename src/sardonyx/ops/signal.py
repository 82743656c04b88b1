"""Operator family: signal."""
