"""Rewrites of lists of groups: fusion of loops and epilogues, fewer axes, and storages placed inside others.

``fuse`` (which groups become one), ``nest`` (loops with split and permuted axes), ``simplify`` (fewer axes), ``inside``
(a storage becomes a part of another). It imports groups, views and expression bodies; ``lowering`` imports it, and
providers may.
"""
