"""Runs a graph with numpy: the reference provider, constant folding and checking are thin users of it."""
