"""Outputs of data-dependent size, cut from buffers allocated for the largest possible size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sardonyx.plan.sizes import Sizes, deserialized

if TYPE_CHECKING:
    from sardonyx.lower.groups import View
    from sardonyx.lower.lowering import Counted

Array = np.ndarray[Any, Any]

SPARE_NBYTES = 1 << 14
"""A result whose buffer is larger than it by more than this, and by more than itself, is copied."""


class Trim:
    """Cuts the outputs of a part. The counts that steps write are additional outputs at the end."""

    def __init__(self, counted: Mapping[int, Counted], outputs: int, names: Sequence[str]) -> None:
        """``counted`` by output number; ``names`` are the dimensions that inputs bind."""
        counts = {c.name: c.count for c in counted.values()}
        self.counts: tuple[View, ...] = tuple(counts.values())
        self._outputs = outputs
        sizes = Sizes([*names, *counts])
        self._shapes = {i: tuple(sizes.number(d) for d in c.shape) for i, c in counted.items()}
        assert not sizes.unbound, sizes.unbound
        self._evaluate = sizes.compiled()

    def frozen(self) -> tuple[Any, ...]:
        """Plain values for serialization."""
        return self._outputs, self._shapes, cast(FunctionType, self._evaluate).__code__

    @classmethod
    def deserialized(cls, frozen: tuple[Any, ...]) -> Trim:
        made = cls.__new__(cls)
        made._outputs, made._shapes, code = frozen
        made._evaluate = deserialized(code)
        return made

    def __call__(self, sizes: tuple[int, ...], results: list[Array]) -> list[Array]:
        """The outputs, cut to their sizes."""
        end = self._outputs
        numbers = self._evaluate((*sizes, *[count.item() for count in results[end:]]))
        cut = results[:end]
        for i, shape in self._shapes.items():
            whole = cut[i]
            if len(shape) == 1:
                part = whole[: numbers[shape[0]]]
            else:
                wanted = tuple([numbers[d] for d in shape])
                part = whole[: math.prod(wanted)].reshape(wanted)
            unused = whole.nbytes - part.nbytes
            cut[i] = part if unused <= SPARE_NBYTES or unused <= part.nbytes else part.copy()
        return cut
