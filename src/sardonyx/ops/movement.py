"""Operators that move elements without computing on them: reshape, transpose, slice, pad, concatenate, split.

Results are views of their inputs if numpy allows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ops.axes import Array, ints, normal_axes, normal_axis, scalar
from sardonyx.ops.limits import check_elements
from sardonyx.ops.registry import op


@op("Identity")
def identity(x: Array) -> Array:
    return x


@op("Reshape")
def reshape(x: Array, shape: Array, *, allowzero: int = 0) -> Array:
    wanted = ints(shape)
    target = list(wanted)
    if not allowzero:
        for i, d in enumerate(target):
            if d == 0:
                if i >= x.ndim:
                    raise _reshape_error(x, wanted, f"0 at position {i} copies a dimension that the input lacks")
                target[i] = x.shape[i]
    elif 0 in target and -1 in target:
        raise _reshape_error(x, wanted, "0 and -1 together do not decide the shape")
    if any(d < -1 for d in target) or target.count(-1) > 1:
        raise _reshape_error(x, wanted, "dimensions are at least 0, and one may be -1")
    if -1 in target:
        rest = math.prod(d for d in target if d != -1)
        if rest == 0 or x.size % rest:
            raise _reshape_error(x, wanted, f"{x.size} elements do not divide by {rest}")
        target[target.index(-1)] = x.size // rest
    if math.prod(target) != x.size:
        raise _reshape_error(x, wanted, f"the input has {x.size} elements, the shape {math.prod(target)}")
    return x.reshape(target)


def _reshape_error(x: Array, wanted: list[int], why: str) -> InvalidArgument:
    return InvalidArgument(f"Reshape of {list(x.shape)} to {wanted}: {why}")


@op("Flatten")
def flatten(x: Array, *, axis: int = 1) -> Array:
    if not -x.ndim <= axis <= x.ndim:
        raise InvalidArgument("Flatten: axis out of range", expected=f"[{-x.ndim}, {x.ndim}]", got=axis)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@op("Transpose")
def transpose(x: Array, *, perm: Sequence[int] | None = None) -> Array:
    if perm is None:
        perm = range(x.ndim)[::-1]
    elif sorted(perm) != list(range(x.ndim)):
        raise InvalidArgument("Transpose: perm is not a permutation of the axes", got=f"{list(perm)}, rank {x.ndim}")
    y: Array = x.transpose(perm)
    return y


@op("Squeeze")
def squeeze(x: Array, axes: Array | None = None) -> Array:
    if axes is None:
        return x.reshape([d for d in x.shape if d != 1])
    gone = normal_axes(ints(axes), x.ndim, "Squeeze")
    for a in gone:
        if x.shape[a] != 1:
            raise InvalidArgument("Squeeze: a dimension is not 1", got=f"{x.shape[a]} at axis {a} of {list(x.shape)}")
    return x.reshape([d for i, d in enumerate(x.shape) if i not in gone])


@op("Unsqueeze")
def unsqueeze(x: Array, axes: Array) -> Array:
    new = ints(axes)
    shape = list(x.shape)
    for a in sorted(normal_axes(new, x.ndim + len(new), "Unsqueeze")):
        shape.insert(a, 1)
    return x.reshape(shape)


@op("Expand")
def expand(x: Array, shape: Array) -> Array:
    wanted = ints(shape)
    try:
        target = np.broadcast_shapes(x.shape, tuple(wanted))
    except ValueError:
        raise InvalidArgument("Expand: the shapes do not broadcast", got=f"{list(x.shape)} to {wanted}") from None
    check_elements(math.prod(target), x.dtype, "the result of Expand")
    return np.broadcast_to(x, target)


@op("Tile")
def tile(x: Array, repeats: Array) -> Array:
    times = ints(repeats)
    if len(times) != x.ndim or any(t < 0 for t in times):
        raise InvalidArgument("Tile: repeats must have one count of at least 0 per axis", got=f"{times}, rank {x.ndim}")
    check_elements(x.size * math.prod(times), x.dtype, "the result of Tile")
    return np.tile(x, times)


@op("Concat")
def concat(*xs: Array, axis: int) -> Array:
    axis = normal_axis(axis, xs[0].ndim, "Concat")
    rest = [d for i, d in enumerate(xs[0].shape) if i != axis]
    for x in xs[1:]:
        if [d for i, d in enumerate(x.shape) if i != axis] != rest or x.ndim != xs[0].ndim:
            raise InvalidArgument(
                f"Concat: shapes differ outside axis {axis}", got=", ".join(str(list(x.shape)) for x in xs)
            )
    check_elements(sum(x.size for x in xs), xs[0].dtype, "the result of Concat")
    return np.concatenate(xs, axis=axis)


@op("Split")
def split(
    x: Array, split: Array | None = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int = 1
) -> tuple[Array, ...]:
    axis = normal_axis(axis, x.ndim, "Split")
    size = x.shape[axis]
    if split is not None:
        lengths = ints(split)
    else:
        parts = num_outputs or outputs
        each = -(-size // parts)
        lengths = [max(min(each, size - i * each), 0) for i in range(parts)]
    if sum(lengths) != size or any(n < 0 for n in lengths):
        raise InvalidArgument(f"Split: lengths must sum to the dimension of axis {axis}, {size}", got=lengths)
    return tuple(split_views(x, axis, lengths))


def split_views(x: Array, axis: int, lengths: Sequence[int]) -> list[Array]:
    """Views of consecutive slices of an axis."""
    lead = (slice(None),) * axis
    parts, start = [], 0
    for n in lengths:
        where = (*lead, slice(start, start + n))
        parts.append(x[where])
        start += n
    return parts


@op("Slice")
def slice_(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    first, last = ints(starts), ints(ends)
    along = range(len(first)) if axes is None else ints(axes)
    stride = [1] * len(first) if steps is None else ints(steps)
    if not len(first) == len(last) == len(along) == len(stride):
        raise InvalidArgument("Slice: starts, ends, axes and steps differ in length")
    if 0 in stride:
        raise InvalidArgument("Slice: a step is 0", got=stride)
    index = [slice(None)] * x.ndim
    for a, s, e, step in zip(normal_axes(along, x.ndim, "Slice"), first, last, stride, strict=True):
        index[a] = slice(s, e, step)
    return x[tuple(index)]


@op("Pad")
def pad(
    x: Array, pads: Array, constant: Array | None = None, axes: Array | None = None, *, mode: str = "constant"
) -> Array:
    """Negative pads crop first; then each axis is padded in order. If a pad crops more than the axis has, the rest is
    cropped from the other pad.
    """
    along = tuple(range(x.ndim)) if axes is None else normal_axes(ints(axes), x.ndim, "Pad")
    amounts = ints(pads)
    if len(amounts) != 2 * len(along):
        raise InvalidArgument("Pad: pads must have two numbers per axis", expected=2 * len(along), got=len(amounts))
    before, after = [0] * x.ndim, [0] * x.ndim
    for a, b, e in zip(along, amounts[: len(along)], amounts[len(along) :], strict=True):
        before[a], after[a] = b, e
    shape = [d + b + e for d, b, e in zip(x.shape, before, after, strict=True)]
    if min(shape, default=0) < 0:
        raise InvalidArgument(
            "Pad: negative pads exceed the size of an axis", got=f"{amounts} for shape {list(x.shape)}"
        )
    x = x[tuple(slice(max(-b, 0), max(d - max(-e, 0), 0)) for b, e, d in zip(before, after, x.shape, strict=True))]
    before, after = [max(b, 0) for b in before], [max(e, 0) for e in after]
    check_elements(math.prod(shape), x.dtype, "the result of Pad")
    if mode == "constant":
        out = np.full(shape, _zero(x) if constant is None else constant.reshape(-1)[0], x.dtype)
        out[tuple(slice(b, b + d) for b, d in zip(before, x.shape, strict=True))] = x
        return out
    if mode not in _PAD_INDEX:
        raise InvalidArgument("Pad: no such mode", expected="constant, edge, reflect or wrap", got=mode)
    for a, (b, e) in enumerate(zip(before, after, strict=True)):
        if b or e:
            if x.shape[a] == 0:
                raise InvalidArgument(f"Pad: mode {mode} has nothing to repeat", got=f"shape {list(x.shape)}, axis {a}")
            x = np.take(x, _PAD_INDEX[mode](np.arange(-b, x.shape[a] + e), x.shape[a]), axis=a)
    return x


def _reflect(i: Array, n: int) -> Array:
    period = max(2 * (n - 1), 1)
    i = np.mod(i, period)
    return np.minimum(i, period - i) if n > 1 else np.zeros_like(i)


_PAD_INDEX = {
    "edge": lambda i, n: np.clip(i, 0, n - 1),
    "wrap": lambda i, n: np.mod(i, n),
    "reflect": _reflect,
}


def _zero(x: Array) -> object:
    return "" if x.dtype == object else x.dtype.type(0)


@op("CenterCropPad")
def center_crop_pad(x: Array, shape: Array, *, axes: Sequence[int] | None = None) -> Array:
    along = tuple(range(x.ndim)) if axes is None else normal_axes(axes, x.ndim, "CenterCropPad")
    if shape.size != len(along) or (shape.size and shape.min() < 0):
        raise InvalidArgument("CenterCropPad: one size of at least 0 per axis", got=f"{ints(shape)} for {list(along)}")
    wanted = dict(zip(along, ints(shape), strict=True))
    sizes = [wanted.get(a, d) for a, d in enumerate(x.shape)]
    check_elements(math.prod(sizes), x.dtype, "the result of CenterCropPad")
    out = np.full(sizes, _zero(x), x.dtype)
    out[_middle(sizes, x.shape)] = x[_middle(x.shape, sizes)]
    return out


def _middle(sizes: Sequence[int], others: Sequence[int]) -> tuple[slice, ...]:
    """The slice of a tensor of ``sizes`` that is centred on one of ``others``."""
    starts = [max(n - m, 0) // 2 for n, m in zip(sizes, others, strict=True)]
    return tuple(slice(s, s + min(n, m)) for s, n, m in zip(starts, sizes, others, strict=True))


@op("DepthToSpace")
def depth_to_space(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    n, c, h, w = _blocks(x, blocksize, "DepthToSpace")
    b = blocksize
    if c % (b * b):
        raise InvalidArgument("DepthToSpace: channels do not divide by blocksize squared", got=f"{c} by {b * b}")
    if mode == "DCR":
        y: Array = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // (b * b), h * b, w * b)


@op("SpaceToDepth")
def space_to_depth(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    n, c, h, w = _blocks(x, blocksize, "SpaceToDepth")
    b = blocksize
    if h % b or w % b:
        raise InvalidArgument("SpaceToDepth: height and width must divide by blocksize", got=f"{h} x {w} by {b}")
    y: Array = x.reshape(n, c, h // b, b, w // b, b)
    y = y.transpose(0, 3, 5, 1, 2, 4) if mode == "DCR" else y.transpose(0, 1, 3, 5, 2, 4)
    return y.reshape(n, c * b * b, h // b, w // b)


def _blocks(x: Array, blocksize: int, name: str) -> tuple[int, ...]:
    if x.ndim != 4 or blocksize < 1:
        raise InvalidArgument(f"{name} needs rank 4 and a blocksize of at least 1", got=f"{list(x.shape)}, {blocksize}")
    return x.shape


@op("ReverseSequence")
def reverse_sequence(x: Array, lengths: Array, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    """The first ``lengths[b]`` steps of sequence b reversed, the others unchanged."""
    batch = normal_axis(batch_axis, x.ndim, "ReverseSequence")
    time = normal_axis(time_axis, x.ndim, "ReverseSequence")
    steps = x.shape[time]
    if lengths.shape != (x.shape[batch],) or (lengths.size and not 0 <= lengths.min() <= lengths.max() <= steps):
        raise InvalidArgument(
            f"ReverseSequence: one length in [0, {steps}] for each of {x.shape[batch]} sequences", got=lengths.tolist()
        )
    rows = np.moveaxis(x, (batch, time), (0, 1))
    at = np.arange(steps)
    index = np.where(at < lengths[:, None], lengths[:, None] - 1 - at, at)
    return np.moveaxis(rows[np.arange(rows.shape[0])[:, None], index], (0, 1), (batch, time))


@op("Compress")
def compress(x: Array, condition: Array, *, axis: int | None = None) -> Array:
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = normal_axis(axis, x.ndim, "Compress")
    chosen = np.flatnonzero(condition)
    if chosen.size and chosen[-1] >= x.shape[axis]:
        raise InvalidArgument("Compress: condition reaches past the axis", expected=x.shape[axis], got=int(chosen[-1]))
    return np.take(x, chosen, axis)


@op("Trilu")
def trilu(x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    if x.ndim < 2:
        raise InvalidArgument("Trilu needs at least two axes", got=f"shape {list(x.shape)}")
    rows, columns = x.shape[-2:]
    diagonal = max(-rows, min(columns, 0 if k is None else int(scalar(k, "Trilu: k"))))
    offset = np.arange(columns) - np.arange(rows)[:, None]
    return np.where(offset >= diagonal if upper else offset <= diagonal, x, x.dtype.type(0))


@op("TensorScatter")
def tensor_scatter(
    past: Array, update: Array, write_indices: Array | None = None, *, mode: str = "linear", axis: int = -2
) -> Array:
    """``update`` written into a copy of the cache, for each batch entry from its own position."""
    axis = normal_axis(axis, past.ndim, "TensorScatter")
    room, length = past.shape[axis], update.shape[axis]
    others = [a for a in range(past.ndim) if a != axis]
    if axis == 0 or length > room or any(past.shape[a] != update.shape[a] for a in others):
        raise InvalidArgument(
            "TensorScatter: the update does not fit", got=f"{list(update.shape)} into {list(past.shape)}, axis {axis}"
        )
    starts = np.zeros(past.shape[0], np.int64) if write_indices is None else write_indices
    positions = starts[:, None] + np.arange(length)
    if mode == "circular":
        positions = positions % room
    elif positions.size and not 0 <= positions.min() <= positions.max() < room:
        raise InvalidArgument(f"TensorScatter: a position is outside [0, {room})", got=starts.tolist())
    out: Array = past.copy()
    np.moveaxis(out, axis, 1)[np.arange(past.shape[0])[:, None], positions] = np.moveaxis(update, axis, 1)
    return out
