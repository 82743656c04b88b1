"""Comparisons: equal models are alike, a planted difference is found where it is planted, engines can be compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sardonyx.errors import InvalidArgument, NoSuchFile
from sardonyx.inspection.compare import compare_models


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """Three products in a row."""
    rng = np.random.default_rng(0)
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (float[n, 8] x) => (float[n, 8] y) { a = MatMul(x, w0) b = Relu(a) c = MatMul(b, w1) y = MatMul(c, w2) }"""
    proto = onnx.parser.parse_model(text)
    arrays = {f"w{i}": rng.standard_normal((8, 8)).astype(np.float32) for i in range(3)}
    proto.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
    path = tmp_path / "chain.onnx"
    onnx.save(proto, path)
    return path


def changed(path: Path, name: str) -> Path:
    proto = onnx.load(path)
    tensor = next(t for t in proto.graph.initializer if t.name == name)
    array = numpy_helper.to_array(tensor) * np.float32(1.1)
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    other = path.with_name(f"changed-{name}.onnx")
    onnx.save(proto, other)
    return other


def test_a_model_is_like_itself(chain: Path) -> None:
    found = compare_models(chain, chain)
    assert found.is_alike and found.first is None and [d.name for d in found.layers] == ["a", "b", "c", "y"]
    assert all(d.error == 0 for d in found.layers) and found.seconds is not None and min(found.seconds) > 0


def test_the_first_divergence_is_where_it_was_planted(chain: Path) -> None:
    found = compare_models(chain, changed(chain, "w1"))
    assert (
        not found.is_alike and found.first is not None and (found.first.name, found.first.operator) == ("c", "MatMul")
    )
    assert found.first.error == pytest.approx(0.1, rel=1e-3)
    assert "first divergence: c (MatMul)" in str(found) and "DIFFERENT" in str(found)


def test_a_tolerance_forgives(chain: Path) -> None:
    other = changed(chain, "w2")
    assert compare_models(chain, other, tolerance=0.2, times=False).is_alike
    assert not compare_models(chain, other, tolerance=0.05, layers=False, times=False).is_alike


@pytest.mark.parametrize("engine", ["onnxruntime", "reference"])
def test_engines_agree_on_a_trained_model(root: Path, engine: str) -> None:
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime", reason="the peer is not installed")
    images = np.load(root / "demo" / "heldout.npz")["images"][:4]
    found = compare_models(root / "demo" / "digits.onnx", engines=("sardonyx", engine), feeds={"image": images})
    assert found.is_alike and len(found.layers) == 15 and found.first is None
    assert found.a == "digits.onnx on sardonyx" and found.b == f"digits.onnx on {engine}"


def test_outputs_of_other_names_are_matched_by_position(chain: Path) -> None:
    proto = onnx.load(chain)
    proto.graph.node[-1].output[0] = proto.graph.output[0].name = "result"
    other = chain.with_name("renamed.onnx")
    onnx.save(proto, other)
    found = compare_models(chain, other, times=False)
    assert found.is_alike and [d.name for d in found.outputs] == ["y"]
    assert [d.name for d in found.layers] == ["a", "b", "c"]


def test_given_feeds_are_used_and_generated_ones_are_told(chain: Path) -> None:
    assert compare_models(chain, chain, feeds={"x": np.ones((3, 8), np.float32)}).outputs[0].shape == (3, 8)
    assert compare_models(chain, chain, dimensions={"n": 5}, times=False).outputs[0].shape == (5, 8)
    assert compare_models(chain, chain, times=False).statements


def test_bad_input(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile):
        compare_models(chain, tmp_path / "none.onnx")
    with pytest.raises(InvalidArgument, match="no engine has this name"):
        compare_models(chain, engines=("sardonyx", "tensorflow"))
    with pytest.raises(InvalidArgument):
        compare_models(chain, feeds={"z": np.ones((3, 8), np.float32)})
    proto = onnx.load(chain)
    proto.graph.output.extend([onnx.ValueInfoProto(name="a")])
    onnx.save(proto, tmp_path / "two.onnx")
    with pytest.raises(InvalidArgument, match="different numbers of outputs"):
        compare_models(chain, tmp_path / "two.onnx")
