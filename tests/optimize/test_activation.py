"""Activations in every way that exporters write them, and what only looks like one."""

from __future__ import annotations

import itertools

import pytest

from tests.optimize.agree import apply_and_compare
from tests.optimize.graphs import ops, parse

PASSES = (
    "FuseGelu", "FuseTanhGelu", "FuseSoftplus", "FuseMish", "FuseHardSigmoid", "FuseHardSwish", "FuseSwish",
    "FuseLeakyRelu", "FusePRelu",
)  # fmt: skip

NUMBERS = {
    "one": 1.0, "half": 0.5, "two": 2.0, "three": 3.0, "zero": 0.0, "six": 6.0, "sixth": 1 / 6, "tenth": 0.1,
    "root": 1.4142135, "inv": 0.70710677, "neg": -0.70710677, "k": 0.044715, "w": 0.7978846, "kw": 0.0356774,
    "q": 1.702, "twelve": 1.2,
}  # fmt: skip
CONSTANTS = "".join(f"{name} = Constant<value_float={value!r}>() " for name, value in NUMBERS.items())

ERF = {"Div": "d = Div(x, root) t = Erf(d) ", "Mul": "d = Mul(inv, x) t = Erf(d) "}
TWICE = {"first": "u = Add(t, one) ", "last": "u = Add(one, t) "}
HALVES = {
    "x half first": "h = Mul(x, half) y = Mul(h, u)",
    "product first": "h = Mul(x, u) y = Mul(h, half)",
    "u half first": "h = Mul(half, u) y = Mul(x, h)",
    "over two": "h = Mul(u, x) y = Div(h, two)",
    "x over two": "h = Div(x, two) y = Mul(u, h)",
}
ERF_FORMS = {" ".join(k): "".join(form[n] for form, n in zip((ERF, TWICE, HALVES), k, strict=True))
             for k in itertools.product(ERF, TWICE, HALVES)}  # fmt: skip
ERF_FORMS |= {
    "complement": "d = Mul(x, neg) t = Erf(d) u = Sub(one, t) h = Mul(x, half) y = Mul(h, u)",
    "of the negative": "n = Neg(x) d = Div(n, root) t = Erf(d) u = Sub(one, t) h = Mul(x, half) y = Mul(h, u)",
    "half inside": "d = Div(x, root) t = Erf(d) s = Mul(t, half) u = Add(s, half) y = Mul(x, u)",
}

INNER = {
    "GPT-2": "c = Pow(x, three) i = Mul(k, c) s = Add(x, i) z = Mul(w, s) ",
    "x*x*x": "p = Mul(x, x) c = Mul(p, x) i = Mul(c, k) s = Add(i, x) z = Mul(s, w) ",
    "flax": "p = Mul(k, x) p2 = Mul(x, p) i = Mul(x, p2) s = Add(x, i) z = Mul(w, s) ",
    "gelu_fast": "p = Mul(x, k) p2 = Mul(p, x) i = Add(p2, one) a = Mul(x, w) z = Mul(a, i) ",
    "growth": "p = Mul(x, x) p2 = Mul(p, k) i = Add(one, p2) a = Mul(x, i) z = Mul(a, w) ",
    "multiplied out": "c = Pow(x, three) i = Mul(c, kw) a = Mul(x, w) z = Add(a, i) ",
}
TANH_FORMS = {f"{a} {b}": f"{inner}t = Tanh(z) u = Add(t, one) {half}"
              for (a, inner), (b, half) in itertools.product(INNER.items(), HALVES.items())}  # fmt: skip


@pytest.mark.parametrize("body", [*ERF_FORMS.values(), *TANH_FORMS.values()], ids=[*ERF_FORMS, *TANH_FORMS])
def test_gelu(body: str) -> None:
    model = parse(CONSTANTS + body)
    apply_and_compare(model, *PASSES)
    assert ops(model.graph) == ["Gelu"]
    approximate = next(iter(model.graph.nodes)).attrs.get("approximate", "none")
    assert approximate == ("tanh" if "Tanh" in body else "none")


