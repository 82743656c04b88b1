"""Operator family: training."""
