"""Starts of models with more weights than are kept: what is packed is packed once more, of the model's file."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.errors import SardonyxError
from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.program import constants
from sardonyx.session import array_file, cache_key, cache_writer, compiled_cache
from sardonyx.session.compiled_cache import CachedEngine

pytestmark = pytest.mark.usefixtures("unverified")

TILES = "sapphirerapids"
TEXT = """
<ir_version: 10, opset_import: ["": 21]>
g (int64[rows] i, float[rows, 256] x) => (float[rows, 512] y)
{
    e = Gather(table, i)
    s = Add(e, x)
    a = MatMul(s, w)
    b = Add(a, c)
    y = Gemm<transB = 1>(b, v)
}
"""


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"table": (1000, 256), "w": (256, 512), "c": (512,), "v": (512, 512)}
    return {name: (rng.standard_normal(shape) / 16).astype("f") for name, shape in shapes.items()}


ROWS = 48


def write(path: Path, given: dict[str, np.ndarray], text: str = TEXT) -> None:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in given.items())
    path.write_bytes(model.SerializeToString())


def feed() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"i": rng.integers(0, 1000, ROWS), "x": rng.standard_normal((ROWS, 256)).astype("f")}


def expected(path: Path) -> np.ndarray:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed())[0]


def answer(session: sx.InferenceSession) -> np.ndarray:
    return session.run(None, feed())[0]


def was_kept(session: sx.InferenceSession) -> bool:
    return isinstance(session._sess.engine, CachedEngine)


def written(folder: Path) -> Path:
    """The folder, after entries that are written in the background."""
    cache_writer.wait()
    return folder


def close(a: np.ndarray, b: np.ndarray, tolerance: float = 2e-6) -> bool:
    return bool(np.abs(a - b).max() <= tolerance * np.abs(b).max())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(array_file, "MAX_NBYTES", 1 << 20)
    linker._addresses.clear()  # what others compiled is not in this folder
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path, folder: Path) -> Path:
    write(tmp_path / "model.onnx", weights())
    return tmp_path / "model.onnx"


IN_A_PROCESS = (
    "import sys, pickle, sardonyx as sx\n"
    "from sardonyx.session import array_file\n"
    "array_file.MAX_NBYTES = 1 << 20\n"
    "path, precision, feeds = pickle.load(sys.stdin.buffer)\n"
    "found = sx.InferenceSession(path, precision=precision).run(None, feeds)[0]\n"
    "loaded = [m for m in ('onnx', 'llvmlite.ir', 'sardonyx.lower', 'sardonyx.ops.registry') if m in sys.modules]\n"
    "sys.stdout.buffer.write(pickle.dumps((found, loaded)))"
)


def in_a_process(path: Path, precision: str) -> tuple[np.ndarray, list[str]]:
    """The answer of a new process, and what heavy modules it has loaded."""
    given = pickle.dumps((str(path), precision, feed()))
    done = subprocess.run([sys.executable, "-c", IN_A_PROCESS], input=given, stdout=subprocess.PIPE, check=True)
    return pickle.loads(done.stdout)


@pytest.mark.sliced(2)
@pytest.mark.parametrize(
    ("chip", "precision", "is_fixed", "kernel", "tolerance"),
    [
        ("", "highest", False, "pack_panels", 2e-6),
        (TILES, "highest", False, "pack_panels", 2e-6),
        (TILES, "highest", True, "pack_int8_slices", 2e-6),
        (TILES, "high", True, "split_bf16", 3e-5),
        (TILES, "medium", True, "split_bf16", 3e-2),
    ],
)
def test_a_second_start_packs_again(
    model: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    chip: str,
    precision: str,
    is_fixed: bool,
    kernel: str,
    tolerance: float,
) -> None:
    if chip:
        monkeypatch.setenv("SARDONYX_CPU", chip)
    if is_fixed:
        write(model, weights(), TEXT.replace("rows", str(ROWS)))
    found, loaded = in_a_process(model, precision)
    assert "sardonyx.lower" in loaded and close(found, expected(model), tolerance)
    (kept,) = written(folder).glob("*.start")
    assert kept.stat().st_size < 1 << 18 and kernel.encode() in kept.read_bytes()
    again, loaded = in_a_process(model, precision)
    assert np.array_equal(again, found)
    assert loaded == [] if not chip else "sardonyx.lower" not in loaded  # LLVM knows the chips that are named


def test_weights_that_a_layout_cannot_represent_are_stored_in_another(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SARDONYX_CPU", TILES)
    path, given = tmp_path / "odd.onnx", weights()
    given["w"][3, 5] = 1e30
    write(path, given)
    found = answer(sx.InferenceSession(path))
    cache_writer.wait()
    again, loaded = in_a_process(path, "highest")
    assert close(found, expected(path)) and np.array_equal(again, found) and "sardonyx.lower" not in loaded


def large(session: sx.InferenceSession) -> list[np.ndarray]:
    engine: Any = session._sess.engine
    return [a for a in engine.planned.constants if a.nbytes >= 1 << 19]


def test_cached_engines_and_their_models_share_packed_weights(model: Path) -> None:
    first = sx.InferenceSession(model)
    session = sx.InferenceSession(model)
    assert was_kept(session) and len(large(session)) == 3
    packed = [(a, b) for a, b in zip(large(first), large(session), strict=True) if a.ndim == 1]
    assert len(packed) == 2 and all(a is b for a, b in packed)
    del first, packed
    before = [a.ctypes.data for a in large(session) if a.ndim == 1]
    built = session._sess.engine._built()  # type: ignore[union-attr]
    assert [a.ctypes.data for a in built.planned.constants if a.nbytes >= 1 << 19 and a.ndim == 1] == before


def test_unpacked_weights_are_in_memory_once(model: Path) -> None:
    sessions = [sx.InferenceSession(model) for _ in range(3)]
    assert [was_kept(s) for s in sessions] == [False, True, True]
    (table,), *others = ([a for a in large(s) if a.ndim == 2] for s in sessions)
    assert np.array_equal(table, weights()["table"]) and all(o[0] is table for o in others)


def test_the_model_may_be_deleted_after_the_start(model: Path) -> None:
    before = answer(sx.InferenceSession(model))
    session = sx.InferenceSession(model)
    model.unlink()
    assert was_kept(session) and np.array_equal(answer(session), before)
    assert "Gather" in str(session.explain())


def test_other_weights_in_the_same_file_are_another_start(model: Path) -> None:
    sx.InferenceSession(model)
    write(model, weights(1))
    session = sx.InferenceSession(model)
    assert not was_kept(session) and close(answer(session), expected(model))
    assert was_kept(sx.InferenceSession(model))


def test_other_weights_at_the_same_time_are_other_weights(model: Path) -> None:
    """Written in place, as large as before, and with the old time put back, while a session has the old ones."""
    info, first = model.stat(), sx.InferenceSession(model)
    before = answer(first)
    write(model, weights(1))
    os.utime(model, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert (model.stat().st_ino, model.stat().st_size) == (info.st_ino, info.st_size)
    assert close(answer(sx.InferenceSession(model)), expected(model))
    assert not close(before, expected(model))


def test_a_model_that_is_cut_is_no_model(model: Path) -> None:
    sx.InferenceSession(model)
    os.truncate(model, model.stat().st_size // 2)
    with pytest.raises(SardonyxError):
        sx.InferenceSession(model)


@pytest.mark.parametrize("change", ["replaced", "cut", "gone"])
def test_a_model_that_changes_during_the_start_is_built(
    model: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Between the look at the file, by which the start is found, and its opening."""
    sx.InferenceSession(model)
    opened = compiled_cache._Model.__init__

    def late(self: Any, *args: Any) -> None:
        if change == "replaced":
            write(model, weights(1))
        elif change == "cut":
            os.truncate(model, 1000)
        else:
            model.unlink()
        opened(self, *args)

    monkeypatch.setattr(compiled_cache._Model, "__init__", late)
    if change == "replaced":
        session = sx.InferenceSession(model)
        assert not was_kept(session) and close(answer(session), expected(model))
    else:
        with pytest.raises(SardonyxError):
            sx.InferenceSession(model)


