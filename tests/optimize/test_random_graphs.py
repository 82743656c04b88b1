"""Random graphs of the operators that patterns mention, with fragments of the patterns themselves glued in.

Fragments are written as exporters write them, in any element type, with broadcasting, with values that several nodes
read and with graph outputs inside. Whatever comes of it, every level answers as level disabled does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Model, Value
from sardonyx.ir.spec import verify
from sardonyx.ir.types import TensorType
from sardonyx.normalize.run import normalize
from sardonyx.ops.infer import OPSETS
from sardonyx.optimize import api, pipelines
from sardonyx.optimize.check import answers, difference
from tests.slices import TEST_ALL

LEVELS = ("basic", "extended")
EXAMPLES = 2500 if TEST_ALL else 150
TOLERANCES = {np.dtype(np.float32): 2e-3, np.dtype(np.float64): 1e-3, np.dtype(np.float16): 6e-2}
"""Graphs are deep and unlike any network, so rounding has a way to go."""
NUDGES = 12
"""Of the inputs, that tell how far it goes in one of them."""

BATCH, ROWS, WIDTH = 2, 4, 6
"""Every value is of shape [2, 4, 6] or broadcasts to it: anything can be glued to anything."""

SMALL = ((), (1,), (WIDTH,), (1, 1, WIDTH), (ROWS, 1), (BATCH, ROWS, WIDTH), (1, ROWS, WIDTH), (BATCH, 1, 1))


class Maker:
    """One graph in the making: draws choices, writes nodes, remembers what can be read."""

    def __init__(self, draw: Callable[[Any], Any], dtype: Any) -> None:
        self.draw, self.dtype = draw, np.dtype(dtype)
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        t = TensorType(dtypes.of_numpy(self.dtype), (BATCH, ROWS, WIDTH))
        named = draw(st.booleans())
        free = TensorType(t.dtype, ("batch", ROWS, WIDTH)) if named else t
        self.graph = Graph("random", [Value("a", free), Value("b", free)])
        self.op = Builder(self.graph)
        self.values: list[Value] = list(self.graph.inputs)
        self.seen: list[Value] = []
        """Inner values that may become graph outputs."""

    def any(self) -> Value:
        """A value, mostly a recent one."""
        return self.values[-1 - min(self.draw(st.integers(0, 2)), self.draw(st.integers(0, len(self.values) - 1)))]

    def bounded(self, x: Value) -> Value:
        """So small that f16 holds a sum of its exponentials: it overflows otherwise, until it is not written out."""
        return self.op.Min(x, self.const(8.0)) if self.dtype == np.float16 else x

    def const(self, x: Any) -> Value:
        return self.op.const(np.asarray(x, self.dtype))

    def weight(self, *shape: int) -> Value:
        return self.const(self.rng.standard_normal(shape) * 0.5)

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def either(self, x: Value, y: Value) -> tuple[Value, Value]:
        return (x, y) if self.draw(st.booleans()) else (y, x)

    def note(self, *values: Value) -> Value:
        self.seen += values
        return values[-1]


def pointwise(m: Maker) -> Value:
    op, x = m.op, m.any()
    return m.pick(
        lambda: op.Relu(x), lambda: op.Neg(x), lambda: op.Sigmoid(x), lambda: op.Tanh(x), lambda: op.Erf(x),
        lambda: op.Identity(x), lambda: op.Dropout(x), lambda: op.Abs(x), lambda: op.Softmax(x, axis=m.pick(-1, 1, 2)),
        lambda: op.Clip(x, m.const(-1.0), m.const(m.pick(1.0, 6.0))), lambda: op.Not(op.Less(x, m.any())),
        lambda: op.Where(op.Not(op.Greater(x, m.any())), m.any(), x),
    )()  # fmt: skip


def binary(m: Maker) -> Value:
    x, y = m.either(m.any(), m.pick(m.any, lambda: m.weight(*m.pick(*SMALL)), lambda: m.const(m.pick(0.0, 1.0, 2.0)))())
    return getattr(m.op, m.pick("Add", "Sub", "Mul", "Max", "Min"))(x, y)


def chain_of_casts(m: Maker) -> Value:
    x = m.any()
    for _ in range(m.draw(st.integers(1, 2))):
        x = m.op.Cast(x, to=m.pick(dtypes.f32, dtypes.f64, dtypes.of_numpy(m.dtype)).onnx)
    return m.op.Cast(x, to=dtypes.of_numpy(m.dtype).onnx)


def layer_norm(m: Maker) -> Value:
    op, x = m.op, m.any()
    centred = op.Sub(x, op.ReduceMean(x, [m.pick(-1, 2, 1)], keepdims=1))
    square = m.pick(lambda: op.Pow(centred, m.const(2.0)), lambda: op.Mul(centred, centred))()
    root = op.Sqrt(op.Add(*m.either(op.ReduceMean(square, [-1], keepdims=1), m.const(m.pick(1e-5, 1e-3)))))
    scaled = m.pick(lambda: op.Div(centred, root), lambda: op.Mul(centred, op.Reciprocal(root)))()
    m.note(centred, root, scaled)
    scaled = op.Mul(*m.either(scaled, m.weight(*m.pick((WIDTH,), (1, 1, WIDTH), (ROWS, 1), ()))))
    return op.Add(*m.either(scaled, m.weight(*m.pick((WIDTH,), (1,), (BATCH, ROWS, WIDTH)))))


def rms_norm(m: Maker) -> Value:
    op, x = m.op, m.any()
    mean = op.ReduceMean(op.Pow(x, m.const(m.pick(2.0, 2.0, 4.0))), [-1], keepdims=1)
    root = m.note(op.Sqrt(op.Add(mean, m.const(1e-3))))
    scaled = m.pick(lambda: op.Div(x, root), lambda: op.Mul(x, op.Div(m.const(1.0), root)))()
    return op.Mul(*m.either(scaled, m.weight(*m.pick((WIDTH,), (ROWS, WIDTH)))))


def gelu(m: Maker) -> Value:
    op, x = m.op, m.any()
    if m.draw(st.booleans()):
        x = op.Add(*m.either(x, m.weight(WIDTH)))
    erf = op.Erf(m.pick(lambda: op.Div(x, m.const(2**0.5)), lambda: op.Mul(x, m.const(2**-0.5)))())
    one = m.note(op.Add(*m.either(erf, m.const(m.pick(1.0, 1.0, 2.0)))))
    return m.pick(
        lambda: op.Mul(op.Mul(*m.either(x, one)), m.const(0.5)), lambda: op.Mul(op.Mul(x, m.const(0.5)), one)
    )()


def tanh_gelu(m: Maker) -> Value:
    op, x = m.op, m.any()
    cube = m.pick(lambda: op.Pow(x, m.const(3.0)), lambda: op.Mul(op.Mul(x, x), x))()
    inner = op.Mul(op.Add(*m.either(x, op.Mul(cube, m.const(0.044715)))), m.const((2 / np.pi) ** 0.5))
    return op.Mul(*m.either(op.Mul(x, m.const(0.5)), op.Add(op.Tanh(inner), m.const(1.0))))


def swish(m: Maker) -> Value:
    op, x = m.op, m.any()
    gate = op.Sigmoid(m.pick(lambda: x, lambda: op.Mul(x, m.const(1.702)))())
    return op.Mul(*m.either(x, m.note(gate)))


def hard_swish(m: Maker) -> Value:
    op, x = m.op, m.any()
    gate = op.Clip(op.Add(x, m.const(3.0)), m.const(0.0), m.const(m.pick(6.0, 6.0, 5.0)))
    return op.Mul(x, op.Div(gate, m.const(6.0)))


def linear(m: Maker) -> Value:
    op, x = m.op, m.any()
    product = m.note(op.MatMul(x, m.weight(WIDTH, WIDTH)))
    product = m.pick(
        lambda: op.Add(*m.either(product, m.weight(*m.pick((WIDTH,), (), (ROWS, 1))))),
        lambda: op.Mul(product, m.const(0.5)),
        lambda: product,
    )()
    return m.pick(lambda: op.Relu(product), lambda: op.Add(product, m.any()), lambda: product)()


def gemm(m: Maker) -> Value:
    op = m.op
    flat = op.Reshape(m.any(), [-1, WIDTH])
    weight = m.weight(WIDTH, WIDTH)
    y = m.pick(
        lambda: op.Gemm(flat, op.Transpose(weight, perm=[1, 0]), m.weight(WIDTH)),
        lambda: op.Add(op.Gemm(flat, weight, transB=1), m.weight(WIDTH)),
        lambda: op.Add(op.MatMul(flat, weight), m.weight(WIDTH)),
    )()
    return op.Reshape(y, [-1, ROWS, WIDTH])


def convolution(m: Maker) -> Value:
    op, x = m.op, m.any()
    y = op.Conv(x, m.weight(ROWS, ROWS, 3), m.pick(None, m.weight(ROWS)), pads=[1, 1], kernel_shape=[3])
    if m.draw(st.booleans()):
        y = op.Conv(op.Pad(x, [0, 0, 1, 0, 0, 1]), m.weight(ROWS, ROWS, 3), kernel_shape=[3])
    m.note(y)
    positive = m.const(m.rng.uniform(0.5, 2.0, ROWS))
    y = m.pick(
        lambda: op.BatchNormalization(y, m.weight(ROWS), m.weight(ROWS), m.weight(ROWS), positive, epsilon=1e-3),
        lambda: op.Mul(y, m.weight(*m.pick((ROWS, 1), (1, ROWS, 1), (WIDTH,)))),
        lambda: op.Add(y, m.weight(*m.pick((ROWS, 1), (1, ROWS, 1), ()))),
        lambda: op.Add(y, m.any()),
    )()
    return m.pick(lambda: op.Relu(y), lambda: op.LeakyRelu(y, alpha=0.1), lambda: y)()


def attention(m: Maker) -> Value:
    op, x, heads = m.op, m.any(), 2
    q, k, v = (
        op.Transpose(
            op.Reshape(op.Add(op.MatMul(x, m.weight(WIDTH, WIDTH)), m.weight(WIDTH)), [0, -1, heads, 3]), perm=p
        )
        for p in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = op.MatMul(q, k)
    scores = m.pick(lambda: op.Div(scores, m.const(3**0.5)), lambda: op.Mul(scores, m.const(0.5)), lambda: scores)()
    if m.draw(st.booleans()):
        scores = op.Add(scores, m.weight(*m.pick((1, 1, ROWS, ROWS), (ROWS,), (BATCH, 1, 1, ROWS))))
    weights = m.note(op.Softmax(scores, axis=-1))
    return op.Reshape(op.Transpose(op.MatMul(weights, v), perm=[0, 2, 1, 3]), [0, 0, WIDTH])


def movement(m: Maker) -> Value:
    op, x = m.op, m.any()
    turned = op.Transpose(x, perm=m.pick([0, 2, 1], [2, 1, 0], [1, 2, 0]))
    back = {(0, 2, 1): [0, 2, 1], (2, 1, 0): [2, 1, 0], (1, 2, 0): [2, 0, 1]}
    perm = back[tuple(turned.producer.attrs["perm"])]
    return m.pick(
        lambda: op.Transpose(op.Relu(turned), perm=perm),
        lambda: op.Transpose(turned, perm=perm),
        lambda: op.Reshape(op.Reshape(x, [-1, 3]), op.Shape(x)),
        lambda: op.Squeeze(op.Unsqueeze(x, [1]), [1]),
        lambda: op.Concat(*op.Split(x, [2, 4], axis=2, outputs=2), axis=2),
        lambda: op.Concat(op.Slice(x, [0], [3], [2]), op.Slice(x, [3], [6], [2]), axis=2),
        lambda: op.Expand(x, op.Shape(x)),
        lambda: op.Slice(x, [0], [2**40], [1]),
    )()


def reduced(m: Maker) -> Value:
    """Written-out reductions of an axis: softmax, norms and means."""
    op, x = m.op, m.any()
    exp = op.Exp(m.pick(lambda: m.bounded(x), lambda: op.Sub(x, op.ReduceMax(x, [-1], keepdims=1)))())
    return m.pick(
        lambda: op.Div(exp, op.ReduceSum(exp, [-1], keepdims=1)),
        lambda: op.Div(x, op.Clip(op.ReduceL2(x, [m.pick(-1, 1)], keepdims=1), m.const(1e-3))),
        lambda: op.Mul(op.ReduceMean(x, [2], keepdims=1), x),
        lambda: op.Add(op.GlobalAveragePool(x), x),
        lambda: op.Sub(op.Transpose(op.ReduceSum(op.Transpose(x, perm=[0, 2, 1]), [m.pick(1, 2)]), perm=[0, 2, 1]), x),
    )()


def composed(m: Maker) -> Value:
    """Activations written out."""
    op, x = m.op, m.bounded(m.any())
    soft = m.note(op.Log(op.Add(*m.either(op.Exp(x), m.const(1.0)))))
    return m.pick(
        lambda: op.Mul(x, op.Tanh(op.Softplus(x))),
        lambda: op.Mul(x, op.Tanh(soft)),
        lambda: soft,
        lambda: op.Max(*m.either(x, op.Mul(x, m.const(m.pick(0.1, 2.0))))),
        lambda: op.Add(op.Relu(x), op.Mul(m.weight(ROWS, 1), op.Neg(op.Relu(op.Neg(x))))),
        lambda: op.Relu(op.Clip(x, m.const(-1.0), m.const(6.0))),
        lambda: op.Clip(op.Relu(x), m.const(m.pick(0.0, 0.5)), m.const(6.0)),
        lambda: op.Min(op.Max(x, m.const(-0.5)), m.const(m.pick(0.5, -1.0))),
        lambda: op.Div(m.const(1.0), op.Add(op.Abs(x), m.const(1.0))),
    )()


def chained(m: Maker) -> Value:
    """Moves in a row, with and without something between them."""
    op, x = m.op, m.any()
    first, second = op.Split(x, [3, 3], axis=2, outputs=2)
    return m.pick(
        lambda: op.Slice(op.Slice(op.Concat(x, x, axis=1), [1], [7], [1]), *m.pick(([0], [4]), ([1], [5])), [1]),
        lambda: op.Concat(op.Concat(first, second, axis=2), axis=2),
        lambda: op.Concat(op.Concat(first, op.Relu(second), axis=m.pick(2, 2)), op.Slice(x, [0], [0], [2]), axis=2),
        lambda: op.Concat(op.Neg(second), first, axis=2),
        lambda: op.Add(op.Unsqueeze(op.Gather(x, op.const(m.pick(0, -1)), axis=1), [1]), x),
        lambda: op.Transpose(op.Transpose(x, perm=[1, 2, 0]), perm=[2, 0, 1]),
        lambda: op.Reshape(op.Transpose(op.Reshape(x, [-1, ROWS, 2, 3]), perm=[0, 1, 3, 2]), [0, ROWS, WIDTH]),
        lambda: op.Add(op.Expand(m.weight(1, 1, WIDTH), op.Shape(x)), x),
        lambda: op.Reshape(op.Flatten(x, axis=m.pick(1, 2)), op.Shape(op.Relu(x))),
    )()


def products(m: Maker) -> Value:
    """Products with transposed operands, and operators after a Gemm."""
    op, x, y = m.op, m.any(), m.any()
    flat = op.Reshape(x, [-1, WIDTH])
    scale, positive = m.weight(WIDTH), m.const(m.rng.uniform(0.5, 2.0, WIDTH))
    out = m.pick(
        lambda: op.Tanh(op.Gemm(flat, m.weight(WIDTH, WIDTH), m.weight(WIDTH))),
        lambda: op.Mul(op.Gemm(flat, m.weight(WIDTH, WIDTH), m.weight(WIDTH)), scale),
        lambda: op.BatchNormalization(op.Gemm(flat, m.weight(WIDTH, WIDTH)), scale, m.weight(WIDTH), scale, positive),
        lambda: op.BatchNormalization(op.MatMul(flat, m.weight(WIDTH, WIDTH)), scale, m.weight(WIDTH), scale, positive),
        lambda: op.Transpose(op.Gemm(m.weight(WIDTH, WIDTH), op.Transpose(flat, perm=[1, 0])), perm=[1, 0]),
        lambda: op.Gemm(op.Transpose(op.Transpose(flat, perm=[1, 0]), perm=[1, 0]), m.weight(WIDTH, WIDTH), alpha=0.5),
        lambda: flat,
    )()
    scores = op.MatMul(op.Mul(x, m.const(0.5)), op.Transpose(_full(m, y), perm=[0, 2, 1]))
    return m.pick(lambda: op.Reshape(out, [-1, ROWS, WIDTH]), lambda: op.MatMul(scores, m.weight(ROWS, WIDTH)))()


def _full(m: Maker, x: Value) -> Value:
    return m.op.Add(x, m.values[0])


def skip_norm(m: Maker) -> Value:
    op, total = m.op, m.op.Add(m.any(), _full(m, m.any()))
    m.note(total)
    return m.pick(
        lambda: op.LayerNormalization(total, m.weight(WIDTH), m.weight(WIDTH), axis=-1),
        lambda: op.RMSNormalization(total, m.weight(WIDTH), axis=-1),
        lambda: op.LayerNormalization(op.Add(total, m.weight(WIDTH)), m.weight(WIDTH), axis=m.pick(-1, 2)),
    )()


def rotary(m: Maker) -> Value:
    op, x = m.op, _full(m, m.any())
    half = WIDTH // 2
    left, right = op.Slice(x, [0], [half], [2]), op.Slice(x, [half], [2**40], [2])
    turned = op.Concat(op.Neg(right), left, axis=2)
    angles = m.rng.standard_normal((ROWS, half))
    cos, sin = (m.const(np.concatenate([f(angles)] * 2, -1)) for f in (np.cos, np.sin))
    return op.Add(op.Mul(x, cos), op.Mul(turned, sin))


def quantized(m: Maker) -> Value:
    scale, zero = m.const(0.05), m.op.const(np.asarray(128, np.uint8))
    x = m.op.QuantizeLinear(m.any(), scale, zero)
    if m.draw(st.booleans()):
        x = m.op.QuantizeLinear(m.op.DequantizeLinear(x, scale, zero), scale, zero)
    return m.op.DequantizeLinear(x, scale, zero)


PIECES = (
    pointwise, pointwise, binary, binary, binary, chain_of_casts, layer_norm, rms_norm, gelu, tanh_gelu, swish,
    hard_swish, linear, gemm, convolution, attention, movement, movement, reduced, composed, composed, chained, chained,
    products, products, skip_norm, rotary,
)  # fmt: skip


@st.composite
def models(draw: Any) -> tuple[Model, dict[str, Any]]:
    m = Maker(draw, draw(st.sampled_from([np.float32, np.float32, np.float32, np.float64, np.float16])))
    pieces = PIECES if m.dtype != np.float32 else (*PIECES, quantized)
    for piece in draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=8)):
        value = piece(m)
        if value.producer is not None and value.producer.op_type == "Not":
            value = m.op.Cast(value, to=dtypes.of_numpy(m.dtype).onnx)
        m.values.append(value)
    unread = [v for v in m.values if v.is_dead] or m.values[-1:]
    outputs = dict.fromkeys([*unread, *draw(st.lists(st.sampled_from([*m.values, *m.seen]), max_size=1))])
    for i, value in enumerate(outputs):
        m.graph.add_output(value, f"out{i}")
    feeds = {name: m.rng.standard_normal((BATCH, ROWS, WIDTH)).astype(m.dtype) for name in "ab"}
    model = Model(m.graph, {"": OPSETS[""]})
    normalize(model)
    return model, feeds


def magnified(model: Model, feeds: dict[str, Any], i: int) -> float:
    """The tolerance of output ``i`` in a graph that magnifies rounding: four times what nudges of its inputs do.

    Rows that are nearly constant and are normalized then, or numbers on the border of two quantized ones, answer to the
    last bit of what they come from.
    """
    rng, expected = np.random.default_rng(0), answers(model, feeds)[i]
    found = TOLERANCES[expected.dtype]
    for _ in range(NUDGES):
        nudges = {name: 1 + np.finfo(x.dtype).eps * rng.integers(-2, 3, x.shape) for name, x in feeds.items()}
        got = answers(model, {name: (x * nudges[name]).astype(x.dtype) for name, x in feeds.items()})[i]
        while found < 1 and difference(expected, got, found / 4) is not None:
            found *= 2
    return found


@settings(
    max_examples=EXAMPLES,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(models())
def test_every_level_answers_as_disabled_does(made: tuple[Model, dict[str, Any]]) -> None:
    model, feeds = made
    expected = answers(model, feeds)
    for level in LEVELS:
        for spelling in pipelines.SPELLINGS if level == "extended" else ("portable",):
            result = api.optimize_model(model, level, spelling=spelling)
            verify(result.model.graph, level)
            for i, (a, b) in enumerate(zip(expected, answers(result.model, feeds), strict=True)):
                why = difference(a, b, TOLERANCES.get(a.dtype))
                if why is not None and a.dtype in TOLERANCES:
                    why = difference(a, b, magnified(model, feeds, i))
                assert why is None, f"{level} {spelling}, output {i}: {why}\n{result}"
