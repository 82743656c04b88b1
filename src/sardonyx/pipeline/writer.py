"""The writer of nodes for pipeline steps: infers types, and folds sizes that are constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidArgument
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ops.infer import infer_node

Size: TypeAlias = "int | Value"
"""A constant, or an i64 vector of one element."""


Change: TypeAlias = "Callable[[Writer, Value], Value]"
"""Maps boxes (x, y, x, y of two corners) in the changed picture to the picture before the change."""


@dataclass(frozen=True)
class Picture:
    """The image while steps change it: (batch, channel, height, width)."""

    value: Value
    height: Size
    width: Size
    undo: tuple[Change, ...] = ()
    """Functions that map boxes back to the original image, the last change first."""
    image: tuple[Size, Size] | None = None
    """Height and width of the original image."""


class Before(Protocol):
    """A step before the model."""

    def write(self, op: Writer, picture: Picture) -> Picture: ...


class After(Protocol):
    """A step after the model; ``names`` are those of its results."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def write(self, op: Writer, *values: Value) -> tuple[Value, ...]: ...


class Writer(Builder):
    def __init__(self, graph: Graph, before: Node | None, prefix: str, picture: Picture | None = None) -> None:
        super().__init__(graph, before, prefix=prefix)
        self.picture = picture
        """The model's input picture, for steps after the model."""

    def call(self, domain: str, op_type: str, *inputs: Any, outputs: int | list[Value] = 1, **attrs: Any) -> Any:
        made = super().call(domain, op_type, *inputs, outputs=outputs, **attrs)
        infer_node(self.made[-1])
        return made

    def floats(self, *numbers: Any) -> Value:
        return self.const(np.array(numbers, np.float32))

    def cast(self, x: Value, dtype: Any) -> Value:
        """``x`` in another element type."""
        if x.dtype is dtype:
            return x
        made: Value = self.Cast(x, to=dtype.onnx)
        return made

    # -- sizes

    def vector(self, *sizes: Size) -> Value:
        """Sizes as one i64 vector."""
        if len(sizes) == 1 and isinstance(sizes[0], Value):
            return sizes[0]
        if all(isinstance(s, int) for s in sizes):
            return self.const([s for s in sizes if isinstance(s, int)])
        made: Value = self.Concat(*(s if isinstance(s, Value) else self.const([s]) for s in sizes), axis=0)
        return made

    def size(self, x: Value, axis: int) -> Size:
        known = x.shape[axis] if x.shape is not None else None
        if isinstance(known, int):
            return known
        made: Value = self.Shape(x, start=axis, end=axis + 1)
        return made

    def _of(self, op_type: str, fold: Any, a: Size, b: Size) -> Size:
        if isinstance(a, int) and isinstance(b, int):
            return int(fold(a, b))
        made: Value = self.call("", op_type, self.vector(a), self.vector(b))
        return made

    def add(self, a: Size, b: Size) -> Size:
        return self._of("Add", lambda x, y: x + y, a, b)

    def sub(self, a: Size, b: Size) -> Size:
        return self._of("Sub", lambda x, y: x - y, a, b)

    def mul(self, a: Size, b: Size) -> Size:
        return self._of("Mul", lambda x, y: x * y, a, b)

    def floordiv(self, a: Size, b: Size) -> Size:
        """The quotient of sizes, rounded down; a divisor of 0 counts as 1."""
        return self._of("Div", lambda x, y: x // y, a, self.maximum(b, 1))

    def minimum(self, a: Size, b: Size) -> Size:
        return self._of("Min", min, a, b)

    def maximum(self, a: Size, b: Size) -> Size:
        return self._of("Max", max, a, b)

    def corners(self, x: Size, y: Size) -> Value:
        """Two sizes as f32: x, y, x, y."""
        return self.cast(self.vector(x, y, x, y), dtypes.f32)


def pair(size: int | tuple[int, int], what: str) -> tuple[int, int]:
    """Height and width, at least 1."""
    found = (size, size) if isinstance(size, int) else tuple(size)
    if len(found) != 2 or not all(isinstance(s, int) and s > 0 for s in found):
        raise InvalidArgument(f"{what}: a size is a positive number, or (height, width)", got=repr(size))
    return found[0], found[1]
