"""What is computed of input shapes before a run, by one generated Python function per step table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class ShapeSizes(NamedTuple):
    """The function's result, which is a plain tuple."""

    sizes: tuple[int, ...]
    """The sizes of the named dimensions."""
    extents: tuple[int, ...]
    """The values whose buckets identify a plan."""
    work: int
    """A number with as many bits as the largest flops or bytes of a step."""
    met: tuple[bool, ...]
    """For each of the table's conditions, whether these sizes meet it."""
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any], int], ...]
    """Shape, type and bytes of each."""
    most_nbytes: int
    """Bytes of the largest output."""


def named(outputs: Sequence[np.dtype[Any]]) -> dict[str, np.dtype[Any]]:
    """The names by which the generated function refers to the outputs' types."""
    return {f"t{i}": dtype for i, dtype in enumerate(outputs)}
