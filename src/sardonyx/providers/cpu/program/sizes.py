"""Sizes of memory, scratch and strides that a step needs as expressions of the input sizes."""

from __future__ import annotations

from collections.abc import Iterable

from sardonyx.errors import NotImplemented
from sardonyx.ir import dims
from sardonyx.ir.dims import Known


def expressible(size: dims.Dim) -> Known:
    """The size, if it is expressible in the input sizes; else ``NotImplemented``: what needs it is not compiled."""
    found = dims.known(size)
    if found is None:
        raise NotImplemented("a size is too long an expression of the input sizes")
    return found


def product(sizes: Iterable[dims.Dim]) -> Known:
    return expressible(dims.product(sizes))
