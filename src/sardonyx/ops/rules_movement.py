"""Inference for operators that move elements, or create tensors of a given shape."""

from __future__ import annotations

import math

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.ir.dims import Dim
from sardonyx.ir.graph import Node
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType
from sardonyx.ops.rules import (
    Content,
    Result,
    Undecided,
    axis_of,
    broadcast,
    elements,
    like,
    numbers,
    rule,
    shaped,
    tensor,
)

FAR = 1 << 31
"""Slice ends from here on mean the end of the axis."""


@rule("Shape")
def _shape(node: Node, content: Content) -> Result:
    rank = len(shaped(node))
    return [TensorType(dtypes.i64, (len(range(rank)[node.attrs.get("start", 0) : node.attrs.get("end")]),))]


@rule("Size")
def _size(node: Node, content: Content) -> Result:
    return [TensorType(dtypes.i64, ())]


@rule("Reshape")
def _reshape(node: Node, content: Content) -> Result:
    t, wanted = tensor(node), elements(node, 1, content)
    if wanted is None:
        raise Undecided
    out = list(wanted)
    for i, d in enumerate(wanted):
        if d == 0 and not node.attrs.get("allowzero"):
            out[i] = shaped(node)[i]
    if -1 in out:
        rest = dims.product(d for d in out if d != -1)
        size = None if t.shape is None else dims.product(t.shape)
        whole = dims.exact_div(size, rest)
        out[out.index(-1)] = dims.floordiv(size, rest) if whole is None else whole
    elif t.shape is not None and out.count(None) == 1:
        out[out.index(None)] = dims.exact_div(dims.product(t.shape), dims.product(d for d in out if d is not None))
    return [like(t, tuple(out))]


@rule("Flatten")
def _flatten(node: Node, content: Content) -> Result:
    shape, axis = shaped(node), node.attrs.get("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise Undecided
    axis = axis + len(shape) if axis < 0 else axis
    return [like(tensor(node), (dims.product(shape[:axis]), dims.product(shape[axis:])))]


@rule("Transpose")
def _transpose(node: Node, content: Content) -> Result:
    shape = shaped(node)
    perm = node.attrs.get("perm") or range(len(shape))[::-1]
    return [like(tensor(node), tuple(shape[axis_of(p, len(shape))] for p in perm))]


@rule("Squeeze")
def _squeeze(node: Node, content: Content) -> Result:
    shape, axes = shaped(node), numbers(node, 1, content)
    if axes is None:
        if not all(isinstance(d, int) for d in shape):
            raise Undecided
        return [like(tensor(node), tuple(d for d in shape if d != 1))]
    gone = {axis_of(a, len(shape)) for a in axes}
    return [like(tensor(node), tuple(d for i, d in enumerate(shape) if i not in gone))]


@rule("Unsqueeze")
def _unsqueeze(node: Node, content: Content) -> Result:
    shape, axes = list(shaped(node)), numbers(node, 1, content) or []
    for a in sorted(axis_of(a, len(shape) + len(axes)) for a in axes):
        shape.insert(a, 1)
    return [like(tensor(node), tuple(shape))]


@rule("Concat")
def _concat(node: Node, content: Content) -> Result:
    shapes = [shaped(node, i) for i in range(len(node.inputs))]
    rank = len(shapes[0])
    axis = axis_of(node.attrs["axis"], rank)
    if any(len(s) != rank for s in shapes):
        raise Undecided
    shape = [_agreed([s[i] for s in shapes]) for i in range(rank)]
    shape[axis] = dims.total(s[axis] for s in shapes)
    return [like(tensor(node), tuple(shape))]


def _agreed(alternatives: list[Dim]) -> Dim:
    """The best of several statements about one dimension: a number, or the first name."""
    number = next((d for d in alternatives if isinstance(d, int)), None)
    return number if number is not None else next((d for d in alternatives if d is not None), None)


@rule("Split")
def _split(node: Node, content: Content) -> Result:
    t, shape = tensor(node), shaped(node)
    axis = axis_of(node.attrs.get("axis", 0), len(shape))
    count = len(node.outputs)
    if node.input(1) is None:
        lengths: list[Dim] | None = _parts(shape[axis], node.attrs.get("num_outputs") or count)
    else:
        lengths = elements(node, 1, content)
    if lengths is None or len(lengths) < count:
        lengths = [None] * count
    return [like(t, (*shape[:axis], n, *shape[axis + 1 :])) for n in lengths[:count]]


def _parts(size: Dim, count: int) -> list[Dim]:
    """Equal sizes; the last ones are smaller if the size is not divisible."""
    each = dims.ceildiv(size, count)
    if isinstance(size, int) and isinstance(each, int):
        return [max(min(each, size - i * each), 0) for i in range(count)]
    even = dims.exact_div(size, count) is not None
    return [each, *[each if even else None] * (count - 1)]


@rule("Slice")
def _slice(node: Node, content: Content) -> Result:
    shape = list(shaped(node))
    starts, ends = elements(node, 1, content), elements(node, 2, content)
    axes = numbers(node, 3, content)
    given = [x for x in (starts, ends, axes) if x is not None]
    if not given:
        raise Undecided
    count = len(given[0])
    axes = list(range(count)) if axes is None else [axis_of(a, len(shape)) for a in axes]
    steps = elements(node, 4, content) if node.input(4) is not None else [1] * count
    unknown: list[Dim] = [None] * count
    for a, start, end, step in zip(axes, starts or unknown, ends or unknown, steps or unknown, strict=True):
        shape[a] = sliced(shape[a], start, end, step)
    return [like(tensor(node), tuple(shape))]


def sliced(size: Dim, start: Dim, end: Dim, step: Dim) -> Dim:
    """The length of a slice."""
    if not isinstance(step, int) or step == 0:
        return None
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(size)[start:end:step])
    if step < 0:
        first, last = _before_end(start, size), _before_end(end, size)
        return dims.ceildiv(_not_negative(dims.sub(first, last)), -step)
    length: Dim
    last = _position(end, size)
    if isinstance(start, int) and start <= -FAR:
        start = 0
    if last == size and dims.at_least(dims.neg(start), 1):
        length = dims.minimum(size, dims.neg(start))
    elif isinstance(start, int) and isinstance(end, int) and start < end < 0:
        length = _not_negative(dims.minimum(end - start, dims.add(size, end)))
    elif dims.at_least(start, 0):
        is_from_end = isinstance(end, int) and -FAR < end < 0
        length = _not_negative(dims.sub(dims.add(size, end) if is_from_end else last, start))
    else:
        length = _not_negative(dims.sub(last, _position(start, size)))
    return dims.ceildiv(length, step) if step > 1 else length


