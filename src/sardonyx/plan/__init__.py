"""Sizes, lifetimes and memory placement for concrete shapes: pure functions."""
