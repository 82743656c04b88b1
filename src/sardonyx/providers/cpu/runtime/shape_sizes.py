"""What shapes tell before a run. One function of a table makes all of it, since a run leaves no cache warm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Measured(NamedTuple):
    """What shapes tell before a run; a table's function gives it as a plain tuple."""

    sizes: tuple[int, ...]
    """Of names."""
    extents: tuple[int, ...]
    """Values that tell buckets apart."""
    work: int
    """A number of as many bits as the most that a step does, in flops or in bytes."""
    only: tuple[bool, ...]
    """For the steps that are carried out for some sizes alone, whether for these."""
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any], int], ...]
    """The shape, type and bytes of each."""
    most_nbytes: int
    """Of an output."""


def named(outputs: Sequence[np.dtype[Any]]) -> dict[str, np.dtype[Any]]:
    """The types of outputs, as ``Table.measure`` knows them."""
    return {f"t{i}": dtype for i, dtype in enumerate(outputs)}
