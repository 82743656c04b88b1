"""Arithmetic on vectors: elementary functions, integer division, reductions, transposes and interleaving.

``scalar_program`` emits the scalar programs of groups with them. Functions here emit into the kernel that calls them;
none is a kernel. They import the language only, and every kernel family may import them.
"""
