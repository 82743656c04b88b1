"""Fused pointwise and reduction loops, copies, transposes, fills and random streams.

``loop`` chooses axes, vectorization and chunks of a Loop group; ``fused_loop`` is its kernel, ``row`` and its relatives
emit one row, and ``passes`` schedules an expression over a row. ``copy`` and ``interleave`` are the kernels that move
elements. They use ``kernels.common`` and ``kernels.math``. Other families import ``loop`` for groups that become
plain loops.
"""
