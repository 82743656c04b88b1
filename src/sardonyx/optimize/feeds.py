"""Generates feeds from the types of a graph's inputs, for checks without user-given feeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.errors import InvalidArgument, NotImplemented
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.shape import Dim
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import MapType, OptionalType, SequenceType, TensorType, ValueType

SIZES = (("batch", 2), ("past", 5), ("total", 12), ("sequence", 7), ("seq", 7), ("height", 32), ("width", 32))
"""Sizes of free dimensions by a word in their name; ``total`` is past plus present."""

OTHER, IMAGE = 6, 32
"""Sizes of other free dimensions: of any tensor, and of the last two axes of four."""

UNIFORM = (4, 1, 16, 64, 576)
"""Sizes for all free dimensions at once, tried in turn if a model refuses the first feeds."""

FOLLOWED = frozenset(
    {"Cast", "Clip", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile"}
    | {"Transpose", "Unsqueeze", "Add", "Mod", "Where"}
)
"""Operators after which integers are still indices."""


WORDS = ("a", "b", "test")
"""Strings for inputs that are not looked up."""

MOST_KEYS = 8
"""Entries of a map, of those that the model knows."""

VOCABULARIES = ("string_vocabulary", "int64_vocabulary", "keys_strings", "keys_int64s", "cats_strings", "cats_int64s")
"""Attributes of ai.onnx.ml's operators that list what they look up."""

PASSED = frozenset({"ArrayFeatureExtractor", "Concat", "Flatten", "Gather", "Identity", "Reshape", "Split", "Squeeze"})
"""Operators after which strings and keys are still looked up."""


