"""GroupNormalization and SiLU between convolutions, as image generators have them, by onnx in float64."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import sardonyx
from tests.providers.cpu.running import Array

CHANNELS, GROUPS = 64, 16
SPLIT = f"r = Constant<value_ints = [0, {GROUPS}, -1]>() f = Reshape(c, r) z = Shape(c)"
AFFINE = """one = Constant<value_ints = [-1, 1, 1]>() i = Reshape(n, z) u = Reshape(s, one) v = Reshape(b, one)
    m = Mul(i, u) g = Add(m, v)"""
SPELLINGS = {
    "operator": f"g = GroupNormalization<num_groups = {GROUPS}>(c, s, b)",
    "instance": f"{SPLIT} n = InstanceNormalization(f, ones, zeros) {AFFINE}",
    "means": f"""{SPLIT} a = Constant<value_ints = [2]>() mu = ReduceMean(f, a) d = Sub(f, mu) q = Mul(d, d)
        w = ReduceMean(q, a) t = Add(w, e) k = Sqrt(t) n = Div(d, k) {AFFINE}""",
}
SHAPES = {
    "j": (CHANNELS, CHANNELS, 1, 1), "l": (CHANNELS, CHANNELS, 3, 3), "s": (CHANNELS,), "b": (CHANNELS,),
    "ones": (GROUPS,), "zeros": (GROUPS,), "e": (),
}  # fmt: skip


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(3)
    made = {k: rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:])) for k, shape in SHAPES.items()}
    made |= {"ones": np.ones(GROUPS), "zeros": np.zeros(GROUPS), "e": np.array(1e-5)}
    return {k: np.asarray(v, np.float32) for k, v in made.items()}


def model(spelling: str, sizes: str, kind: str) -> onnx.ModelProto:
    body = f"c = Conv(x, j) {SPELLINGS[spelling]} h = Sigmoid(g) o = Mul(g, h) y = Conv<pads = [1, 1, 1, 1]>(o, l)"
    inputs = ", ".join(f"{kind}[{','.join(map(str, SHAPES[k]))}] {k}" for k in SHAPES)
    graph = f"g ({kind}[{sizes}] x, {inputs}) => ({kind}[A,B,C,D] y) {{ {body} }}"
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {graph}')
    dtype = np.float64 if kind == "double" else np.float32
    made.graph.initializer.extend(onnx.numpy_helper.from_array(v.astype(dtype), k) for k, v in weights().items())
    del made.graph.input[1:]
    return made


@pytest.mark.parametrize("chip", ["haswell", "skylake-avx512", "sapphirerapids", "neoverse-n1"])
@pytest.mark.parametrize("sizes", ["1,64,24,20", "n,64,h,w"], ids=["static", "dynamic"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_between_convolutions(spelling: str, sizes: str, chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", chip)
    x = np.random.default_rng(4).standard_normal((1, CHANNELS, 24, 20)).astype(np.float32) + 2
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = 2
    session = sardonyx.InferenceSession(model(spelling, sizes, "float").SerializeToString(), options)
    (want,) = ReferenceEvaluator(model("operator", sizes, "double")).run(None, {"x": x.astype(np.float64)})
    np.testing.assert_allclose(session.run(None, {"x": x})[0], want, rtol=1e-5, atol=1e-5)
