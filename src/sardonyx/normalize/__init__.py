"""Rewrites every node to the newest version of its operator, so that later stages see only that version."""

from sardonyx.normalize.run import lowest_opset, normalize, raise_opset, unify_opsets

__all__ = ["lowest_opset", "normalize", "raise_opset", "unify_opsets"]
