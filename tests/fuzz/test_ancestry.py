"""What computes a result, through bodies and local functions."""

from __future__ import annotations

from onnx.parser import parse_model

from fuzz.ancestry import computed_by

TEXT = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]> g (float[3] x, bool c) => (y, z) {
    a = Sqrt(x) b = local.F(a)
    y = If(c) <then_branch = t () => (p) { p = Floor(b) }, else_branch = e () => (q) { q = Neg(x) }>
    z = Abs(x)
}
<domain: "local", opset_import: ["" : 21]> F (v) => (w) { u = Softmax(v) w = Exp(u) }"""


def test_operators_that_a_result_depends_on() -> None:
    model = parse_model(TEXT)
    assert computed_by(model, "If") == {"If", "Floor", "Neg", "F", "Softmax", "Exp", "Sqrt"}
    assert computed_by(model, "Floor") == {"Floor", "F", "Softmax", "Exp", "Sqrt"}
    assert computed_by(model, "Abs") == {"Abs"}
    assert computed_by(model, "Relu") == set()
