"""What ``sardonyx.optimize_model`` promises: levels, spellings, names of passes, reports, files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.ir.graph import Model
from sardonyx.model.save import model_to_proto
from sardonyx.optimize import api, manager, pipelines
from tests.optimize.graphs import parse

GELU = (
    "d = Constant<value_float=1.4142135>() h = Constant<value_float=0.5>() o = Constant<value_float=1.0>() "
    "b = Constant<value_floats=[0.1, 0.2, 0.3]>() s = Add(x, b) q = Div(s, d) e = Erf(q) p = Add(e, o) "
    "m = Mul(s, p) y = Mul(m, h)"
)


def gelu() -> Model:
    return parse(GELU)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = sardonyx.GraphOptimizationLevel.ORT_DISABLE_ALL
    return sardonyx.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


@pytest.mark.parametrize("spelling", pipelines.SPELLINGS)
@pytest.mark.parametrize("level", pipelines.LEVELS)
def test_every_level_and_spelling_gives_the_same_answers(level: str, spelling: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    result = sardonyx.optimize_model(gelu(), level, spelling=spelling)
    onnx.checker.check_model(result.to_proto(), full_check=spelling == "portable")
    np.testing.assert_allclose(run(result.to_proto(), x), run(model_to_proto(gelu()), x), rtol=1e-5, atol=1e-6)
    before, after = result.node_counts
    assert after <= before and (after < before) is (level != "disabled")


def test_spellings() -> None:
    assert sardonyx.optimize_model(gelu(), spelling="portable").statistics() == {"Add": 1, "Gelu": 1}
    assert sardonyx.optimize_model(gelu()).statistics() == {"com.microsoft.BiasGelu": 1}
    assert "Erf" in sardonyx.optimize_model(gelu(), "basic").statistics()
    domains = {node.domain for node in sardonyx.optimize_model(gelu(), spelling="portable").model.graph.nodes}
    assert domains == {""}


def test_a_contrib_model_loads_in_onnxruntime(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    x = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    for spelling in pipelines.SPELLINGS:
        sardonyx.optimize_model(gelu(), spelling=spelling).save(tmp_path / "m.onnx")
        got = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        np.testing.assert_allclose(got, run(model_to_proto(gelu()), x), rtol=1e-5, atol=1e-6)


def test_the_model_comes_in_any_form_and_is_left_alone(tmp_path: Path) -> None:
    model = gelu()
    proto = model_to_proto(model)
    data = proto.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    with open(tmp_path / "m.onnx", "rb") as file:
        for source in (model, proto, data, tmp_path / "m.onnx", str(tmp_path / "m.onnx"), file):
            assert sardonyx.optimize_model(source).statistics() == {"com.microsoft.BiasGelu": 1}
    assert "Erf" in {node.op_type for node in model.graph.nodes}
    assert proto.SerializeToString() == data


@pytest.mark.parametrize("name", ["FuseGelu", "ConstantFolding"])
def test_a_pass_is_switched_off_by_either_name(name: str) -> None:
    result = sardonyx.optimize_model(gelu(), disabled=[name])
    ours = pipelines.ONNXRUNTIME_NAMES.get(name, name)
    assert ours not in result.report.count() and ours not in result.report.seconds


def test_an_unknown_pass_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InvalidArgument, match="did you mean FuseGelu"):
        sardonyx.optimize_model(gelu(), disabled=["FuseGellu"])
    with pytest.raises(InvalidArgument, match="did you mean ConstantFolding"):
        sardonyx.optimize_model(gelu(), disabled=["ConstantFoldin"])
    with pytest.raises(InvalidArgument, match="collection"):
        sardonyx.optimize_model(gelu(), disabled="FuseGelu")
    with pytest.raises(InvalidArgument, match="extended"):
        sardonyx.optimize_model(gelu(), "most")
    with pytest.raises(InvalidArgument, match="portable"):
        sardonyx.optimize_model(gelu(), spelling="english")


def test_every_optimizer_name_of_onnxruntime_maps_to_existing_passes() -> None:
    for name in pipelines.ONNXRUNTIME_NAMES:
        assert api.pass_names([name]) <= manager.PASSES.keys(), name


def test_levels_name_passes_that_exist() -> None:
    for level in pipelines.LEVELS:
        assert set(api.order_of(level, "contrib")) <= manager.PASSES.keys()


def test_the_report_names_nodes_and_reasons() -> None:
    model = parse(GELU + " z = Neg(e)", outputs="float[2,3] y, float[2,3] z")
    result = sardonyx.optimize_model(model)
    assert any(d.name == "FuseGelu" and "also read" in d.reason for d in result.report.declined)
    text = str(result)
    assert "declined" in text and "FuseGelu" in text and "seconds" in text
    fused = sardonyx.optimize_model(gelu())
    assert any(r.name == "FuseGelu" and "Erf" in r.what and r.nodes for r in fused.report.rewrites)
    assert "nodes -> 1" in str(fused)


def test_the_saved_model_records_its_rewrites() -> None:
    proto = sardonyx.optimize_model(gelu(), spelling="portable").to_proto()
    (entry,) = [p for p in proto.metadata_props if p.key == api.METADATA]
    done = json.loads(entry.value)
    assert done["level"] == "extended" and done["spelling"] == "portable" and done["rewrites"]["FuseGelu"] == 1


def test_free_dimensions_can_be_fixed() -> None:
    body = "s = Shape(x) y = Reshape(x, s)"
    sizes = {"inputs": "float[n, 3] x", "outputs": "float[n, 3] y"}
    result = sardonyx.optimize_model(parse(body, **sizes), free_dims={"n": 2})
    assert result.node_counts[1] == 0
    assert result.model.graph.inputs[0].shape == (2, 3)


def test_weights_past_the_limit_are_saved_in_a_separate_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.model import save

    monkeypatch.setattr(save, "PROTO_LIMIT", 1000)
    model = parse("w = ConstantOfShape<value = float[1] {2.0}>(n) y = MatMul(x, w)", inputs="float[2,30] x, int64[2] n",
                  outputs="float[2,40] y")  # fmt: skip
    graph = model.graph
    shape = graph.inputs.pop()
    graph.replace_uses(shape, graph.add_const(np.int64([30, 40]), "shape"))
    sardonyx.optimize_model(model).save(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").exists()
    got = sardonyx.InferenceSession(tmp_path / "m.onnx").run(None, {"x": np.ones((2, 30), np.float32)})[0]
    np.testing.assert_array_equal(got, np.full((2, 40), 60, np.float32))
