"""Sizes that are taken to be multiples, where images of several scales are added."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import sardonyx as sx
from sardonyx.errors import InvalidArgument
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.lower import interpret
from sardonyx.lower.analysis.facts import GraphFacts
from sardonyx.lower.analysis.multiples import multiples
from sardonyx.lower.build import lower
from sardonyx.session.compiled_cache import CachedEngine
from tests.comparing import assert_same
from tests.lower.agree import OPSETS, ROUNDING, feeds, parse, part_of

HALVED = "MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>"
DOUBLED = 's = Constant<value = float[4] {1, 1, 2, 2}>() c = Resize<mode = "nearest">(b, , s) y = Add(a, c)'
PYRAMID = f"a = {HALVED}(x) b = {HALVED}(a) {DOUBLED}"
IMAGE, RESULT = "float[n,2,h,w] x", "float[n,2,p,q] y"


def test_broadcasts_are_resolved_by_multiples() -> None:
    graph = parse(PYRAMID, IMAGE, RESULT)
    part, facts = part_of(graph), GraphFacts.of(graph)
    assert "broadcast" in str(facts.shape(graph.outputs[0])[2])
    found = multiples(part, facts)
    assert found is not None and found.shape(part.inputs[0])[2:] == ("4*?h:4", "4*?w:4")
    assert found.shape(graph.outputs[0])[2:] == ("2*?h:4", "2*?w:4")
    lowered = lower(part, found)
    assert [type(g).__name__ for g in lowered.groups] == ["Pool", "Pool", "Resample"]
    program = Program(part.nodes, part.inputs, part.outputs, bind)
    for sizes in ({"n": 2, "h": 8, "w": 12}, {"n": 1, "h": 4, "w": 4}):
        given = feeds(part, sizes)
        for want, got in zip(program.run(given, RunContext()), interpret.run(lowered, given), strict=True):
            assert_same(got, want, ROUNDING)


def test_other_broadcasts_are_left_symbolic() -> None:
    graph = parse(f"{PYRAMID} z = Add(u, v)", f"{IMAGE}, float[n,k] u, float[n,m] v", f"{RESULT}, float[n,o] z")
    found = multiples(part_of(graph), GraphFacts.of(graph))
    assert found is not None
    assert [found.shape(v)[-1] for v in graph.outputs] == ["2*?w:4", "broadcast(k, m)"]


@pytest.mark.parametrize(
    ("body", "inputs", "outputs"),
    [
        (f"a = {HALVED}(x) b = {HALVED}(a) y = Relu(b)", IMAGE, RESULT),
        ("y = Add(x, z)", "float[n,m] x, float[n,k] z", "float[n,p] y"),
        (PYRAMID, "float[n,2,8,12] x", "float[n,2,4,6] y"),
    ],
    ids=["nothing is added", "names may be 1", "numbers"],
)
def test_parts_without_ambiguous_broadcasts_need_no_multiples(body: str, inputs: str, outputs: str) -> None:
    graph = parse(body, inputs, outputs)
    assert multiples(part_of(graph), GraphFacts.of(graph)) is None


@pytest.mark.usefixtures("unverified")
@pytest.mark.parametrize("is_kept", [False, True], ids=["compiled", "kept"])
def test_other_sizes_run_too(is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"<ir_version: 10, opset_import: [{OPSETS}]> g ({IMAGE}) => ({RESULT}) {{ {PYRAMID} }}"
    model, path = onnx.parser.parse_model(text), tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    session = sx.InferenceSession(path)
    if is_kept:
        session = sx.InferenceSession(path)
    assert isinstance(session._sess.engine, CachedEngine) is is_kept
    rng, reference = np.random.default_rng(0), ReferenceEvaluator(model)
    for h, w in ((8, 12), (7, 8), (2, 2), (3, 16), (8, 12)):
        x = rng.standard_normal((1, 2, h, w)).astype("f")
        (got,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(got, reference.run(None, {"x": x})[0])
        assert session.plan({"x": x.shape}).outputs_nbytes == got.nbytes
    with pytest.raises(InvalidArgument):
        session.run(None, {"x": np.zeros((1, 2, 6, 8), "f")})
