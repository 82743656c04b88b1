"""Inputs for a model that is measured, from the types that it declares.

A symbolic dimension has the size that the caller names; otherwise a usual one for its name, and a sentence says which.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.records import Record

if TYPE_CHECKING:
    from sardonyx.ir.graph import Graph, Value
    from sardonyx.session.metadata import NodeArg

SIZES = (
    ("batch", 1), ("past", 16), ("total", 144), ("sequence", 128), ("seq", 128), ("length", 128),
    ("height", 224), ("width", 224), ("channel", 3),
)  # fmt: skip
"""Sizes of symbolic dimensions by a word in their name; ``total`` is past plus sequence."""
OTHER, IMAGE = 16, 224
"""Sizes of other symbolic dimensions: of any tensor, and of the last two axes of four."""


class Inputs(Record):
    """Feeds, and what was assumed to make them."""

    feeds: Mapping[str, Any]
    statements: tuple[str, ...]
    """A sentence for each size that the caller did not name."""
    batch: int | None
    """The size of the batch dimension; None where the model has none."""


def generate_inputs(
    model: str | os.PathLike[str] | bytes,
    *,
    dimensions: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    seed: int = 0,
) -> Inputs:
    """One value for each input of a model, random from a seed.

    ``dimensions`` are sizes of symbolic dimensions by name, ``shapes`` whole shapes by the inputs' names. ``batch`` is
    the size of the symbolic dimension that all inputs begin with, or of their first axes where the model names none.
    """
    return _Generator(_graph(model), dict(dimensions or {}), dict(shapes or {}), batch).inputs(seed)


def declared_inputs(model: str | os.PathLike[str] | bytes) -> list[NodeArg]:
    """What a model declares about the inputs that a run needs."""
    from sardonyx.session.metadata import node_arg

    return [node_arg(value) for value in _graph(model).inputs if value.const is None]


def _graph(model: str | os.PathLike[str] | bytes) -> Graph:
    from sardonyx.model.load import load

    return load(model if isinstance(model, bytes) else os.fspath(model)).graph


class _Generator:
    def __init__(
        self, graph: Graph, sizes: dict[str, int], shapes: dict[str, tuple[int, ...]], batch: int | None
    ) -> None:
        self._shapes, self._named = shapes, sizes
        self._values = [value for value in graph.inputs if value.const is None]
        self._batch_name = _batch_name(self._values)
        self._open_batch = batch or 1 if _begins_open(self._values) and not shapes else None
        """The size of first axes that the model leaves open."""
        self._check()
        for name, shape in shapes.items():
            for dim, size in zip(self._dims(name), shape, strict=True):
                if isinstance(dim, str) and self._named.setdefault(dim, size) != size:
                    raise InvalidArgument(f"dimension {dim} has two sizes", got=sorted({size, self._named[dim]}))
        if batch is not None:
            if self._open_batch is None and self._batch_name is None:
                raise InvalidArgument("the model's batch size is fixed: its inputs begin with no symbolic dimension")
            if self._batch_name is not None and self._named.setdefault(self._batch_name, batch) != batch:
                raise InvalidArgument(
                    f"dimension {self._batch_name} has two sizes", got=[batch, self._named[self._batch_name]]
                )
        self._statements: dict[str, str] = {}

    def _check(self) -> None:
        symbols = {dim for value in self._values for dim in self._dims(value.name) if isinstance(dim, str)}
        if unknown := sorted(self._named.keys() - symbols):
            raise InvalidArgument("the model has no such symbolic dimension", expected=sorted(symbols), got=unknown)
        if unknown := sorted(self._shapes.keys() - {value.name for value in self._values}):
            names = [value.name for value in self._values]
            raise InvalidArgument("the model has no such input", expected=names, got=unknown)
        for name, shape in self._shapes.items():
            dims = self._dims(name)
            if len(dims) != len(shape) or any(isinstance(d, int) and d != s for d, s in zip(dims, shape, strict=True)):
                raise InvalidArgument("the shape does not fit the input", where=name, expected=dims, got=shape)

    def _dims(self, name: str) -> tuple[int | str | None, ...]:
        from sardonyx.ir.types import TensorType

        kind = next(value.type for value in self._values if value.name == name)
        return tuple(kind.shape or ()) if isinstance(kind, TensorType) else ()

    def inputs(self, seed: int) -> Inputs:
        from sardonyx.optimize.feeds import make_value

        rng = np.random.default_rng(seed)
        feeds = {v.name: make_value(v.type, v, rng, partial(self._size, v)) for v in self._values}
        batch = self._open_batch if self._batch_name is None else self._named[self._batch_name]
        return Inputs(feeds, tuple(self._statements.values()), batch)

    def _size(self, value: Value, dim: int | str | None, axis: int, rank: int) -> int:
        if isinstance(dim, int):
            return dim
        if value.name in self._shapes and rank == len(self._shapes[value.name]):
            return self._shapes[value.name][axis]
        if isinstance(dim, str) and dim in self._named:
            return self._named[dim]
        if self._open_batch is not None and axis == 0 and rank:
            size = self._open_batch
        else:
            size = _usual_size(dim, axis, rank, dim is not None and dim == self._batch_name)
        if isinstance(dim, str):
            self._named[dim] = size
            self._statements[dim] = f"The symbolic dimension {dim} was given the size {size}."
        else:
            self._statements[f"{value.name}/{axis}"] = (
                f"Axis {axis} of {value.name}, whose size the model leaves open, was given the size {size}."
            )
        return size


def _batch_name(values: list[Value]) -> str | None:
    """The symbol with which the shapes of all inputs begin, scalars left out."""
    from sardonyx.ir.types import TensorType

    shapes = [value.type.shape for value in values if isinstance(value.type, TensorType) and value.type.shape]
    firsts = {shape[0] for shape in shapes}
    if len(firsts) == 1 and isinstance(first := firsts.pop(), str):
        return first
    return next((dim for dim in firsts if isinstance(dim, str) and "batch" in dim.lower()), None)


def _begins_open(values: list[Value]) -> bool:
    """Whether all inputs begin with an axis that the model neither names nor sizes."""
    from sardonyx.ir.types import TensorType

    shapes = [value.type.shape if isinstance(value.type, TensorType) else None for value in values]
    return bool(shapes) and all(shape and shape[0] is None for shape in shapes)


def _usual_size(dim: int | str | None, axis: int, rank: int, is_batch: bool) -> int:
    if is_batch:
        return 1
    if isinstance(dim, str):
        if "+" in dim:
            parts = [part.strip() for part in dim.split("+")]
            return sum(int(p) if p.isdigit() else _usual_size(p, axis, rank, False) for p in parts)
        for word, size in SIZES:
            if word in dim.lower():
                return size
    if axis == 0:
        return 1
    return IMAGE if rank == 4 and axis >= 2 else OTHER
