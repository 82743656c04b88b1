"""The cache under stress: damaged entries of every kind, full and read-only disks, killed processes, many at once.

Right answers every time, no traceback, and no more than a warning or two.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx import cache, entries
from sardonyx.folders import PrivateFolder
from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.program import constants
from sardonyx.session.compiled_cache import CachedEngine

pytestmark = pytest.mark.usefixtures("unverified")

TEXT = """
<ir_version: 10, opset_import: ["": 21]>
g (float[n, 16] x) => (float[n, 16] y, float[n, 16] z)
<float[1] c = {2.5}> { a = MatMul(x, w) b = Relu(a) y = Mul(b, c) z = Softmax(a) }
"""
X = np.arange(48, dtype="f").reshape(3, 16) / 8
W = np.random.default_rng(0).standard_normal((16, 16)).astype("f")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def check(session: sx.InferenceSession) -> None:
    y, z = session.run(None, {"x": X})
    products = X.astype("d") @ W
    powers = np.exp(products - products.max(1, keepdims=True))
    np.testing.assert_allclose(y, np.maximum(products, 0) * 2.5, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(z, powers / powers.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


def started(model: Path) -> bool:
    """Start, as a new process would, and run; whether the start came from the cache."""
    cache.flush()
    linker._addresses.clear()
    linker.natives.clear()
    constants._packed.clear()
    session = sx.InferenceSession(model)
    check(session)
    cache.flush()
    return isinstance(session._sess.engine, CachedEngine)


FRONT = len(entries.MARK)
Damage = Callable[[bytes], bytes]


def flipped(at: int) -> Damage:
    def damage(content: bytes) -> bytes:
        i = at % len(content)
        return content[:i] + bytes([content[i] ^ 0x41]) + content[i + 1 :]

    return damage


def at_share(share: float) -> Damage:
    return lambda content: flipped(int(share * len(content)))(content)


DAMAGES: dict[str, Damage] = {
    "the mark": flipped(2),
    "another version of the format": lambda content: content.replace(entries.MARK, b"sardonyx cache 0", 1),
    "the size of the header": flipped(FRONT),
    "a huge header": flipped(FRONT + 7),
    "the size of the body": flipped(FRONT + 8),
    "a huge body": flipped(FRONT + 15),
    "the digest": flipped(FRONT + 20),
    "the first byte of the header": flipped(FRONT + 48),
    "a byte of the header": flipped(FRONT + 90),
    "a byte at a quarter": at_share(0.25),
    "a byte in the middle": at_share(0.5),
    "a byte at three quarters": at_share(0.75),
    "the last byte": flipped(-1),
    "empty": lambda content: b"",
    "cut in the mark": lambda content: content[:7],
    "cut after the front": lambda content: content[: FRONT + 48],
    "cut in the middle": lambda content: content[: len(content) // 2],
    "cut by a byte": lambda content: content[:-1],
    "longer by a byte": lambda content: content + b"\0",
    "twice": lambda content: content * 2,
    "zeros": lambda content: bytes(len(content)),
    "ones": lambda content: b"\xff" * len(content),
    "the second half zeros": lambda content: content[: len(content) // 2].ljust(len(content), b"\0"),
}


@pytest.mark.sliced(4)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["start", "graph", "o", "all"])
def test_damaged_entries(kind: str, damage: str, model: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    started(model)
    for path in folder.rglob("*" if kind == "all" else f"*.{kind}"):
        if path.is_file():
            path.write_bytes(DAMAGES[damage](path.read_bytes()))
    if kind in ("graph", "o"):  # they are read when there is no compiled model
        for path in folder.glob("*.start"):
            path.unlink()
    with caplog.at_level(logging.WARNING):
        started(model)
        started(model)
        assert started(model)
    assert len(caplog.records) <= 2, caplog.text


PROGRAM = """
import sys, numpy as np, sardonyx as sx
x = np.arange(48, dtype="f").reshape(3, 16) / 8
for _ in range(int(sys.argv[2])):
    y, z = sx.InferenceSession(sys.argv[1]).run(None, {"x": x})
    print(np.round(y, 3).tobytes().hex() + np.round(z, 3).tobytes().hex())
"""


def process(model: Path, times: int = 1, **named: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(model), str(times)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **named)  # type: ignore[call-overload]


def results(done: subprocess.Popen[str]) -> tuple[set[str], list[str]]:
    """What it printed, and its warnings."""
    out, errors = done.communicate()
    assert done.returncode == 0 and "Traceback" not in errors, errors
    return set(out.split()), errors.splitlines()


@pytest.mark.parametrize("nbytes", [0, 100, 3000])
def test_a_disk_that_is_full_in_the_middle_of_a_file(nbytes: int, model: Path, folder: Path) -> None:
    """The system refuses to write more than so many bytes of a file."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))

    expected, _ = results(process(model, env={**os.environ, "SARDONYX_CACHE": "off"}))
    found, warnings = results(process(model, 2, preexec_fn=limit))
    assert found == expected and len(warnings) <= 2, warnings
    assert results(process(model, 2)) == (expected, [])
    assert started(model) and not list(folder.rglob("*.tmp"))


def test_a_full_disk_is_one_warning(
    model: Path, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(self: PrivateFolder, name: str, chunks: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PrivateFolder, "write", is_full)
    monkeypatch.setattr(entries, "_reported", set())
    with caplog.at_level(logging.WARNING):
        assert not started(model)
    (warning,) = caplog.messages  # of the cache and of its kernels
    assert "No space left" in warning


@pytest.mark.parametrize("home", ["/proc/self", "/dev/null", "/nonexistent/home", "relative"])
def test_homes_without_room_for_a_cache(home: str, model: Path) -> None:
    """Nothing is cached, and nothing said: the user has not asked for a cache."""
    environment = {k: v for k, v in os.environ.items() if k != "SARDONYX_CACHE"}
    expected, _ = results(process(model, env={**environment, "SARDONYX_CACHE": "off"}))
    if home == "/nonexistent/home" and os.access("/", os.W_OK):
        home = "/sys/nonexistent"
    found, warnings = results(process(model, 2, env={**environment, "XDG_CACHE_HOME": home}))
    assert found == expected and warnings == []


@pytest.mark.slow
def test_processes_that_start_are_killed_and_have_their_cache_cleared(model: Path, folder: Path) -> None:
    rng = random.Random(0)
    expected, _ = results(process(model, env={**os.environ, "SARDONYX_CACHE": "off"}))
    for _ in range(6):
        running = [process(model) for _ in range(8)]
        ends = {p: time.monotonic() + rng.uniform(0.2, 4) for p in running[::2]}
        while any(p.poll() is None for p in running):
            for p, end in ends.items():
                if p.poll() is None and time.monotonic() > end:
                    p.kill()
            if rng.random() < 0.05:
                cache.clear()
            time.sleep(0.02)
        for p in running:
            if p in ends and p.returncode < 0:
                p.communicate()
            else:
                assert results(p) == (expected, [])
    started(model)
    assert started(model)
