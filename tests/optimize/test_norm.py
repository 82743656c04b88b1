"""Normalizations in every way that exporters write them, and what only looks like one."""

from __future__ import annotations

import pytest

from sardonyx.optimize.pattern import attribute
from tests.optimize.agree import apply_and_compare
from tests.optimize.graphs import ops, parse

PASSES = (
    "FuseLayerNorm", "FuseRMSNorm", "FuseNormScale", "FuseNormBias", "FuseNormCast", "FuseNormScale", "FuseNormBias",
    "FuseGroupNorm", "FuseLpNormalization", "FuseGlobalAveragePool", "FuseSoftmax",
)  # fmt: skip

LAST = "a = Constant<value_ints=[-1]>() "
CONSTANTS = (
    LAST + "e = Constant<value_float=1e-5>() two = Constant<value_float=2.0>() one = Constant<value_float=1.0>() "
    "minus = Constant<value_float=-0.5>() half = Constant<value_float=0.5>() "
    "g = Constant<value_floats=[0.5, 1.5, -2.0, 1.0]>() b = Constant<value_floats=[0.1, -0.3, 0.2, 1.0]>() "
)
CENTRED = "m = ReduceMean(x, a) c = Sub(x, m) "
VARIANCE = CENTRED + "s = Mul(c, c) v = ReduceMean(s, a) p = Add(v, e) "
RMS = "s = Pow(x, two) v = ReduceMean(s, a) p = Add(v, e) "
ONE_PASS = (
    "part = Constant<value_float=0.25>() zero = Constant<value_float=0.0>() sx = ReduceSum<keepdims=0>(x, a) "
    "m = Mul(sx, part) xx = Mul(x, x) sxx = ReduceSum<keepdims=0>(xx, a) mm = Mul(part, sxx) q = Mul(m, m) "
    "d = Sub(mm, q) v = Max(zero, d) "
)

LAYER_NORMS = {
    "torch, Pow and Div": CENTRED + "s = Pow(c, two) v = ReduceMean(s, a) p = Add(e, v) r = Sqrt(p) n = Div(c, r) "
    "t = Mul(n, g) y = Add(t, b)",
    "Mul and Reciprocal": VARIANCE + "r = Sqrt(p) i = Reciprocal(r) n = Mul(i, c) t = Mul(g, n) y = Add(b, t)",
    "a power of -1/2": VARIANCE + "i = Pow(p, minus) n = Mul(c, i) t = Mul(n, g) y = Add(t, b)",
    "a power of 1/2": VARIANCE + "r = Pow(p, half) n = Div(c, r) t = Mul(n, g) y = Add(t, b)",
    "one over the root": VARIANCE + "r = Sqrt(p) i = Div(one, r) n = Mul(c, i) t = Mul(n, g) y = Add(t, b)",
    "keras, scale with the root": VARIANCE + "r = Sqrt(p) i = Reciprocal(r) k = Mul(i, g) t = Mul(c, k) y = Add(t, b)",
    "tf, multiplied out": VARIANCE + "r = Sqrt(p) i = Reciprocal(r) k = Mul(i, g) mk = Mul(m, k) o = Sub(b, mk) "
    "xk = Mul(x, k) y = Add(xk, o)",
    "tf, the difference taken twice": CENTRED + "c2 = Sub(x, m) s = Mul(c2, c2) v = ReduceMean(s, a) p = Add(v, e) "
    "r = Sqrt(p) n = Div(c, r) t = Mul(n, g) y = Add(t, b)",
    "tf, means as poolings": "m = GlobalAveragePool(x) c = Sub(x, m) s = Mul(c, c) v = GlobalAveragePool(s) "
    "p = Add(v, e) r = Sqrt(p) k = Div(g, r) mk = Mul(m, k) o = Sub(b, mk) xk = Mul(x, k) y = Add(xk, o)",
    "without a bias": VARIANCE + "r = Sqrt(p) n = Div(c, r) y = Mul(n, g)",
    "bare": VARIANCE + "r = Sqrt(p) y = Div(c, r)",
    "scale with leading ones": "l = Constant<value_ints=[1,1,4]>() g3 = Reshape(g, l) " + VARIANCE
    + "r = Sqrt(p) n = Div(c, r) t = Mul(n, g3) y = Add(t, b)",
}  # fmt: skip


