"""Rewrites of lists of groups: fusion of loops and epilogues, simpler axes, and storages placed inside others.

``fuse`` (which groups become one), ``nest`` (a loop under other axes), ``simplify`` (fewer axes), ``inside`` (a storage
as part of another). It imports groups, views and expression bodies; ``lowering`` imports it, and providers may.
"""
