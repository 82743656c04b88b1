"""Adapter files, and runs with their parameters."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx.errors import InvalidArgument
from sardonyx.session.native_values import NativeValue
from tests.session.models import OVERRIDABLE, serialized

PARAMETERS = {
    "a": np.arange(10, dtype=np.float32).reshape(5, 2),
    "longer name": np.arange(3),
    "half": np.ones((1, 3), ml_dtypes.bfloat16),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 4), np.int8),
}


def write(path: Path, parameters: dict[str, np.ndarray]) -> None:  # type: ignore[type-arg]
    adapter = ort.AdapterFormat()
    adapter.set_adapter_version(3)
    adapter.set_model_version(4)
    adapter.set_parameters({k: ort.OrtValue.ortvalue_from_numpy(v) for k, v in parameters.items()})
    adapter.export_adapter(path)


def test_files_round_trip(tmp_path: Path) -> None:
    write(tmp_path / "a.onnx_adapter", PARAMETERS)
    read = ort.AdapterFormat.read_adapter(tmp_path / "a.onnx_adapter")
    assert (read.get_adapter_version(), read.get_model_version(), read.get_format_version()) == (3, 4, 1)
    found = {k: v.numpy() for k, v in read.get_parameters().items()}
    assert found.keys() == PARAMETERS.keys()
    for name, array in PARAMETERS.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_onnxruntime_reads_and_writes_the_same_files(tmp_path: Path) -> None:
    oracle = pytest.importorskip("onnxruntime")
    path = str(tmp_path / "a.onnx_adapter")
    plain = {k: v for k, v in PARAMETERS.items() if k not in ("half", "scalar")}
    lists = {k: v.tolist() for k, v in plain.items()}
    write(Path(path), plain)
    theirs = oracle.AdapterFormat.read_adapter(path)
    assert theirs.get_adapter_version() == 3
    assert {k: v.numpy().tolist() for k, v in theirs.get_parameters().items()} == lists
    theirs.export_adapter(path)
    ours = ort.AdapterFormat.read_adapter(path).get_parameters()
    assert {k: v.numpy().tolist() for k, v in ours.items()} == lists


def test_strings_are_refused(tmp_path: Path) -> None:
    model = '<ir_version: 10, opset_import: ["": 21]> g (string[n] x) => (string[n] y) { y = Identity(x) }'
    binding = (session := ort.InferenceSession(onnx.parser.parse_model(model).SerializeToString())).io_binding()
    with pytest.raises(RuntimeError, match="Only binding non-string Tensors"):
        binding.bind_cpu_input("x", np.array(["a"], object))
    with pytest.raises(RuntimeError, match="Only binding non-string Tensors"):
        binding.bind_cpu_input("x", np.array(["a"]))
    (text,) = session.run_with_ort_values(None, {"x": ort.OrtValue(NativeValue(np.array(["a"], object)))})
    adapter = ort.AdapterFormat()
    adapter.set_parameters({"text": text})
    with pytest.raises(RuntimeError, match="string"):
        adapter.export_adapter(tmp_path / "a.onnx_adapter")
    assert not any(tmp_path.iterdir())


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx_adapter"
    write(path, PARAMETERS)
    content = path.read_bytes()
    for wrong in (
        b"",
        content[:30],
        content[:-40],
        b"xxxxxxxx" + content[8:],
        content[:20] + b"\xff" * 16 + content[36:],
    ):
        path.write_bytes(wrong)
        with pytest.raises(InvalidArgument, match="damaged"):
            ort.AdapterFormat.read_adapter(path)
    with pytest.raises(RuntimeError, match="cannot be read"):
        ort.LoraAdapter().Load(tmp_path / "no")


def test_runs_with_an_adapter(tmp_path: Path) -> None:
    write(tmp_path / "a.onnx_adapter", {"scale": np.array([10, 20], np.float32)})
    adapter = ort.LoraAdapter()
    adapter.Load(tmp_path / "a.onnx_adapter")
    options = ort.RunOptions()
    session = ort.InferenceSession(serialized(OVERRIDABLE))
    feed = {"x": np.ones(2, np.float32)}
    assert session.run(None, feed, options)[0].tolist() == [1, 1]
    options.add_active_adapter(adapter)
    assert session.run(None, feed, options)[0].tolist() == [10, 20]
