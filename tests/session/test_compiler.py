"""Models compiled ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx.errors import Fail, InvalidArgument
from tests.session.models import MUL, X, serialized

IDENTITIES = """<ir_version: 8, opset_import: ["": 13]>
g (float[2] x) => (float[2] y) { a = Identity(x)  y = Relu(a) }"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "mul.onnx").write_bytes(serialized(MUL))
    return tmp_path / "mul.onnx"


def runs(model: Any) -> None:
    np.testing.assert_array_equal(ort.InferenceSession(model).run(None, {"X": X})[0], X * X)


def test_files_bytes_and_streams(source: Path) -> None:
    compiler = ort.ModelCompiler(ort.SessionOptions(), source)
    compiler.compile_to_file(source.parent / "out.onnx")
    runs(source.parent / "out.onnx")
    compiler.compile_to_file()
    runs(source.parent / "mul_ctx.onnx")
    runs(compiler.compile_to_bytes())
    chunks: list[bytes] = []
    compiler.compile_to_stream(chunks.append)
    runs(b"".join(chunks))
    runs(ort.ModelCompiler(ort.SessionOptions(), source.read_bytes()).compile_to_bytes())


def test_the_level_is_the_compilers() -> None:
    def operators(level: ort.GraphOptimizationLevel) -> list[str]:
        compiler = ort.ModelCompiler(ort.SessionOptions(), serialized(IDENTITIES), graph_optimization_level=level)
        return [n.op_type for n in onnx.load_from_string(compiler.compile_to_bytes()).graph.node]

    assert operators(ort.GraphOptimizationLevel.ORT_DISABLE_ALL) == ["Identity", "Relu"]
    assert operators(ort.GraphOptimizationLevel.ORT_ENABLE_BASIC) == ["Relu"]


CASTS = """
<ir_version: 10, opset_import: ["": 21]>
g (float[2, 3] u) => (int64[2, 3] same, int64[2, 3] back, int8[2, 3] flags) {
    v = Cast<to = 11>(u) w = Cast<to = 6>(v) x = Cast<to = 1>(w) back = Cast<to = 7>(x)
    again = Cast<to = 6>(w) same = Cast<to = 7>(again)
    b = Cast<to = 9>(x) text = Cast<to = 8>(b) flags = Cast<to = 3>(text)
}
"""


def test_conversions_are_left_as_onnxruntime_leaves_them() -> None:
    """None removed, those to their own type at the basic level, chains at the extended one."""

    def count(level: ort.GraphOptimizationLevel) -> int:
        compiler = ort.ModelCompiler(ort.SessionOptions(), serialized(CASTS), graph_optimization_level=level)
        return len(onnx.load_from_string(compiler.compile_to_bytes()).graph.node)

    levels = ort.GraphOptimizationLevel
    assert [count(level) for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC, levels.ORT_ENABLE_ALL)] == [
        9,
        8,
        7,
    ]


def test_flags(source: Path) -> None:
    flags = ort.OrtCompileApiFlags
    compiler = ort.ModelCompiler(ort.SessionOptions(), source, flags=flags.ERROR_IF_OUTPUT_FILE_EXISTS)
    out = source.parent / "out.onnx"
    compiler.compile_to_file(out)
    with pytest.raises(Fail, match="exists already"):
        compiler.compile_to_file(out)
    out.unlink()
    with pytest.raises(Fail, match="Unable to compile any nodes"):
        ort.ModelCompiler(ort.SessionOptions(), source, flags=flags.ERROR_IF_NO_NODES_COMPILED).compile_to_file(out)
    assert not out.exists()


def test_initializers_go_to_a_file(source: Path) -> None:
    options = ort.SessionOptions()
    compiler = ort.ModelCompiler(options, source, False, "weights.bin", external_initializers_size_threshold=8)
    compiler.compile_to_file(source.parent / "out.onnx")
    assert (source.parent / "weights.bin").stat().st_size == X.nbytes
    runs(source.parent / "out.onnx")


def test_initializers_go_where_a_function_says(source: Path) -> None:
    out, weights = source.parent / "out.onnx", source.parent / "w.bin"
    seen: list[Any] = []

    def outside(name: str, value: ort.OrtValue, info: Any) -> Any:
        seen.append((name, value.shape(), info))
        weights.write_bytes(value.numpy().tobytes())
        return ort.OrtExternalInitializerInfo(weights.name, 0, value.tensor_size_in_bytes())

    ort.ModelCompiler(ort.SessionOptions(), source, get_initializer_location_func=outside).compile_to_file(out)
    assert seen == [("W", [3, 2], None)]
    runs(out)

    def same(name: str, value: ort.OrtValue, info: Any) -> Any:
        seen.append(info)
        return info

    again = source.parent / "again.onnx"
    ort.ModelCompiler(ort.SessionOptions(), out, get_initializer_location_func=same).compile_to_file(again)
    assert seen[-1] == ort.OrtExternalInitializerInfo("w.bin", 0, X.nbytes)
    runs(again)


def test_mistakes(source: Path) -> None:
    options = ort.SessionOptions()
    for wrong, kind in (("", ValueError), (b"", ValueError), (3, TypeError), ("no.onnx", InvalidArgument)):
        with pytest.raises(kind):
            ort.ModelCompiler(options, wrong)
    with pytest.raises(ValueError, match="both"):
        ort.ModelCompiler(options, source, False, "w", get_initializer_location_func=lambda *_: None)
    with pytest.raises(InvalidArgument, match="output path"):
        ort.ModelCompiler(options, source.read_bytes()).compile_to_file()

    def broken(content: bytes) -> None:
        raise ValueError("my own error")

    with pytest.raises(Fail, match="my own error"):
        ort.ModelCompiler(options, source).compile_to_stream(broken)
