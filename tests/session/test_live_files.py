"""Files that change under a live session: it runs on as it was, or says that they changed. It never crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.errors import Fail
from sardonyx.files import SourceFile
from tests.session import live_files

pytestmark = pytest.mark.usefixtures("unverified")


@pytest.mark.sliced(2)
@pytest.mark.parametrize("mode", live_files.MODES)
def test_a_file_changes_under_a_session(mode: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SARDONYX_CACHE": "off"}
    if mode.endswith("kept"):
        environment["SARDONYX_CACHE"] = str(tmp_path / "cache")
    program = [sys.executable, live_files.__file__, mode, str(tmp_path)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert list(told) == [" ".join(case) for case in live_files.cases(mode)]
    for case, outcome in told.items():
        name, moment = case.split()
        if name in live_files.HARMLESS:
            assert outcome == "ran right", case
        else:
            assert outcome == "ran right" or "was changed while a session was using it" in outcome, case
        if moment in live_files.LATER and mode != "numpy":
            assert outcome.startswith("ran "), case


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 16)
    return path


def test_any_part_is_read(file: Path) -> None:
    opened = SourceFile.open(str(file))
    assert len(opened) == 4096 and opened.bytes(255, 258) == b"\xff\x00\x01" and opened.bytes(7, 7) == b""
    memory = np.empty(4096, np.uint8)
    opened.read_into(memory, 0)
    assert memory.tobytes() == file.read_bytes()


def test_a_short_read_is_a_change(file: Path) -> None:
    opened = SourceFile.open(str(file))
    with pytest.raises(Fail, match="was changed"):
        opened.bytes(4000, 5000)


def test_a_file_that_cannot_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = SourceFile.open(str(file))

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(Fail, match=r"cannot be read \(Input/output error\).*file"):
        opened.bytes(0, 10)


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_program_that_closes_every_descriptor(file: Path, tmp_path: Path, is_taken: bool) -> None:
    """As daemons do. A number may be another file's by then, which is neither read nor closed."""
    opened = SourceFile.open(str(file))
    number = opened._fd
    os.close(number)
    if is_taken:
        other = os.open(tmp_path, os.O_RDONLY)
        if other != number:
            os.dup2(other, number)
            os.close(other)
    assert opened.bytes(0, 3) == b"\0\1\2"
    del opened
    if is_taken:
        assert os.path.samestat(os.fstat(number), tmp_path.stat())
        os.close(number)


def test_descriptors_are_closed_with_the_session(file: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        SourceFile.open(str(file)).bytes(0, 1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_buffer_that_its_owner_changes(tmp_path: Path) -> None:
    """A model in a mutable buffer is copied."""
    data = bytearray(live_files.write(tmp_path / "model.onnx", "built").read_bytes())
    session = sx.InferenceSession(onnx.ModelProto.FromString(bytes(data)).SerializeToString())
    plain = session.run(None, live_files.feed())
    from sardonyx.interpret.context import RunContext
    from sardonyx.session.build import BuildOptions, build

    engine = build(data, BuildOptions())
    data[:] = bytes(len(data))
    for a, b in zip(engine.run(live_files.feed(), ["y", "z"], RunContext()), plain, strict=True):
        np.testing.assert_array_equal(a, b)
