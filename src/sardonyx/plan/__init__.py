"""Sizes, lifetimes and places of memory, for concrete shapes: pure functions."""