def _not_negative(length: Dim) -> Dim:
    return length if dims.at_least(length, 0) else dims.maximum(length, 0)


def _position(at: Dim, size: Dim) -> Dim:
    """Where a slice begins or ends."""
    if at == size or (isinstance(at, int) and at >= FAR - 1):
        return size
    if isinstance(at, int) and at <= -FAR:
        return 0
    if dims.at_least(at, 0):
        return dims.minimum(at, size)
    return dims.maximum(dims.add(size, at), 0) if dims.at_least(dims.neg(at), 1) else None


def _before_end(at: Dim, size: Dim) -> Dim:
    """Where a slice that runs backwards begins or ends; -1 is before the first element."""
    if isinstance(at, int) and at <= -FAR:
        return -1
    if isinstance(at, int) and at >= FAR - 1:
        return dims.sub(size, 1)
    if dims.at_least(at, 0):
        return dims.minimum(at, dims.sub(size, 1))
    return dims.maximum(dims.add(size, at), -1) if dims.at_least(dims.neg(at), 1) else None


@rule("Gather")
def _gather(node: Node, content: Content) -> Result:
    shape, indices = shaped(node), shaped(node, 1)
    axis = axis_of(node.attrs.get("axis", 0), len(shape))
    return [like(tensor(node), (*shape[:axis], *indices, *shape[axis + 1 :]))]


@rule("GatherElements")
def _gather_elements(node: Node, content: Content) -> Result:
    return [like(tensor(node), shaped(node, 1))]


@rule("GatherND")
def _gather_nd(node: Node, content: Content) -> Result:
    x, indices, batch = tensor(node), tensor(node, 1).shape, node.attrs.get("batch_dims", 0)
    if x.shape is None or not indices or not isinstance(indices[-1], int):
        return [TensorType(x.dtype)]
    if batch < 0 or not 1 <= indices[-1] <= len(x.shape) - batch:
        raise Undecided
    return [like(x, (*indices[:-1], *x.shape[batch + indices[-1] :]))]


@rule("Expand")
def _expand(node: Node, content: Content) -> Result:
    wanted = elements(node, 1, content)
    if wanted is None:
        raise Undecided
    return [like(tensor(node), broadcast((shaped(node), tuple(wanted))))]


@rule("Tile")
def _tile(node: Node, content: Content) -> Result:
    shape = shaped(node)
    times = elements(node, 1, content) or [None] * len(shape)
    return [like(tensor(node), tuple(dims.mul(d, n) for d, n in zip(shape, times, strict=True)))]