OTHERS = {
    "Swish": "s = Sigmoid(x) y = Mul(s, x)",
    "Swish of 1.702": "a = Mul(q, x) s = Sigmoid(a) y = Mul(x, s)",
    "Swish by Exp": "n = Neg(x) p = Exp(n) d = Add(p, one) y = Div(x, d)",
    "Softplus": "p = Exp(x) d = Add(one, p) y = Log(d)",
    "Mish": "s = Softplus(x) t = Tanh(s) y = Mul(x, t)",
    "Mish by Exp": "p = Exp(x) d = Add(one, p) s = Log(d) t = Tanh(s) y = Mul(x, t)",
    "HardSigmoid": "a = Add(x, three) c = Clip(a, zero, six) y = Div(c, six)",
    "HardSigmoid by Min": "a = Add(x, three) r = Relu(a) c = Min(r, six) y = Mul(c, sixth)",
    "HardSigmoid inside": "a = Mul(x, tenth) b = Add(a, half) y = Clip(b, zero, one)",
    "HardSwish, paddle": "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
    "HardSwish, torch": "s = HardSigmoid<alpha=0.16666667, beta=0.5>(x) y = Mul(x, s)",
    "HardSwish, gate first": "a = Add(x, three) c = Clip(a, zero, six) g = Div(c, six) y = Mul(g, x)",
    "HardSwish, keras": "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, sixth) y = Mul(m, c)",
    "LeakyRelu": "a = Mul(x, tenth) y = Max(a, x)",
    "LeakyRelu by Where": "g = Greater(x, zero) a = Mul(x, twelve) y = Where(g, x, a)",
    "PRelu, keras": "sl = Constant<value_floats=[0.1,0.2,0.3]>() r = Relu(x) n = Neg(x) m = Relu(n) a = Mul(m, sl) "
    "b = Neg(a) y = Add(r, b)",
    "PRelu, negative slope": "sl = Constant<value_floats=[-0.1,-0.2,-0.3]>() r = Relu(x) n = Neg(x) m = Relu(n) "
    "a = Mul(sl, m) y = Add(r, a)",
    "PRelu, mxnet": "sl = Constant<value_floats=[0.1,0.2,0.3]>() r = Relu(x) n = Abs(x) m = Sub(x, n) a = Mul(sl, m) "
    "h = Mul(a, half) y = Add(r, h)",
}  # fmt: skip


@pytest.mark.parametrize(("name", "body"), OTHERS.items())
def test_other_activations(name: str, body: str) -> None:
    model = parse(CONSTANTS + body)
    apply_and_compare(model, *PASSES)
    assert ops(model.graph) == [name.replace(",", "").split()[0]]


NEAR_MISSES = {
    "gelu with another root": "bad = Constant<value_float=1.5>() d = Div(x, bad) t = Erf(d) u = Add(t, one) "
    "h = Mul(x, half) y = Mul(h, u)",
    "gelu of two values": "n = Neg(x) d = Div(n, root) t = Erf(d) u = Add(t, one) h = Mul(x, half) y = Mul(h, u)",
    "hard swish of another bound": "a = Add(x, three) c = Clip(a, zero, three) m = Mul(x, c) y = Div(m, six)",
    "leaky with a slope above one": "a = Mul(x, twelve) y = Max(a, x)",
    "sigmoid of another value": "n = Neg(x) s = Sigmoid(n) y = Mul(x, s)",
}  # fmt: skip


@pytest.mark.parametrize("body", NEAR_MISSES.values(), ids=NEAR_MISSES.keys())
def test_near_activations_are_kept(body: str) -> None:
    model = parse(CONSTANTS + body)
    before = [op for op in ops(model.graph) if op != "Constant"]
    apply_and_compare(model, *PASSES)
    assert ops(model.graph) == before


def test_a_constant_that_adds_a_dimension_is_not_dropped() -> None:
    body = (
        "l = Constant<value_ints=[1,1,1]>() h3 = Reshape(half, l) d = Div(x, root) t = Erf(d) u = Add(t, one) "
        "m = Mul(x, u) y = Mul(m, h3)"
    )
    model = parse(CONSTANTS + body, outputs="float[1,2,3] y")
    report = apply_and_compare(model, *PASSES)
    assert "Gelu" not in ops(model.graph)
    assert any("rank" in d.reason for d in report.declined)


def test_an_inner_value_with_another_reader_stays() -> None:
    model = parse("s = Sigmoid(x) y = Mul(x, s) z = Neg(s)", outputs="float[2,3] y, float[2,3] z")
    report = apply_and_compare(model, *PASSES)
    assert ops(model.graph) == ["Sigmoid", "Mul", "Neg"]
    assert any("also read" in d.reason for d in report.declined)
