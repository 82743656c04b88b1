"""Engines kept between starts: the same answers without the model, and everything else as if they had been built."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx import folders
from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.providers.cpu.jit import linker
from sardonyx.session.starts import KeptEngine

TEXT = """
<ir_version: 10, opset_import: ["": 21], producer_name: "us", metadata_props: ["colour": "red"]>
g (float[batch, 8] x, int64[2] i) => (float[batch, 4] y, float[2, 4] z)
<float[8, 4] w, float[4] c = {1.0, 2.0, 3.0, 4.0}>
{
    p = MatMul(x, w)
    y = Add(p, c)
    z = Gather(w, i)
}
"""


def write(path: Path, seed: int = 0) -> None:
    model = onnx.parser.parse_model(TEXT)
    w = np.random.default_rng(seed).standard_normal((8, 4)).astype("f")
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    path.write_bytes(model.SerializeToString())


def feed(batch: int = 3, second: int = 5) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((batch, 8)).astype("f"), "i": np.array([0, second])}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path, folder: Path) -> Path:
    write(tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def was_kept(session: sx.InferenceSession) -> bool:
    return isinstance(session._sess.engine, KeptEngine)


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


def test_a_second_start_answers_the_same(model: Path) -> None:
    first, second = sx.InferenceSession(model), sx.InferenceSession(model)
    assert not was_kept(first) and was_kept(second)
    for batch in (0, 1, 3, 17):
        assert same(first.run(None, feed(batch)), second.run(None, feed(batch)))
    assert first.get_inputs() == second.get_inputs() and first.get_outputs() == second.get_outputs()
    assert first.get_modelmeta() == second.get_modelmeta()
    assert str(first.explain()).split("seconds")[0] == str(second.explain()).split("seconds")[0]


def test_a_kept_start_loads_neither_onnx_nor_llvm(model: Path) -> None:
    program = (
        "import sys, numpy as np, sardonyx as sx\n"
        f"s = sx.InferenceSession({str(model)!r})\n"
        "print(s.run(['z'], {'x': np.ones((2, 8), 'f'), 'i': np.array([1, 2])})[0].shape)\n"
        "print([m for m in ('onnx', 'llvmlite.binding', 'llvmlite.ir', 'sardonyx.lower') if m in sys.modules])"
    )
    told = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout for _ in range(2)]
    assert told[0].startswith("(2, 4)\n['onnx'") and told[1] == "(2, 4)\n[]\n"


def test_errors_are_those_of_the_model(model: Path) -> None:
    sessions = sx.InferenceSession(model), sx.InferenceSession(model)
    assert was_kept(sessions[1])
    messages = []
    for session in sessions:
        with pytest.raises(InvalidArgument) as error:
            session.run(None, feed(second=8))
        messages.append(str(error.value))
    assert messages[0] == messages[1] and "Gather" in messages[0]
    assert same(sessions[0].run(None, feed()), sessions[1].run(None, feed()))


def test_the_model_may_go_after_the_start(model: Path) -> None:
    sx.InferenceSession(model)
    session = sx.InferenceSession(model)
    before = session.run(None, feed())
    model.unlink()
    assert "MatMul" in str(session.explain()) or "Gemm" in str(session.explain())
    with pytest.raises(InvalidArgument):
        session.run(None, feed(second=8))
    assert same(session.run(None, feed()), before)


def test_inputs_that_nobody_reads_and_initializers_that_may_be_fed(tmp_path: Path, folder: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    g (float[n] unread, float[n] x, float[1] c) => (float[n] b, float[n] a)
    <float[1] c = {3.0}>
    {
        a = Mul(x, c)
        b = Exp(a)
    }
    """
    path = tmp_path / "wired.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    sessions = sx.InferenceSession(path), sx.InferenceSession(path)
    assert [was_kept(s) for s in sessions] == [False, True]
    x = np.linspace(-1, 1, 11, dtype="f")
    for fed in ({}, {"c": np.array([2], "f")}):
        given = {"unread": x, "x": x, **fed}
        first, second = (s.run(None, given) for s in sessions)
        assert same(first, second)
        np.testing.assert_array_equal(second[1], x * fed.get("c", 3))
    for ask in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        assert getattr(sessions[0], ask)() == getattr(sessions[1], ask)()


def test_profiles_name_the_nodes(model: Path, tmp_path: Path) -> None:
    sx.InferenceSession(model)
    options = sx.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    session = sx.InferenceSession(model, options)
    session.run(None, feed())
    assert "Gather" in Path(session.end_profiling()).read_text()