def candidates(graph: Graph, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Feeds to try, most likely first."""
    yield generate(graph, seed=seed)
    if any(not isinstance(d, int) for v in _fed(graph) for d in _dims(v.type)):
        for size in UNIFORM:
            yield generate(graph, seed=seed, size=lambda dim, i, rank, size=size: size)  # type: ignore[misc]


def generate(graph: Graph, *, seed: int = 0, size: Callable[[Dim, int, int], int] | None = None) -> dict[str, Any]:
    """One value for every input without a default; ``size`` gives free dimensions by name, position and rank."""
    rng = np.random.default_rng(seed)
    sizes: dict[str, int] = {}

    def fixed(dim: Dim, i: int, rank: int) -> int:
        if isinstance(dim, int):
            return dim
        chosen = (size or likely_size)(dim, i, rank)
        return chosen if dim is None else sizes.setdefault(dim, chosen)

    return {v.name: make_value(v.type, v, rng, fixed) for v in _fed(graph)}


def likely_size(dim: Dim, i: int, rank: int) -> int:
    """A small size for a free dimension; a name such as ``past + sequence`` is a sum."""
    if isinstance(dim, str):
        if "+" in dim:
            return sum(int(t) if t.strip().isdigit() else likely_size(t.strip(), i, rank) for t in dim.split("+"))
        for word, size in SIZES:
            if word in dim.lower():
                return size
    if i == 0:
        return 2
    return IMAGE if rank == 4 and i >= 2 else OTHER


def _fed(graph: Graph) -> list[Value]:
    return [v for v in graph.inputs if v.const is None]


def _dims(t: ValueType | None) -> tuple[Dim, ...]:
    return t.shape or () if isinstance(t, TensorType) else ()


def make_value(t: ValueType | None, value: Value, rng: np.random.Generator, fixed: Callable[..., int]) -> Any:
    """A value of a type for an input; ``fixed`` gives the size of a dimension, by its position and the rank."""
    if isinstance(t, OptionalType):
        return make_value(t.elem, value, rng, fixed)
    if isinstance(t, SequenceType):
        return [make_value(t.elem, value, rng, fixed) for _ in range(2)]
    if isinstance(t, MapType):
        return {key: _plain(make_value(t.value, value, rng, fixed)) for key in _keys(t, value)}
    if not isinstance(t, TensorType):
        raise NotImplemented("feeds of this type cannot be generated", where=value.name, got=t, hint="pass feeds=")
    dims = t.shape if t.shape is not None else (OTHER,)
    shape = tuple(fixed(dim, i, len(dims)) for i, dim in enumerate(dims))
    return _tensor(t.dtype, shape, value, rng)


def _tensor(dtype: DType, shape: tuple[int, ...], value: Value, rng: np.random.Generator) -> Any:
    if dtype is dtypes.string:
        words = rng.choice([*(_known(value, str) or WORDS), ""], shape)
        return np.asarray(words, dtype=object).reshape(shape)
    if dtype is dtypes.bool_ or "mask" in value.name.lower():
        return _mask(shape, rng).astype(dtype.numpy)
    if dtype.is_integer:
        return _integers(dtype, shape, value, rng).astype(dtype.numpy)
    if dtype.kind == "complex":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype.numpy)
    return np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)


def _keys(t: MapType, value: Value) -> Sequence[str | int]:
    kind: type[str | int] = str if t.key is dtypes.string else int
    known = _known(value, kind)[:MOST_KEYS]
    return known or (WORDS if kind is str else range(len(WORDS)))


def _known(value: Value, kind: type[str | int]) -> list[str | int]:
    """What operators that read a value look up in it."""
    found: dict[str | int, None] = {}
    todo, seen = [value], {value}
    while todo:
        for node in todo.pop().consumers:
            for name in VOCABULARIES:
                listed: Any = node.attrs.get(name) or ()
                found |= dict.fromkeys(item for item in listed if isinstance(item, kind))
            if node.op_type in PASSED or node.op_type.startswith("String"):
                fresh = [out for out in node.outputs if out not in seen]
                seen.update(fresh)
                todo += fresh
    return list(found)


def _plain(made: Any) -> Any:
    """A scalar as Python's, as which maps hold it."""
    return made.item() if isinstance(made, np.ndarray) and not made.shape else made


def _mask(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Ones, with zeros at the end of every row but the first; no row is all zeros."""
    if not shape:
        return np.ones(shape)
    rows, length = int(np.prod(shape[:-1])), shape[-1]
    kept = rng.integers((length + 1) // 2, length + 1, (rows, 1))
    kept[:1] = length
    return (np.arange(length) < kept).reshape(shape)


def _integers(dtype: DType, shape: tuple[int, ...], value: Value, rng: np.random.Generator) -> Any:
    if dtype.bits == 8:
        return rng.integers(-128 if dtype.kind == "int" else 0, 128 if dtype.kind == "int" else 256, shape)
    compared = _compared(value)
    if compared is not None:
        return np.full(shape, compared)
    limit = _limit(value)
    if limit is not None:
        return rng.integers(0, max(limit, 1), shape)
    return rng.integers(0, 2, shape) if shape else np.array(1)


def _compared(value: Value) -> int | None:
    """The constant that a value is compared with, so that the branch of that case runs."""
    for node in value.consumers:
        other = next((v for v in node.inputs if v is not value), None)
        if node.onnx_op != "Equal" or other is None:
            continue
        maker = other.producer
        if maker is not None and maker.onnx_op != "Constant":
            continue
        stated: dict[str, object] = {"value": other.const} if maker is None else maker.attrs
        tensor, number = stated.get("value"), stated.get("value_int")
        if isinstance(tensor, Tensor) and tensor.size == 1:
            return int(tensor.numpy().reshape(()))
        if isinstance(number, int):
            return number
    return None


def _limit(value: Value) -> int | None:
    """The length of the shortest known axis that a value, or a value derived from it, indexes."""
    limits: list[int] = []
    todo, seen = [value], {value}
    while todo:
        v = todo.pop()
        for node, i in v.uses:
            limit = _axis_length(node, i)
            if limit is not None:
                limits.append(limit)
            elif node.onnx_op in FOLLOWED and i == 0:
                fresh = [out for out in node.outputs if out not in seen]
                seen.update(fresh)
                todo += fresh
    return min(limits, default=None)


def _axis_length(node: Node, i: int) -> int | None:
    """The number of valid indices at input ``i`` of a node."""
    if node.onnx_op not in ("Gather", "GatherElements") or i != 1:
        return None
    table, axis = node.inputs[0], node.attrs.get("axis", 0)
    shape = table.shape if table is not None else None
    dim = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return dim if isinstance(dim, int) else None


def complete(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The user's feeds as arrays; wrong or missing names are reported."""
    known = {v.name: v for v in graph.inputs}
    for name in feeds:
        if name not in known:
            raise InvalidArgument("no such input", expected=sorted(known), got=name)
    missing = [v.name for v in _fed(graph) if v.name not in feeds]
    if missing:
        raise InvalidArgument("the feeds lack inputs", got=missing)
    return {name: x if isinstance(x, list | dict) or x is None else np.asarray(x) for name, x in feeds.items()}