@pytest.mark.parametrize("body", LAYER_NORMS.values(), ids=LAYER_NORMS.keys())
def test_layer_norm(body: str) -> None:
    model = parse(CONSTANTS + body, inputs="float[2,3,4] x", outputs="float[2,3,4] y")
    apply_and_compare(model, *PASSES)
    assert ops(model.graph) == ["LayerNormalization"]


FIRST = CONSTANTS.replace("value_ints=[-1]", "value_ints=[1]") + "l = Constant<value_ints=[4,1]>() "
FIRST += "g2 = Reshape(g, l) b2 = Reshape(b, l) "
AXIS_ONE = {
    "two passes": VARIANCE + "r = Sqrt(p) n = Div(c, r) t = Mul(n, g2) y = Add(t, b2)",
}


@pytest.mark.parametrize("body", AXIS_ONE.values(), ids=AXIS_ONE.keys())
def test_a_norm_over_an_inner_axis_is_put_between_transposes(body: str) -> None:
    model = parse(FIRST + body, inputs="float[2,4,3] x", outputs="float[2,4,3] y")
    apply_and_compare(model, *PASSES)
    assert ops(model.graph) == ["Transpose", "LayerNormalization", "Transpose"]
    assert all(out.dtype is not None and out.rank == 3 for node in model.graph.nodes for out in node.outputs)


RMS_NORMS = {
    "llama": RMS + "r = Sqrt(p) i = Reciprocal(r) n = Mul(x, i) y = Mul(g, n)",
    "one over the root": RMS + "r = Sqrt(p) i = Div(one, r) n = Mul(x, i) y = Mul(n, g)",
    "Div": RMS + "r = Sqrt(p) n = Div(x, r) y = Mul(n, g)",
    "Mul": "s = Mul(x, x) v = ReduceMean(s, a) p = Add(v, e) i = Pow(p, minus) n = Mul(x, i) y = Mul(n, g)",
    "scale with the root": RMS + "i = Pow(p, minus) k = Mul(i, g) y = Mul(x, k)",
    "bare": RMS + "r = Sqrt(p) y = Div(x, r)",
}


@pytest.mark.parametrize("body", RMS_NORMS.values(), ids=RMS_NORMS.keys())
def test_rms_norm(body: str) -> None:
    model = parse(CONSTANTS + body, inputs="float[2,3,4] x", outputs="float[2,3,4] y")
    apply_and_compare(model, *PASSES)
    assert ops(model.graph) == ["RMSNormalization"]


HALF = {
    "llama": ("RMSNormalization", "x = Cast<to=1>(h) " + RMS + "r = Sqrt(p) n = Div(x, r) w = Cast<to=10>(n) "
              "g16 = Cast<to=10>(g) y = Mul(w, g16)"),
    "layer norm in f32": ("LayerNormalization", "x = Cast<to=1>(h) b0 = Constant<value_floats=[0.5,0.25,2.0,-1.0]>() "
                          + VARIANCE + "r = Sqrt(p) n = Div(c, r) t = Mul(n, g) u = Add(t, b0) y = Cast<to=10>(u)"),
}  # fmt: skip


@pytest.mark.parametrize(("op_type", "body"), HALF.values(), ids=HALF.keys())
def test_norms_of_halves_take_the_casts_in(op_type: str, body: str) -> None:
    model = parse(CONSTANTS + body, inputs="float16[2,3,4] h", outputs="float16[2,3,4] y")
    apply_and_compare(model, *PASSES, rtol=2e-3, atol=2e-3)
    assert ops(model.graph) == [op_type]


def test_a_scale_that_half_precision_would_round_keeps_its_casts() -> None:
    body = "x = Cast<to=1>(h) " + VARIANCE + "r = Sqrt(p) n = Div(c, r) t = Mul(n, g) u = Add(t, b) y = Cast<to=10>(u)"
    model = parse(CONSTANTS + body, inputs="float16[2,3,4] h", outputs="float16[2,3,4] y")
    report = apply_and_compare(model, *PASSES, rtol=2e-3, atol=2e-3)
    assert ops(model.graph) == ["Cast", "LayerNormalization", "Cast"]
    assert any("rounded" in d.reason for d in report.declined)


SPATIAL = "a = Constant<value_ints=[2,3]>() e = Constant<value_float=1e-5>() " + VARIANCE + "r = Sqrt(p) n = Div(c, r) "
PER_CHANNEL = "q = Constant<value_floats=[0.5,2.0,-1.0,3.0]>() l = Constant<value_ints=[1,4,1,1]>() w = Reshape(q, l) "