def test_another_model_of_the_same_name_is_another_start(model: Path) -> None:
    first = sx.InferenceSession(model).run(["y"], feed())[0]
    write(model, seed=1)
    session = sx.InferenceSession(model)
    assert not was_kept(session) and not np.array_equal(session.run(["y"], feed())[0], first)


def test_other_options_are_other_starts(model: Path) -> None:
    sx.InferenceSession(model)
    options = sx.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = sx.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert not was_kept(sx.InferenceSession(model, options)) and was_kept(sx.InferenceSession(model, options))


@pytest.mark.parametrize("damage", ["cut", "changed", "objects gone", "empty"])
def test_what_is_damaged_is_built_anew(model: Path, folder: Path, damage: str) -> None:
    linker._addresses.clear()
    expected = sx.InferenceSession(model).run(None, feed())
    (kept,) = folder.glob("*.start")
    content = kept.read_bytes()
    if damage == "objects gone":
        for path in (folder / "kernels").iterdir():
            path.unlink()
        linker._addresses.clear()
    else:
        kept.write_bytes({"cut": content[:-100], "changed": content[:90] + b"?" + content[91:], "empty": b""}[damage])
    session = sx.InferenceSession(model)
    assert not was_kept(session) and same(session.run(None, feed()), expected)
    assert was_kept(sx.InferenceSession(model))


def test_data_in_other_files_are_not_kept(model: Path, folder: Path) -> None:
    proto = onnx.load(model)
    onnx.save(proto, model, save_as_external_data=True, location="weights", size_threshold=0)
    assert not was_kept(sx.InferenceSession(model)) and not was_kept(sx.InferenceSession(model))
    assert not list(folder.glob("*.start"))


def _twice(e: Any, x: Any) -> Any:
    return x * 2


def test_models_with_operators_of_the_users_are_not_kept(tmp_path: Path, folder: Path) -> None:
    sx.custom_op("test.starts", "Twice")(_twice)
    text = """
    <ir_version: 10, opset_import: ["": 21, "test.starts": 1]>
    g (float[n] x) => (float[n] y) { y = test.starts.Twice(x) }
    """
    path = tmp_path / "custom.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    for _ in range(2):
        session = sx.InferenceSession(path)
        assert not was_kept(session)
        np.testing.assert_array_equal(session.run(None, {"x": np.ones(3, "f")})[0], [2, 2, 2])


def test_a_full_disk_only_means_that_nothing_is_kept(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "write_whole", full)
    for _ in range(2):
        session = sx.InferenceSession(model)
        assert not was_kept(session) and len(session.run(None, feed())) == 2


def test_a_folder_that_cannot_be_made_only_means_that_nothing_is_kept(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        assert len(sx.InferenceSession(model).run(None, feed())) == 2


def test_many_sessions_start_at_once(model: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(lambda _: sx.InferenceSession(model), range(8)))
        results = list(pool.map(lambda s: s.run(None, feed()), sessions))
    assert was_kept(sx.InferenceSession(model)) and all(same(r, results[0]) for r in results)


def test_many_processes_start_at_once(model: Path, folder: Path) -> None:
    program = (
        "import numpy as np, sardonyx as sx\n"
        f"s = sx.InferenceSession({str(model)!r})\n"
        "print(s.run(['y'], {'x': np.ones((2, 8), 'f'), 'i': np.array([1, 2])})[0].tobytes().hex())"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ})
        for _ in range(3)
    ]
    assert len({process.communicate()[0] for process in started}) == 1
    assert was_kept(sx.InferenceSession(model)) and len(list(folder.glob("*.start"))) == 1


def test_starts_share_weights(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "wide.onnx"
    model = onnx.parser.parse_model(TEXT.replace("[8, 4]", "[8, 4096]").replace("batch, 4]", "batch, 4096]"))
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(4096, "f"), "c"))
    model.graph.output[1].type.tensor_type.shape.dim[1].dim_value = 4096
    w = np.random.default_rng(0).standard_normal((8, 4096)).astype("f")
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    path.write_bytes(model.SerializeToString())
    places = []
    sessions = [sx.InferenceSession(path) for _ in range(3)]
    for session in sessions:
        constants = session._sess.engine.quick.constants  # type: ignore[union-attr]
        places.append([a.ctypes.data for a in constants if a.nbytes > 1 << 16])
    assert places[0] and places[0] == places[1] == places[2] and was_kept(sessions[2])


def test_sources_that_are_no_files_fail_as_ever(tmp_path: Path, folder: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "pipe", tmp_path, tmp_path / "nothing", "a\0b"):
        with pytest.raises(SardonyxError):
            sx.InferenceSession(source)
