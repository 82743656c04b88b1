"""Modules that a first start leaves out, and that are there when somebody uses them."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import sardonyx.deferred

FIRST_START = """
import sys, onnx_model
import sardonyx
sardonyx.InferenceSession(onnx_model.BYTES)
left_out = [name for name in ("importlib.metadata", "onnx.compose", "onnx.gen_proto", "onnx.utils", "logging")
            if name in sys.modules]
print(left_out)
import onnx, importlib.metadata
print(onnx.__version__)
print(onnx.compose.merge_models.__module__, onnx.utils.Extractor.__module__, onnx.gen_proto.__file__ is not None)
print(importlib.metadata.version("numpy"))
import onnx.compose, onnx.utils
print(onnx.compose is sys.modules["onnx.compose"], type(onnx.compose).__name__)
"""


def run(script: str, folder: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_first_start(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx.parser

    text = '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    data = onnx.parser.parse_model(text).SerializeToString()
    with open(f"{tmp_path}/onnx_model.py", "w", encoding="utf-8") as file:
        file.write(f"BYTES = {data!r}\n")
    monkeypatch.setenv("SARDONYX_CACHE", f"{tmp_path}/cache")
    left_out, version, homes, numpy_version, now = run(FIRST_START, str(tmp_path))
    assert left_out == "[]"
    assert version == importlib.metadata.version("onnx")
    assert homes == "onnx.compose onnx.utils True"
    assert numpy_version == importlib.metadata.version("numpy")
    assert now == "True module"


def test_the_version_of_a_distribution() -> None:
    import onnx

    assert sardonyx.deferred._version("onnx") == onnx.__version__
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        sardonyx.deferred._version("no-such-distribution")


def test_imports_while_a_module_is_deferred() -> None:
    sys.modules.pop("this_is_not_there", None)
    with sardonyx.deferred.deferred("this_is_not_there", "sys") as made:
        assert list(made) == ["this_is_not_there"]
        import this_is_not_there  # type: ignore[import-not-found]

        with pytest.raises(ModuleNotFoundError):
            this_is_not_there.something  # noqa: B018
    assert "this_is_not_there" not in sys.modules
