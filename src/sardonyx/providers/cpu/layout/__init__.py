"""Passes over groups that choose where values lie: NHWC images, packed operands, in-place results, wider types.

Imports kernels for what they support, and what is below them; ``pipeline`` orders the passes.
"""