def test_a_norm_over_the_last_two_axes() -> None:
    body = SPATIAL + (
        "l = Constant<value_ints=[2,2]>() q = Constant<value_floats=[0.5,2.0,-1.0,3.0]>() w = Reshape(q, l) "
        "t = Mul(n, w) y = Add(t, w)"
    )
    model = parse(body, inputs="float[1,4,2,2] x", outputs="float[1,4,2,2] y")
    apply_and_compare(model, *PASSES)
    assert ops(model.graph) == ["LayerNormalization"]
    assert attribute(next(iter(model.graph.nodes)), "axis") == 2


def test_a_norm_per_channel_is_an_instance_norm() -> None:
    model = parse(
        PER_CHANNEL + SPATIAL + "t = Mul(n, w) y = Add(t, w)", inputs="float[2,4,3,5] x", outputs="float[2,4,3,5] y"
    )
    apply_and_compare(model, *PASSES)
    assert ops(model.graph) == ["InstanceNormalization"]


GROUPS = (
    "d = Constant<value_ints=[0,2,-1]>() f = Reshape(x, d) one = Constant<value_floats=[1.0,1.0]>() "
    "zero = Constant<value_floats=[0.0,0.0]>() i = InstanceNormalization<epsilon=0.001>(f, one, zero) "
)


MEANS = (
    "e = Constant<value_float=1e-3>() m = ReduceMean(f, a) c = Sub(f, m) s = Mul(c, c) v = ReduceMean(s, a) "
    "p = Add(v, e) r = Sqrt(p) i = Div(c, r) "
)
GROUP_NORMS = {
    "torch": GROUPS,
    "means over one axis": "d = Constant<value_ints=[0,2,-1]>() f = Reshape(x, d) a = Constant<value_ints=[2]>() "
    + MEANS,
    "means over two axes": "d = Constant<value_ints=[0,2,2,-1]>() f = Reshape(x, d) a = Constant<value_ints=[2,3]>() "
    + MEANS,
    "means over all axes of an image": "d = Constant<value_ints=[0,2,2,3,5]>() f = Reshape(x, d) "
    "a = Constant<value_ints=[-3,-2,-1]>() " + MEANS,
}
JOINED = "k = Constant<value_ints=[2,4,3,5]>() j = Reshape(i, k) t = Mul(j, w) y = Add(t, w)"


@pytest.mark.parametrize("groups", GROUP_NORMS.values(), ids=GROUP_NORMS.keys())
def test_group_norm(groups: str) -> None:
    model = parse(PER_CHANNEL + groups + JOINED, inputs="float[2,4,3,5] x", outputs="float[2,4,3,5] y")
    apply_and_compare(model, *PASSES)
    assert ops(model.graph) == ["GroupNormalization"]
    assert next(iter(model.graph.nodes)).attrs["num_groups"] == 2


def test_a_norm_of_parts_of_groups_is_no_group_norm() -> None:
    body = "d = Constant<value_ints=[0,2,2,-1]>() f = Reshape(x, d) a = Constant<value_ints=[3]>() " + MEANS
    model = parse(PER_CHANNEL + body + JOINED, inputs="float[2,4,3,5] x", outputs="float[2,4,3,5] y")
    apply_and_compare(model, *PASSES)
    assert "GroupNormalization" not in ops(model.graph)


OTHERS = {
    "LpNormalization": LAST + "e = Constant<value_float=1e-12>() l = ReduceL2(x, a) k = Max(l, e) y = Div(x, k)",
    "LpNormalization by Clip": LAST + "e = Constant<value_float=1e-12>() s = Shape(x) l = ReduceL2(x, a) "
    "k = Clip(l, e) w = Expand(k, s) y = Div(x, w)",
    "Softmax of jax": LAST + "i = Constant<value_floats=[1.0]>() z = Constant<value_floats=[0.0]>() "
    "f = Div(i, z) low = Neg(f) m = ReduceMax<keepdims=0>(x, a) h = Max(low, m) w = Constant<value_ints=[-1,1]>() "
    "h2 = Reshape(h, w) d = Sub(x, h2) p = Exp(d) t = ReduceSum<keepdims=0>(p, a) t2 = Reshape(t, w) y = Div(p, t2)",
    "Softmax": LAST + "m = ReduceMax(x, a) d = Sub(x, m) p = Exp(d) t = ReduceSum(p, a) y = Div(p, t)",
}