def test_objects_that_are_gone_are_compiled_again(model: Path, folder: Path) -> None:
    linker._addresses.clear()
    found = answer(sx.InferenceSession(model))
    for path in (written(folder) / "kernels").iterdir():
        path.unlink()
    linker._addresses.clear()
    constants._packed.clear()
    session = sx.InferenceSession(model)
    assert not was_kept(session) and np.array_equal(answer(session), found)


def test_external_weights_are_packed_from_their_file(model: Path, folder: Path) -> None:
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="weights")
    time.sleep(2e-9 * cache_key.SETTLED_NS)
    found = answer(sx.InferenceSession(model))
    (kept,) = written(folder).glob("*.start")
    assert kept.stat().st_size < 1 << 18 and close(found, expected(model))
    constants._packed.clear()
    session = sx.InferenceSession(model)
    assert was_kept(session) and np.array_equal(answer(session), found)


def test_constants_made_by_the_optimizer_are_stored_up_to_a_limit(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = onnx.load(model)
    moved = next(t for t in proto.graph.initializer if t.name == "w")
    turned = onnx.numpy_helper.from_array(weights()["w"].T.copy(), "wt")
    moved.CopyFrom(onnx.numpy_helper.from_array(weights()["w"] / 2, "w"))
    proto.graph.initializer.extend([turned])
    first = proto.graph.node[2]
    first.input[1] = "sum"
    proto.graph.node.insert(0, onnx.helper.make_node("Transpose", ["wt"], ["half"], perm=[1, 0]))
    proto.graph.node.insert(1, onnx.helper.make_node("Add", ["half", "w"], ["sum"]))
    model.write_bytes(proto.SerializeToString())
    found = answer(sx.InferenceSession(model))
    session = sx.InferenceSession(model)
    (kept,) = written(folder).glob("*.start")
    assert was_kept(session) and 1 << 19 < kept.stat().st_size < 3 << 18
    assert np.array_equal(answer(session), found) and close(found, expected(model))
    kept.unlink()
    monkeypatch.setattr(array_file, "MAX_NBYTES", 1 << 18)
    assert not was_kept(sx.InferenceSession(model)) and not list(written(folder).glob("*.start"))
