"""Small models of every kind that runs differently, from seeds, with feeds of random shapes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx.numpy_helper import from_array

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
MAX_ELEMENTS = 1 << 20
"""Of a feed of a model that is given: sizes that make larger ones are drawn again."""


class Model:
    """Bytes of a model, and feeds for it by number."""

    def __init__(self, name: str, content: bytes, feeds: Callable[[int], Feeds]) -> None:
        self.name, self.content, self.feeds = name, content, feeds


def _parsed(text: str, **constants: Array) -> bytes:
    made = onnx.parser.parse_model(f"{HEAD}\n{text}")
    made.graph.initializer.extend(from_array(array, name) for name, array in constants.items())
    return made.SerializeToString()


def _normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def perceptron(rng: np.random.Generator, pick: random.Random) -> tuple[bytes, Callable[[np.random.Generator], Feeds]]:
    width, hidden = pick.choice([8, 24, 64]), pick.choice([16, 48, 130])
    text = f"""g (float[n, {width}] x) => (float[n, {width}] y)
    {{ h = MatMul(x, w) b = Add(h, c) r = {pick.choice(["Relu", "Tanh", "Sigmoid"])}(b) y = MatMul(r, v) }}"""
    made = _parsed(text, w=_normal(rng, width, hidden), c=_normal(rng, hidden), v=_normal(rng, hidden, width))
    return made, lambda r: {"x": _normal(r, int(r.integers(0, 400)), width)}


def image_net(rng: np.random.Generator, pick: random.Random) -> tuple[bytes, Callable[[np.random.Generator], Feeds]]:
    channels, stride = pick.choice([4, 16, 33]), pick.choice([1, 2])
    text = f"""g (float[1, 3, h, w] x) => (float[1, {channels}, p, q] y)
    {{ a = Conv<pads = [1, 1, 1, 1], strides = [{stride}, {stride}]>(x, f) b = Relu(a)
       c = Conv<pads = [1, 1, 1, 1]>(b, g) d = Add(b, c)
       y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(d) }}"""
    made = _parsed(text, f=_normal(rng, channels, 3, 3, 3), g=_normal(rng, channels, channels, 3, 3))
    return made, lambda r: {"x": _normal(r, 1, 3, *map(int, r.integers(8, 90, 2)))}


def attention(rng: np.random.Generator, pick: random.Random) -> tuple[bytes, Callable[[np.random.Generator], Feeds]]:
    width = pick.choice([16, 40])
    text = f"""g (float[b, n, {width}] x) => (float[b, n, {width}] y)
    {{ q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) t = Transpose<perm = [0, 2, 1]>(k)
       s = MatMul(q, t) p = Softmax<axis = -1>(s) a = MatMul(p, v) r = Add(a, x)
       y = LayerNormalization(r, one, zero) }}"""
    weights = {name: _normal(rng, width, width) / width for name in ("wq", "wk", "wv")}
    made = _parsed(text, **weights, one=np.ones(width, np.float32), zero=_normal(rng, width))
    return made, lambda r: {"x": _normal(r, *map(int, r.integers(1, (5, 120))), width)}


def counted(rng: np.random.Generator, pick: random.Random) -> tuple[bytes, Callable[[np.random.Generator], Feeds]]:
    """Data decide sizes in the middle."""
    text = f"""g (float[n, m] x) => (float[k] y, float[n] z)
    {{ i = Greater(x, t) at = NonZero(i) r = Transpose<perm = [1, 0]>(at) g = GatherND(x, r)
       y = {pick.choice(["Exp", "Neg", "Sqrt"])}(g) z = ReduceSum<keepdims = 0>(x, axes) }}"""
    made = _parsed(text, t=np.float32([0.5]), axes=np.array([1]))
    return made, lambda r: {"x": _normal(r, *map(int, r.integers(1, 60, 2)))}


def looped(rng: np.random.Generator, pick: random.Random) -> tuple[bytes, Callable[[np.random.Generator], Feeds]]:
    text = f"""g (float[n] x, int64 trips, bool flag) => (float[n] y, float[t, n] all)
    {{ yes = Constant<value = bool {{1}}>()
       s, all = Loop<body = body (int64 i, bool c, float[n] a) => (bool d, float[n] b, float[n] e)
         {{ d = Identity(c) h = Mul(a, w) b = {pick.choice(["Cos", "Sin", "Tanh"])}(h) e = Neg(b) }}>(trips, yes, x)
       y = If<then_branch = big () => (float[n] u) {{ u = Add(s, s) }},
              else_branch = small () => (float[n] v) {{ v = Sub(s, x) }}>(flag) }}"""
    made = _parsed(text, w=np.float32([pick.uniform(0.5, 1.5)]))

    def feeds(r: np.random.Generator) -> Feeds:
        flag = np.array(bool(r.integers(2)))
        return {"x": _normal(r, int(r.integers(1, 500))), "trips": np.array(r.integers(0, 9)), "flag": flag}

    return made, feeds


def recurrent(rng: np.random.Generator, pick: random.Random) -> tuple[bytes, Callable[[np.random.Generator], Feeds]]:
    width, hidden = pick.choice([5, 20]), pick.choice([8, 24])
    text = f"""g (float[t, b, {width}] x) => (float[t, 1, b, {hidden}] y)
    {{ y, h = GRU<hidden_size = {hidden}>(x, w, r) }}"""
    made = _parsed(text, w=_normal(rng, 1, 3 * hidden, width), r=_normal(rng, 1, 3 * hidden, hidden) / hidden)
    return made, lambda r: {"x": _normal(r, *map(int, r.integers(1, (40, 5))), width)}


KINDS = (perceptron, image_net, attention, counted, looped, recurrent)


def model_of(seed: int) -> Model:
    """That of a seed: kinds in turn."""
    rng, pick = np.random.default_rng(seed), random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    content, feeds = kind(rng, pick)
    return Model(f"{kind.__name__} {seed}", content, lambda number: feeds(np.random.default_rng([seed, number])))


def endless() -> bytes:
    """Runs for hours unless it is stopped; its feed is a number of trips, and 1."""
    text = """g (float[n] x, int64 trips) => (float[n] y)
    { yes = Constant<value = bool {1}>()
      y = Loop<body = body (int64 i, bool c, float[n] a) => (bool d, float[n] b)
        { d = Identity(c) h = Cos(a) b = Add(h, a) }>(trips, yes, x) }"""
    return _parsed(text)


def model_in(path: Path) -> Model:
    """A file's, with random feeds; sizes that are open are drawn from 1 to 64."""
    proto = onnx.load(path, load_external_data=False)
    constants = {t.name for t in proto.graph.initializer}
    inputs = [i for i in proto.graph.input if i.name not in constants]

    def feeds(number: int) -> Feeds:
        rng = np.random.default_rng(number)
        sizes: dict[str, int] = {}
        return {i.name: _feed(i, rng, sizes) for i in inputs}

    return Model(path.name, path.read_bytes(), feeds)


def _feed(given: onnx.ValueInfoProto, rng: np.random.Generator, sizes: dict[str, int]) -> Array:
    tensor = given.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    shape: list[int] = []
    for d in tensor.shape.dim:
        size = d.dim_value if d.HasField("dim_value") else sizes.setdefault(d.dim_param, int(rng.integers(1, 65)))
        shape.append(min(size, max(MAX_ELEMENTS // max(int(np.prod(shape)), 1), 1)) if d.dim_param else size)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    raise ValueError(f"input {given.name!r} takes {dtype}, for which no feed is drawn")
