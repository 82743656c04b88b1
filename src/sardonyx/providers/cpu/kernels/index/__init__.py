"""Operators that read or write at indices: gather, scatter, nonzero, top-k, unique, non-maximum suppression, cumulative
sums.

Indices from data are checked inside the kernels; a bad one fails the run. ``heap`` is the binary heap that the sorting
kernels share. These kernels use ``kernels.common`` and ``kernels.loops``; only ``select`` imports them.
"""
