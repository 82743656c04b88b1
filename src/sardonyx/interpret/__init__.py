"""Runs a graph with numpy. The reference provider, constant folding and the checks of rewrites use it."""
