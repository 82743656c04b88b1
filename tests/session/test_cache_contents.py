"""``sardonyx.cache``, the bound on the cache's size, and starts while the cache is emptied, filled and damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx import cache, eviction, folders
from sardonyx.session.compiled_cache import CachedEngine

pytestmark = pytest.mark.usefixtures("unverified")

TEXT = """
<ir_version: 10, opset_import: ["": 21]>
g (float[n, 16] x) => (float[n, 16] y) <float[1] c = {2.5}> { a = MatMul(x, w) b = Relu(a) y = Mul(b, c) }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, seed: int = 0) -> Path:
    model = onnx.parser.parse_model(TEXT)
    w = np.random.default_rng(seed).standard_normal((16, 16)).astype("f")
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    path.write_bytes(model.SerializeToString())
    return path


def was_kept(path: Path) -> bool:
    return isinstance(sx.InferenceSession(path)._sess.engine, CachedEngine)


def test_items_name_their_models(tmp_path: Path, folder: Path) -> None:
    assert cache.items() == [] and cache.folder() is None
    path = write(tmp_path / "a.onnx")
    sx.InferenceSession(path)
    sx.InferenceSession(write(tmp_path / "b.onnx", 1).read_bytes())
    found = cache.items()
    assert cache.folder() == str(folder)
    assert {item.kind for item in found} == {cache.MODEL, cache.GRAPH, cache.KERNEL}
    assert {item.path for item in found if item.kind == cache.MODEL} == {str(path), None}
    assert all(item.nbytes > 0 for item in found)


def test_one_model_or_everything_is_cleared(tmp_path: Path, folder: Path) -> None:
    paths = [write(tmp_path / name, i) for i, name in enumerate(("a.onnx", "b.onnx"))]
    for path in paths:
        sx.InferenceSession(path)
    (tmp_path / "link.onnx").symlink_to(paths[0])
    assert cache.clear(tmp_path / "link.onnx") > 0
    assert [was_kept(path) for path in paths] == [False, True]
    cache.clear()
    assert cache.items() == [] and not was_kept(paths[1])


def test_warm_compiles_ahead(tmp_path: Path, folder: Path) -> None:
    path = write(tmp_path / "a.onnx")
    assert cache.warm(path, feeds=[{"x": np.ones((2, 16), "f")}]) and was_kept(path)
    options = sx.SessionOptions()
    options.add_session_config_entry("session.cache", "0")
    assert not cache.warm(path, options)


def test_the_least_recently_used_files_are_evicted(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = folders.cache_folder()
    assert private is not None
    names = [f"{i:064x}.o" for i in range(10)]
    for i, name in enumerate(names):
        private.write(name, [bytes(1000)])
        os.utime(folder / name, (1000 + i, 1000 + i))
    os.close(private.open(names[0]))  # a use
    monkeypatch.setenv("SARDONYX_CACHE_NBYTES", "10000")
    eviction.evict(private)
    assert len(list(folder.iterdir())) == 10
    monkeypatch.setenv("SARDONYX_CACHE_NBYTES", "6000")
    eviction.evict(private)
    assert sorted(p.name for p in folder.iterdir()) == [names[0], *names[6:]]


def test_a_file_larger_than_the_cache_may_be_evicts_no_others(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = folders.cache_folder()
    assert private is not None
    names = [f"{i:064x}.o" for i in range(4)]
    for name, nbytes in zip(names, (1000, 1000, 5500, 1000), strict=True):
        private.write(name, [bytes(nbytes)])
    monkeypatch.setenv("SARDONYX_CACHE_NBYTES", "6000")
    eviction.evict(private)
    assert sorted(p.name for p in folder.iterdir()) == [names[0], names[1], names[3]]


def test_files_that_are_not_the_caches_stay(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that holds more than the cache: a user's home, say."""
    folder.mkdir(mode=0o700)
    users = ["notes", "thesis.graph", "a.o", "deadbeef.start", f"{0:064x}", f"x{0:064x}.o", ".draft.tmp"]
    users += [f".draft.{0:016x}.tmp"]
    for name in users:
        (folder / name).write_bytes(bytes(1000))
    sx.InferenceSession(write(tmp_path / "a.onnx"))
    assert cache.items() and {item.kind for item in cache.items()} <= {cache.MODEL, cache.GRAPH, cache.KERNEL}
    monkeypatch.setenv("SARDONYX_CACHE_NBYTES", "1")
    sx.InferenceSession(write(tmp_path / "b.onnx", 1))
    cache.clear()
    assert cache.items() == [] and {p.name for p in folder.iterdir() if p.is_file()} == set(users)


def test_the_cache_stays_within_its_bound(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sx.InferenceSession(write(tmp_path / "0.onnx"))
    limit = int(2.5 * sum(item.nbytes for item in cache.items()))
    monkeypatch.setenv("SARDONYX_CACHE_NBYTES", str(limit))
    for i in range(8):
        path = write(tmp_path / f"{i}.onnx", i)
        sx.InferenceSession(path)
        assert sum(item.nbytes for item in cache.items()) <= limit and was_kept(path)


PROGRAM = """
import sys, time, numpy as np, sardonyx as sx
path, end = sys.argv[1], time.time() + float(sys.argv[2])
x, found = np.arange(48, dtype="f").reshape(3, 16), set()
while time.time() < end:
    found.add(sx.InferenceSession(path).run(None, {"x": x})[0].tobytes().hex())
print(*found)
"""


def test_starts_while_entries_vanish_and_are_damaged(tmp_path: Path, folder: Path) -> None:
    path = write(tmp_path / "a.onnx")
    x = np.arange(48, dtype="f").reshape(3, 16)
    expected = sx.InferenceSession(path).run(None, {"x": x})[0].tobytes().hex()
    command = [sys.executable, "-c", PROGRAM, str(path), "4"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    rng, rounds = np.random.default_rng(0), 0
    while any(process.poll() is None for process in started):
        rounds += 1
        for item in cache.items():
            file = Path(item.file.folder.path) / item.file.name
            if rounds % 3 == 0:
                item.file.remove()
            elif rounds % 3 == 1 and file.exists():
                content = bytearray(file.read_bytes())
                if content:
                    content[int(rng.integers(len(content)))] ^= 1
                    replacement = file.with_name("replacement")
                    replacement.write_bytes(content[: int(rng.integers(len(content) + 1))])
                    replacement.chmod(0o600)
                    replacement.rename(file)
        if rounds == 2:
            started[0].kill()
    told = [process.communicate() for process in started]
    assert all(out.split() == [expected] for out, _ in told[1:])
    assert not any("Traceback" in errors for _, errors in told)
