"""Operator family: recurrent."""
