"""Brings every node to one form, so that what comes after sees one version of each operator."""

from sardonyx.normalize.run import lowest_opset, normalize, settle

__all__ = ["lowest_opset", "normalize", "settle"]
