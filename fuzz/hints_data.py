"""Generators of what moves, picks, counts or maps elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz import schemas
from fuzz.drafts import Draft, Maker, Operand
from fuzz.table import generator

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos", "Cosh", "Det", "Elu",
    "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish",
    "Neg", "NonZero", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shape", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Size", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
BINARY = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "PRelu",
)  # fmt: skip


@generator(*UNARY)
def unary(m: Maker) -> Draft:
    d = m.draw
    shape = d.shape(0, 4, large=0.3)
    if m.key[1] == "Det":
        n = d.one((0, 1, 2, 3, 5))
        shape = [*d.shape(0, 1), n, n]
    attributes: dict[str, Any] = {}
    if m.key[1] == "Shape" and m.version >= 15:
        attributes = {"start": m.some(0, 1, -1, 9, -9), "end": m.some(0, 2, -1, 9, -9)}
    return m.node([m.data(0, shape)], **attributes)


@generator(*BINARY)
def binary(m: Maker) -> Draft:
    d = m.draw
    shape = d.shape(0, 4, large=0.3)
    left, right = (shape, d.broadcast(shape)) if d.maybe(0.7) else (d.broadcast(shape), shape)
    if m.key[1] == "PRelu":
        left, right = shape, d.broadcast(shape)
    attributes: dict[str, Any] = {}
    if m.key[1] == "Mod":
        is_float = np.dtype(m.dtype(0)).kind not in "iu"
        attributes["fmod"] = 1 if is_float or d.maybe(0.3) else 0
    if m.key[1] == "BitShift":
        attributes["direction"] = d.one(("LEFT", "RIGHT"))
    if m.version < 7 and right != left and "broadcast" in schemas.schema(m.key, m.version).attributes:
        attributes["broadcast"] = 1
    return m.node([m.data(0, left), m.data(1, right)], **attributes)


@generator("Max", "Min", "Sum", "Mean")
def variadic(m: Maker) -> Draft:
    shape = m.draw.shape(0, 4, large=0.3)
    return m.node([m.data(i, m.draw.broadcast(shape)) for i in range(m.draw.int(1, 4))])


@generator("Where")
def where(m: Maker) -> Draft:
    shape = m.draw.shape(0, 4)
    return m.node([m.data(i, m.draw.broadcast(shape)) for i in range(3)])


@generator("Clip")
def clip(m: Maker) -> Draft:
    d = m.draw
    low, high = (m.maybe(0.7, lambda: Operand(d.values([], m.dtype(0)))) for _ in range(2))
    return m.node([m.data(0, d.shape()), low, high])


@generator("Cast")
def cast(m: Maker) -> Draft:
    return m.node([m.data(0, m.draw.shape())], to=m.draw.int(1, 23), saturate=m.some(0, 1) if m.version >= 19 else None)


REDUCE = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)


@generator(*REDUCE)
def reduce(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(0, 4, large=0.4)
    axes = m.maybe(0.7, lambda: m.setting(d.axes(len(x))))
    as_input = "axes" not in schemas.schema(m.key, m.version).attributes
    attributes: dict[str, Any] = {"keepdims": m.some(0, 1)}
    if as_input:
        attributes["noop_with_empty_axes"] = m.some(0, 1)
        return m.node([m.data(0, x), axes], **attributes)
    attributes["axes"] = axes.value.tolist() if axes is not None and axes.value.size else None
    return m.node([m.data(0, x)], **attributes)


@generator("ArgMax", "ArgMin", "CumSum", "CumProd")
def arg(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 4, large=0.3)
    if m.key[1].startswith("Cum"):
        axis = m.setting(d.axis(len(x)), d.one((np.int32, np.int64)))
        axis.value = axis.value.reshape(d.one(((), (), (), (1,))))
        return m.node([m.data(0, x), axis], exclusive=m.some(0, 1), reverse=m.some(0, 1))
    last = m.some(0, 1) if m.version >= 12 else None
    return m.node(
        [m.data(0, x)], axis=d.axis(len(x)) if d.maybe(0.8) else None, keepdims=m.some(0, 1), select_last_index=last
    )


@generator("TopK")
def top_k(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 3, large=0.4)
    axis = d.int(-len(x), len(x) - 1)
    k = d.int(0, x[axis]) if d.maybe(0.9) else d.one((x[axis] + 1, -1, 1 << 40))
    modern = dict(largest=m.some(0, 1), sorted=m.some(0, 1)) if m.version >= 11 else {}
    if m.version < 10:
        return m.node([m.data(0, x)], 2, axis=axis, k=k)
    return m.node([m.data(0, x), m.setting([k])], 2, axis=axis, **modern)


@generator("Transpose")
def transpose(m: Maker) -> Draft:
    x = m.draw.shape(0, 5, large=0.3)
    order = list(range(len(x)))
    m.draw.rng.shuffle(order)
    return m.node([m.data(0, x)], perm=order if m.draw.maybe(0.85) else None)


def factors(m: Maker, count: int) -> list[int]:
    """Sizes whose product is the count."""
    dims = []
    for _ in range(m.draw.int(0, 3)):
        divisor = m.draw.one([n for n in range(1, min(count, 64) + 1) if count % n == 0] or [0])
        dims.append(divisor)
        count = count // divisor if divisor else 0
    return [*dims, count]


@generator("Reshape")
def reshape(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(0, 4)
    target = factors(m, int(np.prod(x)))
    if target and d.maybe(0.5):
        target[d.int(0, len(target) - 1)] = -1
    if target and d.maybe(0.2):
        target[d.int(0, len(target) - 1)] = d.one((0, 0, -1, 7, -2, 1 << 40))
    allow = m.some(0, 1) if m.version >= 14 else None
    if m.version < 5:
        return m.node([m.data(0, x)], shape=target)
    return m.node([m.data(0, x), m.setting(target)], allowzero=allow)


@generator("Flatten")
def flatten(m: Maker) -> Draft:
    x = m.draw.shape(0, 4)
    return m.node([m.data(0, x)], axis=m.draw.int(0 if m.version < 11 else -len(x), len(x)))


@generator("Squeeze")
def squeeze(m: Maker) -> Draft:
    d = m.draw
    x = [1 if d.maybe(0.5) else n for n in d.shape(1, 5)]
    ones = [i for i, n in enumerate(x) if n == 1]
    axes = m.maybe(0.8, lambda: m.setting(d.rng.sample(ones, d.int(0, len(ones)))))
    return m.node([m.data(0, x), axes])


@generator("Unsqueeze")
def unsqueeze(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(0, 3)
    count = d.int(0, 3)
    rank = len(x) + count
    axes = [a - rank if d.maybe(0.3) else a for a in d.rng.sample(range(rank), count)]
    return m.node([m.data(0, x), m.setting([*axes, d.axis(rank)] if d.maybe(0.05) else axes)])


@generator("Expand")
def expand(m: Maker) -> Draft:
    d = m.draw
    shape = d.shape(0, 4)
    x = d.broadcast(shape)
    target = [1 if d.maybe(0.2) else n for n in shape]
    return m.node([m.data(0, x), m.setting([*d.shape(0, 1, large=0), *target] if d.maybe(0.2) else target)])


@generator("Tile")
def tile(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(0, 3, large=0)
    repeats = [d.one((0, 1, 1, 2, 3)) for _ in x]
    if repeats and d.maybe(0.05):
        repeats[0] = d.one((-1, 1 << 31, 1 << 62))
    return m.node([m.data(0, x), m.setting(repeats)])


@generator("Concat")
def concat(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 4)
    axis = d.int(-len(x), len(x) - 1)
    parts = []
    for i in range(d.int(1, 4)):
        shape = list(x)
        shape[axis] = d.size()
        parts.append(m.data(i, shape))
    return m.node(parts, axis=axis)


@generator("Split")
def split(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 4)
    axis = d.int(-len(x), len(x) - 1)
    count = d.int(1, 4)
    sizes = [d.size() for _ in range(count)]
    x[axis] = sum(sizes) if d.maybe(0.95) else d.size()
    if d.maybe(0.3):
        x[axis] = sizes[0] * count
        return m.node([m.data(0, x)], count, axis=axis, num_outputs=count if m.version >= 18 else None)
    return m.node([m.data(0, x), m.setting(sizes)], count, axis=axis)


@generator("Slice")
def slice_(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 4, large=0.2)
    count = d.int(1, len(x))
    axes = d.rng.sample(range(len(x)), count)
    kind = d.one((np.int64, np.int64, np.int32))
    edge = lambda n: d.int(-n - 1, n + 1) if d.maybe(0.85) else d.one((1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)))  # noqa: E731
    starts, ends = [edge(x[a]) for a in axes], [edge(x[a]) for a in axes]
    steps = [d.one((1, 1, 2, 3, -1, -2)) if d.maybe(0.95) else d.one((0, 1 << 40, -(1 << 63))) for _ in axes]
    if kind is np.int32:
        starts, ends, steps = ([max(min(v, (1 << 31) - 1), -(1 << 31)) for v in vs] for vs in (starts, ends, steps))
    axes = [a - len(x) if d.maybe(0.3) else a for a in axes]
    operands: list[Any] = [m.data(0, x), m.setting(starts, kind), m.setting(ends, kind), m.setting(axes, kind)]
    return m.node([*operands, m.maybe(0.6, lambda: m.setting(steps, kind)) if m.version >= 10 else None])


@generator("Pad")
def pad(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 4)
    mode = m.some("constant", "reflect", "edge", "wrap") if m.version >= 19 else m.some("constant", "reflect", "edge")
    pads = [
        d.one((0, 0, 1, 2, 3, -1)) if d.maybe(0.95) else d.one((40, -50, 1 << 31, 1 << 62, -(1 << 63))) for _ in x * 2
    ]
    if m.version < 11:
        return m.node([m.data(0, x)], mode=mode, pads=pads, value=m.some(1.5))
    value = m.maybe(0.5, lambda: Operand(d.values([], m.dtype(0))))
    axes = None
    if m.version >= 18 and d.maybe(0.3):
        picked = d.rng.sample(range(len(x)), d.int(0, len(x)))
        axes, pads = m.setting(picked), [d.int(0, 3) for _ in picked * 2]
    return m.node([m.data(0, x), m.setting(pads), value, axes], mode=mode)


@generator("CenterCropPad")
def center_crop_pad(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 4)
    axes = d.rng.sample(range(len(x)), d.int(1, len(x))) if d.maybe(0.6) else None
    return m.node([m.data(0, x), m.setting([d.size() for _ in axes or x])], axes=axes)


@generator("DepthToSpace", "SpaceToDepth")
def depth_to_space(m: Maker) -> Draft:
    d = m.draw
    block, n, h, w = d.one((1, 2, 2, 3, 4)), d.one((0, 1, 2)), d.size(), d.size()
    c = d.one((1, 2, 3, 5))
    if m.key[1] == "DepthToSpace":
        shape = [n, c * block * block, h, w]
        return m.node([m.data(0, shape)], blocksize=block, mode=m.some("DCR", "CRD") if m.version >= 11 else None)
    return m.node([m.data(0, [n, c, h * block, w * block])], blocksize=block)


@generator("ReverseSequence")
def reverse_sequence(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(2, 4)
    batch = d.int(0, 1)
    lengths = Operand(d.np.integers(0, x[1 - batch] + 1, x[batch]), "index", x[1 - batch])
    return m.node([m.data(0, x), lengths], batch_axis=batch, time_axis=1 - batch)


@generator("Trilu", "EyeLike")
def triangle(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(2, 4 if m.key[1] == "Trilu" else 2)
    k = d.one((0, 0, 1, -1, 5, -9, (1 << 63) - 1, -(1 << 63)))
    if m.key[1] == "EyeLike":
        return m.node([m.data(0, x)], k=k, dtype=m.some(1, 7, 9, 10))
    return m.node([m.data(0, x), m.maybe(0.7, lambda: m.setting(k))], upper=m.some(0, 1))


@generator("Gather", "GatherElements")
def gather(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 4)
    axis = d.int(-len(x), len(x) - 1)
    shape = d.shape(0, 2)
    if m.key[1] == "GatherElements":
        shape = [d.int(0, n) for n in x]
        shape[axis] = d.size()
    return m.node([m.data(0, x), m.index(1, shape, x[axis])], axis=axis)


def places(m: Maker, x: list[int], position: int) -> tuple[Operand, list[int]]:
    """Indices of GatherND or ScatterND into a tensor, and the shape of what they pick."""
    d = m.draw
    depth = d.int(1, len(x))
    shape = [*d.shape(0, 2, large=0), depth]
    columns = [d.indices(shape[:-1], x[i]) for i in range(depth)]
    return Operand(np.stack(columns, -1).astype(np.int64), "index", max(x[:depth])), [*shape[:-1], *x[depth:]]


@generator("GatherND")
def gather_nd(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 4)
    batch = d.one((0, 0, 1)) if len(x) > 1 and m.version >= 12 else 0
    indices, _ = places(m, x[batch:], 1)
    if batch:
        indices.value = np.broadcast_to(indices.value, [x[0], *indices.value.shape]).copy()
    return m.node([m.data(0, x), indices], batch_dims=batch if m.version >= 12 else None)


REDUCTIONS = ("none", "add", "mul", "max", "min")


@generator("ScatterND")
def scatter_nd(m: Maker) -> Draft:
    x = m.draw.shape(1, 4)
    indices, picked = places(m, x, 1)
    kind = None if m.version < 16 else m.some(*(REDUCTIONS if m.version >= 18 else REDUCTIONS[:3]))
    return m.node([m.data(0, x), indices, m.data(2, picked)], reduction=kind)


@generator("ScatterElements", "Scatter")
def scatter_elements(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 4)
    axis = d.int(-len(x), len(x) - 1)
    shape = [d.int(0, n) for n in x]
    kind = (
        None
        if m.version < 16 or m.key[1] == "Scatter"
        else m.some(*(REDUCTIONS if m.version >= 18 else REDUCTIONS[:3]))
    )
    return m.node([m.data(0, x), m.index(1, shape, x[axis]), m.data(2, shape)], axis=axis, reduction=kind)


@generator("TensorScatter")
def tensor_scatter(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(3, 4)
    axis = d.int(1, len(x) - 1)
    update = list(x)
    update[axis] = d.int(0, x[axis])
    where = m.maybe(0.7, lambda: Operand(d.np.integers(0, max(x[axis] - update[axis], 0) + 1, x[0]), "index", x[axis]))
    return m.node([m.data(0, x), m.data(1, update), where], axis=axis, mode=m.some("linear", "circular"))


@generator("OneHot")
def one_hot(m: Maker) -> Draft:
    d = m.draw
    shape = d.shape(0, 3)
    depth = d.one((0, 1, 3, 5, 16))
    return m.node(
        [m.index(0, shape, depth), m.setting(depth if d.maybe(0.5) else [depth], m.dtype(1)), m.data(2, [2])],
        axis=d.int(-len(shape) - 1, len(shape)) if d.maybe(0.7) else None,
    )


@generator("Compress")
def compress(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 3)
    axis = d.int(-len(x), len(x) - 1) if d.maybe(0.7) else None
    size = x[axis] if axis is not None else int(np.prod(x))
    return m.node([m.data(0, x), m.data(1, [max(size + d.one((0, 0, -1, 1)), 0)])], axis=axis)


@generator("Unique")
def unique(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 3)
    axis = d.int(-len(x), len(x) - 1) if d.maybe(0.5) else None
    return m.node([m.data(0, x)], d.int(1, 4), axis=axis, sorted=m.some(0, 1))


@generator("NonMaxSuppression")
def non_max_suppression(m: Maker) -> Draft:
    d = m.draw
    batch, classes, boxes = d.one((0, 1, 1, 2)), d.one((0, 1, 1, 3)), d.size(large=0.3)
    corners = d.np.uniform(0, 4, (batch, boxes, 4)).astype(np.float32)
    scalar = lambda v, t: Operand(np.array([v], t) if d.maybe(0.7) else np.array(v, t), "setting")  # noqa: E731
    limit = m.maybe(0.8, lambda: scalar(d.one((0, 1, 3, 100, -1, (1 << 63) - 1)), np.int64))
    overlap = m.maybe(0.7, lambda: scalar(d.one((0.0, 0.5, 1.0, 0.3, 2.0, -1.0)), np.float32))
    score = m.maybe(0.5, lambda: scalar(d.one((0.0, 0.4, -1.0)), np.float32))
    scores = Operand(d.values([batch, classes, boxes], np.float32))
    return m.node([Operand(corners), scores, limit, overlap, score], center_point_box=m.some(0, 1))


@generator("Range")
def range_(m: Maker) -> Draft:
    d = m.draw
    dtype = m.dtype(0)
    start, count, delta = d.int(-5, 5), d.int(-2, 20), d.one((1, 2, 3, -1, -2, 0))
    numbers = [start, start + count * delta, delta]
    if d.maybe(0.05):
        numbers[d.int(0, 2)] = d.one((30_000, -30_000))
    return m.node([m.setting(np.array(n).astype(dtype), dtype) for n in numbers])


@generator("ConstantOfShape")
def constant_of_shape(m: Maker) -> Draft:
    d = m.draw
    shape = d.shape(0, 4)
    if shape and d.maybe(0.05):
        shape[0] = d.one((-1, 1 << 31, 1 << 62, (1 << 63) - 1))
    value = d.values([1], d.one((np.float32, np.int64, np.bool_, np.float16, np.uint8)))
    return m.node([m.setting(shape)], value=value if d.maybe(0.7) else None)


@generator("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
def quantize(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 4, large=0.3)
    if m.key[1] == "DynamicQuantizeLinear":
        return m.node([m.data(0, x)])
    axis = d.int(-len(x), len(x) - 1)
    block = None
    per: list[int] = d.one(([], [x[axis]], [x[axis]]))
    if m.version >= 21 and d.maybe(0.3):
        block = d.one((1, 2, 3, 16))
        per = list(x)
        per[axis] = -(-x[axis] // block)
    scale = m.positive(1, per)
    point_type = m.dtype(0) if m.key[1] == "DequantizeLinear" else m.dtype(2)
    point = m.maybe(0.7, lambda: Operand(d.values(per, point_type)))
    return m.node([m.data(0, x), scale, point], axis=axis if m.version >= 13 else None, block_size=block)


@generator("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(m: Maker) -> Draft:
    d = m.draw
    classes = d.one((1, 2, 5, 17))
    n, rest = d.one((0, 1, 3)), d.shape(0, 2)
    target = Operand(d.np.integers(0, classes, (n, *rest)).astype(d.one((np.int32, np.int64))), "index", classes)
    weight = m.maybe(0.5, lambda: m.positive(2, [classes]))
    outputs = d.one((1, 2)) if m.key[1] == "SoftmaxCrossEntropyLoss" else 1
    return m.node(
        [m.data(0, [n, classes, *rest]), target, weight],
        outputs,
        reduction=m.some("none", "mean", "sum"),
        ignore_index=m.some(-1, 0, classes),
    )


@generator("DFT", "STFT")
def fourier(m: Maker) -> Draft:
    d = m.draw
    if m.key[1] == "STFT":
        length, frame, step = d.one((0, 8, 16, 33, 100)), d.one((1, 4, 8, 16)), d.one((1, 2, 5, 8))
        window = m.maybe(0.5, lambda: m.data(2, [frame]))
        return m.node(
            [m.data(0, [d.one((0, 1, 2)), length, 1]), m.setting(step), window, m.setting(frame)], onesided=m.some(0, 1)
        )
    x = [*d.shape(1, 3, large=0.3), d.one((1, 1, 2))]
    axis = d.int(-len(x), len(x) - 2)
    length = m.maybe(0.3, lambda: m.setting(d.one((1, 4, 7, 16, 0, -1))))
    attributes = dict(inverse=m.some(0, 1), onesided=m.some(0, 1))
    if m.version < 20:
        return m.node([m.data(0, x), length], axis=axis, **attributes)
    return m.node([m.data(0, x), length, m.maybe(0.7, lambda: m.setting(axis))], **attributes)


@generator("HannWindow", "HammingWindow", "BlackmanWindow")
def window_of(m: Maker) -> Draft:
    return m.node(
        [m.setting(m.draw.one((0, 1, 2, 5, 17, -1, 100)), m.dtype(0))],
        periodic=m.some(0, 1),
        output_datatype=m.some(1, 10, 11),
    )


@generator("RandomNormal", "RandomUniform")
def random_shape(m: Maker) -> Draft:
    return m.node([], shape=m.draw.shape(), dtype=m.some(1, 10, 11), seed=1.0)


@generator("RandomNormalLike", "RandomUniformLike", "Bernoulli")
def random_like(m: Maker) -> Draft:
    return m.node([m.data(0, m.draw.shape())], dtype=m.some(1, 10, 11), seed=m.some(1.0, 3.0))


@generator("Multinomial")
def multinomial(m: Maker) -> Draft:
    return m.node(
        [m.data(0, m.draw.shape(2, 2))], sample_size=m.draw.one((0, 1, 5, 20, -1)), dtype=m.some(6, 7), seed=1.0
    )
