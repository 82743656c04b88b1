"""Operator family: quantize."""