@rule("ConstantOfShape")
def _constant_of_shape(node: Node, content: Content) -> Result:
    wanted, fill = elements(node, 0, content), node.attrs.get("value")
    if wanted is None:
        raise Undecided
    return [TensorType(fill.dtype if isinstance(fill, Tensor) else dtypes.f32, tuple(wanted))]


@rule("Range")
def _range(node: Node, content: Content) -> Result:
    start, limit, step = (elements(node, i, content) or [None] for i in range(3))
    count: Dim = None
    if start[0] is not None and isinstance(step[0], int) and step[0]:
        length = dims.sub(limit[0], start[0]) if step[0] > 0 else dims.sub(start[0], limit[0])
        count = dims.ceildiv(length if dims.at_least(length, 0) else dims.maximum(length, 0), abs(step[0]))
    bounds = [v.numpy() for v in node.inputs if v is not None and v.is_scalar_const]
    if count is None and len(bounds) == 3:
        from fractions import Fraction

        low, high, by = (Fraction(float(b.reshape(()))) for b in bounds)
        count = max(math.ceil((high - low) / by), 0)
    return [TensorType(tensor(node).dtype, (count,))]


@rule("OneHot")
def _one_hot(node: Node, content: Content) -> Result:
    shape, depth = list(shaped(node)), elements(node, 1, content)
    axis = axis_of(node.attrs.get("axis", -1), len(shape) + 1)
    shape.insert(axis, depth[0] if depth else None)
    return [TensorType(tensor(node, 2).dtype, tuple(shape))]


@rule("NonZero")
def _non_zero(node: Node, content: Content) -> Result:
    return [TensorType(dtypes.i64, (len(shaped(node)), None))]


@rule("Compress")
def _compress(node: Node, content: Content) -> Result:
    axis = node.attrs.get("axis")
    return [like(tensor(node), (None,) if axis is None else _open(shaped(node), axis))]


def _open(shape: tuple[Dim, ...], axis: int) -> tuple[Dim, ...]:
    axis = axis_of(axis, len(shape))
    return (*shape[:axis], None, *shape[axis + 1 :])


@rule("Unique")
def _unique(node: Node, content: Content) -> Result:
    axis, shape = node.attrs.get("axis"), shaped(node)
    length = dims.product(shape) if axis is None else shape[axis_of(axis, len(shape))]
    values = like(tensor(node), (None,) if axis is None else _open(shape, axis))
    open_ = TensorType(dtypes.i64, (None,))
    return [values, open_, TensorType(dtypes.i64, (length,)), open_]


@rule("NonMaxSuppression")
def _non_max_suppression(node: Node, content: Content) -> Result:
    return [TensorType(dtypes.i64, (None, 3))]


@rule("EyeLike")
def _eye_like(node: Node, content: Content) -> Result:
    to = node.attrs.get("dtype")
    return [TensorType(dtypes.of_onnx(to) if to else tensor(node).dtype, shaped(node))]


@rule("DepthToSpace")
def _depth_to_space(node: Node, content: Content) -> Result:
    n, c, h, w = shaped(node)
    b = node.attrs["blocksize"]
    return [like(tensor(node), (n, dims.floordiv(c, b * b), dims.mul(h, b), dims.mul(w, b)))]


@rule("SpaceToDepth")
def _space_to_depth(node: Node, content: Content) -> Result:
    n, c, h, w = shaped(node)
    b = node.attrs["blocksize"]
    return [like(tensor(node), (n, dims.mul(c, b * b), dims.floordiv(h, b), dims.floordiv(w, b)))]


@rule("Pad")
def _pad(node: Node, content: Content) -> Result:
    shape = list(shaped(node))
    axes = numbers(node, 3, content)
    axes = list(range(len(shape))) if axes is None else [axis_of(a, len(shape)) for a in axes]
    pads = elements(node, 1, content) or [None] * (2 * len(axes))
    for i, a in enumerate(axes):
        shape[a] = dims.total((shape[a], pads[i], pads[i + len(axes)]))
    return [like(tensor(node), tuple(shape))]


_CONSTANTS = {
    "value_float": dtypes.f32, "value_floats": dtypes.f32, "value_int": dtypes.i64, "value_ints": dtypes.i64,
    "value_string": dtypes.string, "value_strings": dtypes.string,
}  # fmt: skip


@rule("Constant")
def _constant(node: Node, content: Content) -> Result:
    ((key, value),) = node.attrs.items()
    if isinstance(value, Tensor):
        return [value.type]
    return [TensorType(_CONSTANTS[key], (len(value),) if isinstance(value, list) else ())]
