"""Steps by which a graph grows: each adds a node or a few to a builder, or nothing where no value fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.builder import MAX_ELEMENTS, Builder, V
from fuzz.draws import onnx_type

Step = Callable[[Builder], Any]
STEPS: list[Step] = []
UNARY = (
    "Relu",
    "Abs",
    "Neg",
    "Sigmoid",
    "Tanh",
    "Exp",
    "Identity",
    "Floor",
    "Sign",
    "Erf",
    "Elu",
    "Softplus",
    "Sqrt",
    "HardSwish",
    "Gelu",
)
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")
CASTS = (np.float32, np.float32, np.float64, np.int64, np.int32, np.int8, np.uint8, np.bool_, np.float16)


def step(weight: int = 1) -> Callable[[Step], Step]:
    def register(fn: Step) -> Step:
        STEPS.extend([fn] * weight)
        return fn

    return register


@step(4)
def unary(b: Builder) -> V | None:
    x = b.pick(floats=True, known=False)
    return x and b.add(b.draw.one(UNARY), [x], x.dtype, x.shape)


@step(4)
def binary(b: Builder) -> V | None:
    x = b.pick(known=b.draw.maybe(0.9))
    if x is None or x.dtype == np.bool_:
        return None
    others = [v for v in b.all_values() if v.dtype == x.dtype and v.shape == x.shape and not v.is_sequence]
    if others and b.draw.maybe(0.4):
        y = b.draw.one(others)
    else:
        y = b.constant(b.draw.values(b.draw.broadcast(x.shape or ()) if x.shape else [], x.dtype))
    name = b.draw.one(BINARY if x.is_float else BINARY[:3])
    if x.shape is None:
        return b.add(name, [x, y], x.dtype, None)
    try:
        shape = np.broadcast_shapes(x.shape, y.shape or ())
    except ValueError:
        shape = x.shape
    return b.add(name, [x, y] if b.draw.maybe(0.7) else [y, x], x.dtype, shape)


@step()
def compare(b: Builder) -> V | None:
    x = b.pick(floats=True)
    return x and b.add(
        b.draw.one(("Greater", "Less", "Equal")), [x, b.constant(np.zeros([], x.dtype))], np.bool_, x.shape
    )


@step(2)
def cast(b: Builder) -> V | None:
    x = b.pick(known=False)
    dtype = b.draw.one(CASTS)
    return x and b.add("Cast", [x], dtype, x.shape, to=onnx_type(dtype))


@step()
def where(b: Builder) -> V | None:
    x = b.pick()
    mask = [v for v in b.all_values() if v.dtype == np.bool_ and x and v.shape == x.shape]
    return (
        b.add("Where", [b.draw.one(mask), x, b.constant(b.draw.values([], x.dtype))], x.dtype, x.shape)
        if x and mask
        else None
    )


@step(2)
def reshape(b: Builder) -> V | None:
    x = b.pick(known=b.draw.maybe(0.8))
    if x is None:
        return None
    if x.shape is None:
        return b.add("Reshape", [x, b.setting([-1])], x.dtype, None)
    count, dims = x.size, []
    for _ in range(b.draw.int(0, 2)):
        divisor = b.draw.one([n for n in range(1, min(count, 40) + 1) if count % n == 0] or [0])
        dims.append(divisor)
        count = count // divisor if divisor else 0
    dims.append(count)
    b.draw.rng.shuffle(dims)
    said = [-1 if i == 0 and b.draw.maybe(0.5) and 0 not in dims else n for i, n in enumerate(dims)]
    return b.add("Reshape", [x, b.setting(said)], x.dtype, dims, allowzero=1 if 0 in dims else None)


@step()
def reshape_by_shape(b: Builder) -> V | None:
    """Batch kept by Shape, Gather and Concat, as exporters write it."""
    x = b.pick(least=2)
    if x is None or x.shape is None:
        return None
    sizes = b.add("Shape", [x], np.int64, (len(x.shape),))
    first = b.add("Gather", [sizes, b.constant(np.array([0]))], np.int64, (1,), axis=0)
    target = b.add("Concat", [first, b.constant(np.array([-1]))], np.int64, (2,), axis=0)
    rest = int(np.prod(x.shape[1:]))
    return b.add("Reshape", [x, target], x.dtype, (x.shape[0], rest) if x.shape[0] else None)


@step(2)
def transpose(b: Builder) -> V | None:
    x = b.pick(least=1)
    if x is None or x.shape is None:
        return None
    order = list(range(len(x.shape)))
    b.draw.rng.shuffle(order)
    return b.add("Transpose", [x], x.dtype, [x.shape[i] for i in order], perm=order)


@step(3)
def concat(b: Builder) -> V | None:
    x = b.pick(least=1)
    if x is None or x.shape is None:
        return None
    axis = b.draw.int(0, len(x.shape) - 1)
    twins = [
        v for v in b.all_values()
        if not v.is_sequence and v.dtype == x.dtype and v.shape is not None and len(v.shape) == len(x.shape)
        and all(n == m for i, (n, m) in enumerate(zip(v.shape, x.shape, strict=True)) if i != axis)
    ]  # fmt: skip
    parts = [b.draw.one(twins) for _ in range(b.draw.int(1, 3))]
    shape = list(x.shape)
    shape[axis] = sum(p.shape[axis] for p in parts if p.shape)
    return b.add("Concat", list(parts), x.dtype, shape, axis=axis)


@step(2)
def slice_(b: Builder) -> V | None:
    x = b.pick(least=1)
    if x is None or x.shape is None:
        return None
    axis = b.draw.int(0, len(x.shape) - 1)
    n = x.shape[axis]
    start, end, stride = b.draw.int(-n - 1, n), b.draw.int(-n - 1, n + 2), b.draw.one((1, 1, 1, 2, -1))
    shape = list(x.shape)
    shape[axis] = len(range(n)[slice(start, end, stride)])
    operands = [x, b.setting([start]), b.setting([end]), b.constant(np.array([axis])), b.setting([stride])]
    return b.add("Slice", operands, x.dtype, shape)


@step()
def split(b: Builder) -> Any:
    x = b.pick(least=1)
    if x is None or x.shape is None:
        return None
    axis = b.draw.int(0, len(x.shape) - 1)
    first = b.draw.int(0, x.shape[axis])
    parts = [first, x.shape[axis] - first]
    outputs = [(x.dtype, [*x.shape[:axis], n, *x.shape[axis + 1 :]]) for n in parts]
    return b.add_many("Split", [x, b.setting(parts)], outputs, axis=axis)


@step(2)
def gather(b: Builder) -> V | None:
    x = b.pick(least=1)
    if x is None or not x.shape:
        return None
    axis = b.draw.int(0, len(x.shape) - 1)
    shape = b.draw.shape(0, 2, large=0)
    indices = b.draw.indices(shape, x.shape[axis])
    held = b.constant(indices) if b.draw.maybe(0.4) else b.feed(indices, "index", x.shape[axis])
    return b.add("Gather", [x, held], x.dtype, [*x.shape[:axis], *shape, *x.shape[axis + 1 :]], axis=axis)


@step(2)
def reduce(b: Builder) -> V | None:
    x = b.pick(floats=True, least=1)
    if x is None or x.shape is None:
        return None
    axes = b.draw.rng.sample(range(len(x.shape)), b.draw.int(1, len(x.shape)))
    keep = b.draw.int(0, 1)
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
    name = b.draw.one(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceSumSquare"))
    return b.add(name, [x, b.constant(np.array(axes))], x.dtype, shape, keepdims=keep)


@step(2)
def matmul(b: Builder) -> V | None:
    x = b.pick(floats=True, least=1)
    if x is None or not x.shape or x.dtype == np.float16:
        return None
    columns = b.draw.size(large=0.3)
    w = b.draw.values([x.shape[-1], columns], x.dtype)
    return b.add("MatMul", [x, b.constant(w) if b.draw.maybe(0.8) else b.feed(w)], x.dtype, [*x.shape[:-1], columns])


@step()
def gram(b: Builder) -> V | None:
    """A value times its transpose, as attention scores are made, and a softmax."""
    x = b.pick(floats=True, least=2)
    if x is None or x.shape is None or x.shape[-2] > 70:
        return None
    order = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    y = b.add("Transpose", [x], x.dtype, [x.shape[i] for i in order], perm=order)
    scores = b.add("MatMul", [x, y], x.dtype, [*x.shape[:-1], x.shape[-2]])
    weights = b.add("Softmax", [scores], x.dtype, scores.shape, axis=-1)
    return b.add("MatMul", [weights, x], x.dtype, x.shape)


@step()
def normalize(b: Builder) -> V | None:
    x = b.pick(floats=True, least=1)
    if x is None or not x.shape:
        return None
    if b.draw.maybe(0.4):
        return b.add("Softmax", [x], x.dtype, x.shape, axis=b.draw.int(-len(x.shape), len(x.shape) - 1))
    scale = b.constant(b.draw.values([x.shape[-1]], x.dtype))
    return b.add("LayerNormalization", [x, scale], x.dtype, x.shape)


@step(2)
def conv(b: Builder) -> V | None:
    x = b.pick(floats=True, rank=4)
    if x is None or x.shape is None or x.dtype != np.float32:
        return None
    k, pad, stride, m = (
        b.draw.one((1, 1, 2, 3)),
        b.draw.int(0, 1),
        b.draw.one((1, 1, 2)),
        b.draw.one((1, 4, 8, 16, 17, 32)),
    )
    out = [(n + 2 * pad - k) // stride + 1 for n in x.shape[2:]]
    if min(out) < 0 or m * x.shape[1] * k * k > 40_000:
        return None
    w = b.constant(b.draw.values([m, x.shape[1], k, k], np.float32))
    bias = b.constant(b.draw.values([m], np.float32)) if b.draw.maybe(0.5) else None
    y = b.add(
        "Conv",
        [x, w, bias],
        np.float32,
        [x.shape[0], m, *out],
        kernel_shape=[k, k],
        pads=[pad] * 4,
        strides=[stride] * 2,
    )
    return b.add("Relu", [y], np.float32, y.shape) if b.draw.maybe(0.5) else y


@step(2)
def pool(b: Builder) -> Any:
    x = b.pick(floats=True, rank=4)
    if x is None or x.shape is None or x.dtype != np.float32 or min(x.shape[2:]) < 2:
        return None
    if b.draw.maybe(0.3):
        return b.add("GlobalAveragePool", [x], x.dtype, [*x.shape[:2], 1, 1])
    out = [x.shape[0], x.shape[1], *(n // 2 for n in x.shape[2:])]
    if b.draw.maybe(0.3):
        y, where = b.add_many("MaxPool", [x], [(x.dtype, out), (np.int64, out)], kernel_shape=[2, 2], strides=[2, 2])
        return b.add(
            "MaxUnpool", [y, where], x.dtype, [*out[:2], *(2 * n for n in out[2:])], kernel_shape=[2, 2], strides=[2, 2]
        )
    name = b.draw.one(("MaxPool", "AveragePool"))
    return b.add(name, [x], x.dtype, out, kernel_shape=[2, 2], strides=[2, 2])


@step()
def pad(b: Builder) -> V | None:
    x = b.pick(least=1)
    if x is None or not x.shape or x.dtype == np.bool_:
        return None
    pads = [b.draw.int(0, 2) for _ in range(2 * len(x.shape))]
    shape = [n + pads[i] + pads[i + len(x.shape)] for i, n in enumerate(x.shape)]
    return b.add("Pad", [x, b.setting(pads)], x.dtype, shape, mode="constant")


@step()
def expand(b: Builder) -> V | None:
    x = b.pick()
    if x is None or x.shape is None or x.size > 500:
        return None
    shape = [b.draw.size(large=0) if n == 1 else n for n in x.shape]
    if b.draw.maybe(0.3):
        shape = [b.draw.int(1, 3), *shape]
    return b.add("Expand", [x, b.setting(shape)], x.dtype, shape)


@step()
def tile(b: Builder) -> V | None:
    x = b.pick(least=1)
    if x is None or x.shape is None or x.size > 500:
        return None
    repeats = [b.draw.int(0 if b.draw.maybe(0.1) else 1, 3) for _ in x.shape]
    return b.add("Tile", [x, b.setting(repeats)], x.dtype, [n * r for n, r in zip(x.shape, repeats, strict=True)])


@step()
def axes_of_one(b: Builder) -> V | None:
    x = b.pick()
    if x is None or x.shape is None or len(x.shape) > 4:
        return None
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    if ones and b.draw.maybe(0.5):
        axis = b.draw.one(ones)
        return b.add("Squeeze", [x, b.setting([axis])], x.dtype, [n for i, n in enumerate(x.shape) if i != axis])
    axis = b.draw.int(0, len(x.shape))
    return b.add("Unsqueeze", [x, b.setting([axis])], x.dtype, [*x.shape[:axis], 1, *x.shape[axis:]])


@step(2)
def found(b: Builder) -> V | None:
    """Results whose length only data tell."""
    x = b.pick(least=1)
    if x is None or not x.shape:
        return None
    if b.draw.maybe(0.5):
        places = b.add("NonZero", [x], np.int64, None)
        return b.add("Transpose", [places], np.int64, None, perm=[1, 0])
    mask = b.feed(b.draw.values([x.shape[0]], np.bool_))
    return b.add("Compress", [x, mask], x.dtype, None, axis=0)


@step()
def create(b: Builder) -> V | None:
    if b.draw.maybe(0.5):
        count = b.draw.int(0, 9)
        return b.add("Range", [b.setting(0), b.setting(count), b.constant(np.int64(1))], np.int64, (count,))
    shape = b.draw.shape(1, 3, large=0)
    return b.add("ConstantOfShape", [b.setting(shape)], np.float32, shape)


@step()
def top_k(b: Builder) -> Any:
    x = b.pick(floats=True, least=1)
    if x is None or not x.shape:
        return None
    k = b.draw.int(0, x.shape[-1])
    shape = [*x.shape[:-1], k]
    return b.add_many("TopK", [x, b.setting([k])], [(x.dtype, shape), (np.int64, shape)])


@step()
def scatter(b: Builder) -> V | None:
    x = b.pick(least=1)
    if x is None or not x.shape or not x.shape[0] or x.dtype == np.bool_:
        return None
    count = b.draw.int(0, 3)
    indices = b.draw.indices([count, 1], x.shape[0])
    updates = b.constant(b.draw.values([count, *x.shape[1:]], x.dtype))
    held = b.constant(indices) if b.draw.maybe(0.4) else b.feed(indices, "index", x.shape[0])
    return b.add("ScatterND", [x, held, updates], x.dtype, x.shape)


@step()
def resize(b: Builder) -> V | None:
    x = b.pick(floats=True, rank=4)
    if x is None or x.shape is None or x.size > 4_000 or 0 in x.shape or x.dtype != np.float32:
        return None
    shape = [*x.shape[:2], *(2 * n for n in x.shape[2:])]
    return b.add("Resize", [x, None, None, b.setting(shape)], x.dtype, shape, mode=b.draw.one(("nearest", "linear")))


@step()
def quantized(b: Builder) -> V | None:
    x = b.pick(floats=True)
    if x is None or x.dtype != np.float32:
        return None
    scale, point = b.constant(np.float32(0.05)), b.constant(np.uint8(100))
    q = b.add("QuantizeLinear", [x, scale, point], np.uint8, x.shape)
    return b.add("DequantizeLinear", [q, scale, point], np.float32, x.shape)


@step()
def depth(b: Builder) -> V | None:
    x = b.pick(rank=4)
    if x is None or x.shape is None or x.shape[1] % 4 or not x.shape[1]:
        return None
    n, c, h, w = x.shape
    return b.add("DepthToSpace", [x], x.dtype, [n, c // 4, h * 2, w * 2], blocksize=2)


@step()
def cumulative(b: Builder) -> V | None:
    x = b.pick(floats=True, least=1)
    return b.add("CumSum", [x, b.setting(0)], x.dtype, x.shape) if x and x.shape else None


@step(2)
def sequence(b: Builder) -> V | None:
    """A sequence, changed, and one of its elements or all of them joined."""
    x = b.pick(least=1)
    if x is None or x.shape is None:
        return None
    if b.draw.maybe(0.3):
        held = b.add("SplitToSequence", [x, b.setting(1)], x.dtype, None, axis=0)
        held = V(held.name, x.dtype, None, True)
        b.values[-1] = held
        return b.add("SequenceAt", [held, b.setting(0)], x.dtype, (1, *x.shape[1:])) if x.shape[0] else None
    held = b.add("SequenceConstruct", [x, x] if b.draw.maybe(0.5) else [x], x.dtype, x.shape)
    if b.draw.maybe(0.5):
        held = b.add(
            "SequenceInsert",
            [held, b.pick() if b.draw.maybe(0.1) else x, b.setting(b.draw.one((0, 1, -1)))],
            x.dtype,
            x.shape,
        )
    if b.draw.maybe(0.5):
        return b.add("ConcatFromSequence", [held], x.dtype, None, axis=0)
    return b.add("SequenceAt", [held, b.setting(b.draw.one((0, 0, -1, 1)))], x.dtype, x.shape)


@step()
def optional(b: Builder) -> V | None:
    x = b.pick()
    if x is None:
        return None
    held = b.add("Optional", [x], x.dtype, x.shape)
    b.values.pop()
    if b.draw.maybe(0.3):
        return b.add("OptionalHasElement", [held], np.bool_, ())
    return b.add("OptionalGetElement", [held], x.dtype, x.shape)


def fits(v: V) -> bool:
    return v.size <= MAX_ELEMENTS
