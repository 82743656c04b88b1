"""Decision forests (TreeEnsemble*), as tables of nodes.

One kernel sums, averages or compares the leaves that each row reaches. It uses ``kernels.common``; only ``select``
imports it.
"""
