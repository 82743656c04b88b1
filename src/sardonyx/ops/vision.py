"""Operator family: vision."""
