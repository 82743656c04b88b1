"""Gather and scatter, nonzero, top-k, unique, non-maximum suppression, cumulative sums."""
