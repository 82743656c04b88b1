"""Sequences (lists of tensors) and optionals (a value or None)."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ops.axes import Array, ints, normal_axis, scalar
from sardonyx.ops.movement import concat, split_views
from sardonyx.ops.registry import op


def _position(position: Array, size: int, name: str) -> int:
    """An index into ``size`` positions as a non-negative number."""
    at = int(scalar(position, f"{name}: position"))
    if not -size <= at < size:
        raise InvalidArgument(f"{name}: position out of range", expected=f"[{-size}, {size - 1}]", got=at)
    return at % size


@op("SequenceConstruct")
def sequence_construct(*items: Array) -> list[Array]:
    return list(items)


@op("SequenceEmpty")
def sequence_empty(*, dtype: int | None = None) -> list[Array]:
    return []


@op("SequenceAt")
def sequence_at(sequence: list[Array], position: Array) -> Array:
    return sequence[_position(position, len(sequence), "SequenceAt")]


@op("SequenceLength")
def sequence_length(sequence: list[Array]) -> Array:
    return np.array(len(sequence), np.int64)


@op("SequenceInsert")
def sequence_insert(sequence: list[Array], item: Array, position: Array | None = None) -> list[Array]:
    """Insert ``item`` before a position; -1 is the last element, the length is the end."""
    size = len(sequence)
    at = size if position is None else int(scalar(position, "SequenceInsert: position"))
    if not -size <= at <= size:
        raise InvalidArgument("SequenceInsert: position out of range", expected=f"[{-size}, {size}]", got=at)
    at = at + size if at < 0 else at
    return [*sequence[:at], item, *sequence[at:]]


@op("SequenceErase")
def sequence_erase(sequence: list[Array], position: Array | None = None) -> list[Array]:
    at = _position(np.array(-1) if position is None else position, len(sequence), "SequenceErase")
    return sequence[:at] + sequence[at + 1 :]


@op("ConcatFromSequence")
def concat_from_sequence(sequence: list[Array], *, axis: int, new_axis: int = 0) -> Array:
    if not sequence:
        raise InvalidArgument("ConcatFromSequence: the sequence is empty")
    if new_axis:
        axis = normal_axis(axis, sequence[0].ndim + 1, "ConcatFromSequence")
        sequence = [np.expand_dims(x, min(axis, x.ndim)) for x in sequence]
    joined: Array = concat(*sequence, axis=axis)
    return joined


@op("SplitToSequence")
def split_to_sequence(x: Array, split: Array | None = None, *, axis: int = 0, keepdims: int = 1) -> list[Array]:
    """Slices of equal length (the last may be shorter) or of given lengths; single slices without ``split``."""
    axis = normal_axis(axis, x.ndim, "SplitToSequence")
    size = x.shape[axis]
    if split is None:
        parts = split_views(x, axis, [1] * size)
        return parts if keepdims else [np.squeeze(p, axis) for p in parts]
    if split.ndim == 0:
        each = int(split)
        if each < 1:
            raise InvalidArgument("SplitToSequence: split must be at least 1", got=each)
        return split_views(x, axis, [min(each, size - start) for start in range(0, size, each)])
    lengths = ints(split)
    if sum(lengths) != size or any(n < 0 for n in lengths):
        raise InvalidArgument(f"SplitToSequence: lengths must sum to {size}, the dimension of axis {axis}", got=lengths)
    return split_views(x, axis, lengths)


@op("Optional")
def optional(value: Any = None, *, type: Any = None) -> Any:
    return value


@op("OptionalHasElement")
def optional_has_element(value: Any = None) -> Array:
    return np.array(value is not None)


@op("OptionalGetElement")
def optional_get_element(value: Any) -> Any:
    if value is None:
        raise InvalidArgument("OptionalGetElement: the optional is empty")
    return value
