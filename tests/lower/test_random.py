"""Random graphs of moving, reducing and computing operators, over free sizes: groups answer as the operators do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Value
from sardonyx.ir.types import TensorType
from sardonyx.ops.infer import infer_node
from tests.lower.agree import compare
from tests.slices import TEST_ALL

EXAMPLES = 2000 if TEST_ALL else 150
BATCH, WIDTH = dims.symbol("batch"), 6


class Maker:
    """One graph in the making."""

    def __init__(self, draw: Callable[[Any], Any], dtype: Any) -> None:
        self.draw, self.dtype = draw, np.dtype(dtype)
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        t = TensorType(dtypes.of_numpy(self.dtype), (BATCH, dims.symbol("rows"), WIDTH))
        self.graph = Graph("random", [Value("a", t), Value("b", t)])
        self.op = Builder(self.graph)
        self.values: list[Value] = list(self.graph.inputs)

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def any(self) -> Value:
        return self.values[-1 - min(self.draw(st.integers(0, 3)), len(self.values) - 1)]

    def axis(self, x: Value) -> int:
        return self.draw(st.integers(0, (x.rank or 1) - 1))

    def weight(self, *shape: int) -> Value:
        return self.op.const(np.asarray(self.rng.standard_normal(shape) * 0.5, self.dtype))

    def add(self, made: Any) -> None:
        """Keep what an operator made, and can be read on."""
        infer_node(self.op.made[-1])
        for v in made if isinstance(made, tuple) else (made,):
            if v.rank and v.dtype is not None and v.dtype.numpy == self.dtype:
                self.values.append(v)


def pointwise(m: Maker, x: Value) -> Any:
    return getattr(m.op, m.pick("Tanh", "Neg", "Sigmoid", "Abs", "Relu", "Gelu"))(x)


def binary(m: Maker, x: Value) -> Any:
    last = x.shape[-1] if x.shape else 1
    alike = [v for v in m.values if v.shape == x.shape]
    other = m.pick(*alike, m.weight(), m.weight(last if isinstance(last, int) else 1))
    return getattr(m.op, m.pick("Add", "Sub", "Mul", "Max"))(*m.pick((x, other), (other, x)))


def transpose(m: Maker, x: Value) -> Any:
    return m.op.Transpose(x, perm=m.draw(st.permutations(range(x.rank or 0))))


def split_axis(m: Maker, x: Value) -> Any:
    """An axis of 6 as 2 by 3."""
    if WIDTH not in (x.shape or ()) or (x.rank or 0) > 4:
        return pointwise(m, x)
    at = (x.shape or ()).index(WIDTH)
    free = [i for i, d in enumerate(x.shape or ()) if not isinstance(d, int)]
    if any(i > at for i in free):
        return transpose(m, x)
    target = [0 if i in free else d for i, d in enumerate(x.shape or ())]
    return m.op.Reshape(x, [*target[:at], 2, 3, *target[at + 1 :]])


def flatten(m: Maker, x: Value) -> Any:
    return m.op.Flatten(x, axis=m.axis(x))


def window(m: Maker, x: Value) -> Any:
    start, step = m.pick((0, 1), (1, 1), (-2, 1), (-1, -1))
    end = 1 << 40 if step > 0 else -(1 << 40)
    return m.op.Slice(x, [start], [end], [m.axis(x)], [step])


def join(m: Maker, x: Value) -> Any:
    alike = [v for v in m.values if v.shape == x.shape]
    return m.op.Concat(x, m.pick(*alike), axis=m.axis(x))


def pad(m: Maker, x: Value) -> Any:
    return m.op.Pad(x, m.pick([1, 0], [0, 2], [1, 1]), m.weight(), [m.axis(x)])


def tile(m: Maker, x: Value) -> Any:
    return m.op.Tile(x, [m.pick(1, 1, 2) for _ in x.shape or ()])


def expand(m: Maker, x: Value) -> Any:
    return m.op.Expand(x, [2, *[1] * (x.rank or 0)]) if (x.rank or 0) < 5 else pointwise(m, x)


def reduction(m: Maker, x: Value) -> Any:
    kind = m.pick("ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp")
    return getattr(m.op, kind)(x, [m.axis(x)], keepdims=m.pick(0, 1, 1))


def softmax(m: Maker, x: Value) -> Any:
    return m.op.Softmax(x, axis=m.axis(x))


def norm(m: Maker, x: Value) -> Any:
    last = x.shape[-1] if x.shape else None
    if not isinstance(last, int):
        return softmax(m, x)
    return m.op.LayerNormalization(x, m.weight(last), axis=-1)


def product(m: Maker, x: Value) -> Any:
    last = x.shape[-1] if x.shape else None
    return m.op.MatMul(x, m.weight(last, m.pick(WIDTH, 4))) if isinstance(last, int) else transpose(m, x)


MOVES = (
    pointwise, pointwise, binary, binary, transpose, split_axis, flatten, window, join, pad, tile, expand, reduction,
    softmax, norm, product,
)  # fmt: skip


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_graphs(data: st.DataObject) -> None:
    m = Maker(data.draw, data.draw(st.sampled_from(("float32", "float64", "float16"))))
    # Halves are not rounded between fused steps: a normalization of rows that are nearly constant enlarges that.
    moves = tuple(move for move in MOVES if move is not norm) if m.dtype == "float16" else MOVES
    for _ in range(data.draw(st.integers(1, 9))):
        x = m.any()
        m.add(m.pick(*moves)(m, x))
    made = [v for v in m.values if v.producer is not None]
    outputs = dict.fromkeys([*made[-1:], *(v for v in made if data.draw(st.integers(0, 3)) == 0)])
    for v in outputs:
        m.graph.add_output(v)
    if outputs:
        compare(m.graph, {"batch": 2, "rows": 3}, {"batch": 1, "rows": 1}, {"batch": 3, "rows": 2})
