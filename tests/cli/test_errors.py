"""Bad input, no permission, a full disk, Ctrl-C: one line from every command, and nothing half-written."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from sardonyx import writing
from sardonyx.cli import INTERRUPTED, UNUSABLE, main, running, table
from sardonyx.cli.running import command_tree
from sardonyx.model import load
from tests.cli.commands import Commands

QUICK_BENCH = ("--peer", "none", "--seconds", "0.1", "--rounds", "2", "--starts", "1", "--warm", "0")
USUAL: dict[str, tuple[str, ...]] = {
    "run": (),
    "bench": QUICK_BENCH,
    "profile": ("--runs", "1"),
    "tune": ("--rounds", "6", "--seconds", "0.01"),
    "inspect": (),
    "explain": (),
    "compare": ("--no-layers",),
    "report": (),
    "optimize": ("--output", "made.onnx"),
    "quantize": ("--output", "made.onnx", "--how", "dynamic", "--samples", "1"),
    "cache warm": (),
}
"""Commands that are given a model, and what makes them quick."""
WRITE: dict[str, tuple[str, str]] = {
    "run": ("--output", "out.npz"),
    "bench": ("--history", "times.jsonl"),
    "profile": ("--save-trace", "trace.json"),
    "tune": ("--output", "settings.json"),
    "report": ("--output", "page.html"),
    "optimize": ("--output", "made.onnx"),
    "quantize": ("--output", "made.onnx"),
}
"""Commands that write a file, by the option that names it."""
READ = {"against", "torch", "from_trace", "config", "folder", "model", "other", "a", "b"}
"""Parameters that name files to read, and folders."""


def subcommands(group: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    found = {}
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            found |= subcommands(each, (*path, name))
        else:
            found[" ".join((*path, name))] = each
    return found


COMMANDS = subcommands(command_tree())


def having(option: str) -> list[str]:
    return [name for name in USUAL if any(option in each.opts for each in COMMANDS[name].params)]


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SARDONYX_CACHE", str(shared_cache))
    return folder


@pytest.fixture
def unusable(commands: Commands, in_an_empty_folder: Path) -> Callable[..., str]:
    """Run a command that cannot work; its line of error, in small letters."""

    def run(name: str, *args: object) -> str:
        done = commands(*name.split(), *args)
        assert done.status == UNUSABLE, (done.status, done.out, done.err)
        assert done.out == "" and list(in_an_empty_folder.iterdir()) == []
        return done.error.lower()

    return run


def test_all_commands_are_here() -> None:
    assert set(COMMANDS) == {*USUAL, "demo", "info", "cache list", "cache clear"}
    assert {name.split()[0] for name in COMMANDS} == set(table.COMMANDS)
    for name in table.COMMANDS:
        function = import_module(f"sardonyx.cli.commands.{name}").command
        if callable(function):
            paths = {key for key, hint in get_type_hints(function).items() if hint in (Path, Path | None)}
            written = {WRITE[name][0].removeprefix("--").replace("-", "_")} if name in WRITE else set()
            assert paths == (paths & READ) | written, f"{name}: are {paths} read or written?"


@pytest.mark.parametrize("name", USUAL)
def test_files_that_are_no_models(name: str, unusable: Callable[..., str], jpeg: Path, tmp_path: Path) -> None:
    (empty := tmp_path / "empty.onnx").write_bytes(b"")
    (text := tmp_path / "text.onnx").write_text("this is a text\n" * 40)
    said = {tmp_path / "none.onnx": "exist", jpeg: "jpeg", tmp_path: "folder", empty: "", text: ""}
    for path, word in said.items():
        line = unusable(name, path, *USUAL[name])
        assert word in line and path.name in line


@pytest.mark.parametrize("name", USUAL)
def test_a_model_that_is_cut_off(name: str, unusable: Callable[..., str], digits: Path, tmp_path: Path) -> None:
    whole = digits.read_bytes()
    (cut := tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    assert unusable(name, cut, *USUAL[name])


@pytest.mark.parametrize("name", having("--shape"))
def test_wrong_shapes(name: str, unusable: Callable[..., str], digits: Path) -> None:
    assert "does not fit" in unusable(name, digits, *USUAL[name], "--shape", "image=1x9x9")
    assert "--shape" in unusable(name, digits, *USUAL[name], "--shape", "image")
    assert "no such symbolic dimension" in unusable(name, digits, *USUAL[name], "--dim", "rows=3")


@pytest.mark.parametrize("name", having("--input"))
def test_inputs_of_a_wrong_shape(name: str, unusable: Callable[..., str], digits: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wrong.npy", np.zeros((2, 9, 9), np.uint8))
    assert "image" in unusable(name, digits, *USUAL[name], "--input", tmp_path / "wrong.npy")
    assert "no file" in unusable(name, digits, *USUAL[name], "--input", tmp_path / "none.npy")


@pytest.mark.parametrize("name", having("--provider"))
def test_an_unknown_provider(name: str, unusable: Callable[..., str], digits: Path) -> None:
    said = unusable(name, digits, *USUAL[name], "--provider", "NoExecutionProvider")
    assert "noexecutionprovider" in said and "cpuexecutionprovider" in said and "sizes" not in said


CHOICES = ("--peer", "--bench", "--with", "--precision", "--precisions")


@pytest.mark.parametrize(("name", "option"), [(name, option) for option in CHOICES for name in having(option)])
def test_an_unknown_engine_or_precision(name: str, option: str, unusable: Callable[..., str], digits: Path) -> None:
    said = unusable(name, digits, *USUAL[name], option, "nothing")
    assert "nothing" in said and "expected:" in said and "sizes" not in said


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder here that nobody may write to")
@pytest.mark.parametrize("name", WRITE)
def test_places_that_cannot_be_written(name: str, unusable: Callable[..., str], digits: Path) -> None:
    option, file = WRITE[name]
    assert unusable(name, digits, *USUAL[name], option, f"/proc/self/{file}")
    assert unusable(name, digits, *USUAL[name], option, f"none/{file}")


@pytest.mark.parametrize("name", WRITE)
def test_a_full_disk_leaves_nothing(
    name: str, unusable: Callable[..., str], digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    option, file = WRITE[name]
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(writing.Pending, "write", half_written(file, full))
    assert "no space left on device" in unusable(name, digits, *USUAL[name], option, file)


@pytest.mark.parametrize("name", WRITE)
def test_ctrl_c_while_writing_leaves_nothing(
    name: str, commands: Commands, digits: Path, monkeypatch: pytest.MonkeyPatch, in_an_empty_folder: Path
) -> None:
    option, file = WRITE[name]
    monkeypatch.setattr(writing.Pending, "write", half_written(file, KeyboardInterrupt()))
    done = commands(name, digits, *USUAL[name], option, file)
    assert (done.status, done.error, done.out) == (INTERRUPTED, "sardonyx: interrupted", "")
    assert list(in_an_empty_folder.iterdir()) == []


def half_written(name: str, error: BaseException) -> Callable[[writing.Pending, writing.Chunks], None]:
    """A write that fails in the middle of the file of this name."""
    usual = writing.Pending.write

    def write(self: writing.Pending, chunks: writing.Chunks) -> None:
        if self.name != name:
            return usual(self, chunks)
        first = bytes(next(iter(chunks)))
        os.write(self.fd, first[: len(first) // 2])
        raise error

    return write


@pytest.mark.parametrize("name", USUAL)
def test_ctrl_c_in_the_middle(
    name: str, commands: Commands, digits: Path, monkeypatch: pytest.MonkeyPatch, in_an_empty_folder: Path
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("SARDONYX_CACHE", str(in_an_empty_folder.parent / "cache"))
    monkeypatch.setattr(load, "_parse", interrupted)
    done = commands(*name.split(), digits, *USUAL[name])
    assert (done.status, done.error, done.out) == (INTERRUPTED, "sardonyx: interrupted", "")
    assert list(in_an_empty_folder.iterdir()) == []


def test_ctrl_c_while_commands_are_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "command_tree", interrupted)
    assert main(["info"]) == INTERRUPTED
    assert capsys.readouterr().err == "sardonyx: interrupted\n"


def test_other_arguments(unusable: Callable[..., str], digits: Path, jpeg: Path, tmp_path: Path) -> None:
    (photo := tmp_path / "photo.npy").write_bytes(jpeg.read_bytes())
    said = unusable("quantize", digits, *USUAL["quantize"], "--data", photo)
    assert "photo.npy" in said and "no array" in said and "pickle" not in said
    assert "greater than or equal to 0" in unusable("quantize", digits, "-o", "q.onnx", "--budget", "-3")
    said = unusable("run", digits, "--check", "--with", "tensorflow")
    assert "onnxruntime" in said and "--dim" not in said
    assert "no file" in unusable("cache clear", tmp_path / "none.onnx")
    assert "cannot write" in unusable("demo", jpeg)
