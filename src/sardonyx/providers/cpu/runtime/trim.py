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
        numbers = self._evaluate((*sizes, *(int(count) for count in results[self._outputs :])))
        cut = results[: self._outputs]
        for i, shape in self._shapes.items():
            wanted = tuple(numbers[d] for d in shape)
            elements = math.prod(wanted)
            part = cut[i][:elements].reshape(wanted)
            cut[i] = part if 2 * elements >= cut[i].size else part.copy()
        return cut
