"""Sardonyx as an ONNX backend. (The whole of ONNX's suite is in tests/conformance.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx import backend, datasets
from sardonyx.backend.backend import SardonyxBackend
from tests.session.models import MUL, X, model, serialized


@pytest.mark.parametrize("kind", ["proto", "bytes", "path", "session", "prepared"])
def test_prepare_takes_every_kind_of_model(kind: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(serialized(MUL))
    sources: dict[str, Any] = {
        "proto": model(MUL),
        "bytes": serialized(MUL),
        "path": str(tmp_path / "m.onnx"),
        "session": ort.InferenceSession(serialized(MUL)),
        "prepared": backend.prepare(model(MUL)),
    }
    for inputs in (X, [X]):
        np.testing.assert_array_equal(backend.prepare(sources[kind], device="CPU").run(inputs)[0], X * X)
        np.testing.assert_array_equal(backend.run(sources[kind], inputs)[0], X * X)


def test_devices() -> None:
    assert backend.supports_device("CPU") and backend.supports_device("CPU:0") and not backend.supports_device("CUDA")
    assert backend.is_compatible(model(MUL)) and not backend.is_compatible(model(MUL), "CUDA")
    with pytest.raises(RuntimeError, match="Incompatible device expected 'CUDA'"):
        backend.prepare(model(MUL), "CUDA")


def test_only_harmless_options_are_set(tmp_path: Path) -> None:
    prepared = backend.prepare(serialized(MUL), intra_op_num_threads=3, whatever=1)
    assert prepared._session.get_session_options().intra_op_num_threads == 3
    with pytest.raises(RuntimeError, match="'optimized_model_filepath' is not permitted via the backend API"):
        backend.prepare(serialized(MUL), optimized_model_filepath=str(tmp_path / "x"))
    with pytest.raises(RuntimeError, match="'terminate' is not permitted"):
        prepared.run(X, terminate=True)
    with pytest.raises(RuntimeError, match="Model expect 2 inputs"):
        backend.prepare(onnx.parser.parse_model(TWO)).run(X)


TWO = """<ir_version: 8, opset_import: ["": 13]>
two (float[n] a, float[n] b) => (float[n] c) { c = Sub(a, b) }"""


def test_single_nodes() -> None:
    a, b = np.array([5, 6], np.float32), np.array([1, 2], np.float32)
    node = onnx.helper.make_node("Sub", ["a", "b"], ["c"])
    assert backend.run_node(node, [a, b])[0].tolist() == [4, 4]
    assert backend.run_node(node, {"b": b, "a": a})[0].tolist() == [4, 4]
    scaler = onnx.helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])
    assert backend.run_node(scaler, [a])[0].tolist() == [8, 10]
    squeeze = onnx.helper.make_node("Squeeze", ["x"], ["y"], axes=[0])
    assert backend.run_node(squeeze, [a[None]], opset_version=11)[0].shape == (2,)


def test_opsets() -> None:
    proto = model(MUL)
    assert SardonyxBackend.is_opset_supported(proto) == (True, "")
    proto.opset_import[0].version = 10_000
    supported, reason = SardonyxBackend.is_opset_supported(proto)
    assert not supported and "10000" in reason


def test_example_models() -> None:
    np.testing.assert_array_equal(backend.run(datasets.get_example("mul_1.onnx"), X)[0], X * X)
    label, shares = backend.run(datasets.get_example("logreg_iris.onnx"), X)
    assert label.tolist() == [0, 0, 0]
    np.testing.assert_allclose(list(shares[0].values()), [0.950599730, 0.027834169, 0.021566024], rtol=1e-5)
    x = np.linspace(-3, 3, 60, dtype=np.float32).reshape(3, 4, 5)
    np.testing.assert_allclose(backend.run(datasets.get_example("sigmoid.onnx"), x)[0], 1 / (1 + np.exp(-x)), rtol=1e-6)
    with pytest.raises(FileNotFoundError):
        datasets.get_example("no.onnx")