@pytest.mark.parametrize(("name", "body"), OTHERS.items())
def test_other_norms(name: str, body: str) -> None:
    model = parse(body)
    apply_and_compare(model, *PASSES)
    assert ops(model.graph) == [name.split(maxsplit=1)[0]]


def test_a_mean_over_the_spatial_axes_is_a_pooling() -> None:
    model = parse(
        "a = Constant<value_ints=[-1,-2]>() y = ReduceMean(x, a)", inputs="float[2,4,3,5] x", outputs="float[2,4,1,1] y"
    )
    apply_and_compare(model, *PASSES)
    assert ops(model.graph) == ["GlobalAveragePool"]


TAIL = "r = Sqrt(p) n = Div(c, r) t = Mul(n, g) y = Add(t, b)"
NEAR_MISSES = {
    "epsilon is not a scalar constant": "m = ReduceMean(x, a) c = Sub(x, m) s = Mul(c, c) v = ReduceMean(s, a) "
    "p = Add(v, z) " + TAIL,
    "also read by": VARIANCE + TAIL + " z2 = Neg(c)",
    "scale does not fit the normalized axes": "a1 = Constant<value_ints=[1]>() m = ReduceMean(x, a1) c = Sub(x, m) "
    "s = Mul(c, c) v = ReduceMean(s, a1) p = Add(v, e) r = Sqrt(p) i = Reciprocal(r) k = Mul(i, g) y = Mul(c, k)",
    "not divided by its 4 terms": ONE_PASS.replace("0.25", "0.125") + "m3 = Unsqueeze(m, a) c = Sub(x, m3) "
    "v3 = Unsqueeze(v, a) p = Add(v3, e) " + TAIL,
    "a difference of squares": ONE_PASS + "w = Constant<value_ints=[0,3,1]>() m3 = Reshape(m, w) c = Sub(x, m3) "
    "v3 = Reshape(v, w) p = Add(v3, e) r = Sqrt(p) k = Div(g, r) t = Mul(c, k) y = Add(t, b)",
    "which LayerNormalization rounds otherwise": "m = ReduceMean(x, a) xx = Mul(x, x) mm = ReduceMean(xx, a) "
    "q = Mul(m, m) v = Sub(mm, q) c = Sub(x, m) p = Add(v, e) " + TAIL,
    "different axes": "a1 = Constant<value_ints=[1]>() m = ReduceMean(x, a) c = Sub(x, m) s = Mul(c, c) "
    "v = ReduceMean(s, a1) p = Add(v, e) " + TAIL,
}  # fmt: skip


@pytest.mark.parametrize(("reason", "body"), NEAR_MISSES.items())
def test_near_misses_are_reported_with_a_reason(reason: str, body: str) -> None:
    outputs = "float[2,3,4] y" + (", float[2,3,4] z2" if "z2" in body else "")
    model = parse(CONSTANTS + body, inputs="float[2,3,4] x, float z", outputs=outputs)
    report = apply_and_compare(model, *PASSES)
    assert "LayerNormalization" not in ops(model.graph)
    assert any(reason in d.reason for d in report.declined), report.declined


def test_a_mean_whose_axis_comes_back_in_another_place_is_not_of_a_norm() -> None:
    body = "m = ReduceMean<keepdims=0>(x, a1) xx = Mul(x, x) mm = ReduceMean<keepdims=0>(xx, a1) q = Mul(m, m) "
    body += "v = Sub(mm, q) m3 = Unsqueeze(m, a) c = Sub(x, m3) v3 = Unsqueeze(v, a) p = Add(v3, e) "
    body += "r = Sqrt(p) y = Div(c, r)"
    body = "a1 = Constant<value_ints=[1]>() " + body
    model = parse(CONSTANTS + body, inputs="float[3,3,3] x", outputs="float[3,3,3] y")
    report = apply_and_compare(model, *PASSES)
    assert "LayerNormalization" not in ops(model.graph)
    assert any("back in their places" in d.reason for d in report.declined)


def test_a_graph_output_inside_stays() -> None:
    model = parse(CONSTANTS + VARIANCE + TAIL, inputs="float[2,3,4] x", outputs="float[2,3,4] y, float[2,3,4] c")
    report = apply_and_compare(model, *PASSES)
    assert "LayerNormalization" not in ops(model.graph)
    assert any("graph output" in d.reason for d in report.declined)
