"""Fused pointwise and reduction loops, copies and transpositions, fills."""
