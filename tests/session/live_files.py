"""A program that changes a model's file at every moment of a session's life, and says what came of it.

    python live_files.py MODE FOLDER

Run in a process of its own: what goes wrong here is a signal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser

import sardonyx as sx
from sardonyx.errors import SardonyxError
from sardonyx.files import SourceFile
from sardonyx.interpret.context import RunContext
from sardonyx.model import load
from sardonyx.optimize import pipelines
from sardonyx.partition import parts
from sardonyx.providers.cpu import compile as compiling
from sardonyx.providers.cpu.program import constants
from sardonyx.session import array_file, build, compiled_cache

TEXT = """
<ir_version: 10, opset_import: ["": 21]>
g (int64[rows] i, float[rows, 64] x) => (float[rows, 512] y, float[30, 64] z)
{
    e = Gather(table, i)
    s = Add(e, x)
    y = MatMul(s, w)
    z = Add(left, right)
}
"""
SHAPES = {"table": (1000, 64), "w": (64, 512), "left": (30, 64), "right": (30, 64)}
MODES = ("built", "graph kept", "engine kept", "numpy", "external")
ACTIONS: dict[str, Callable[[Path], None]] = {}


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.integers(-8, 9, shape).astype("f") for name, shape in SHAPES.items()}


def write(path: Path, mode: str) -> Path:
    """The file that holds the weights."""
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in weights().items())
    path.unlink(missing_ok=True)
    data = path.with_name("weights.bin")
    data.unlink(missing_ok=True)
    if mode == "external":
        onnx.save_model(model, path, save_as_external_data=True, location=data.name, size_threshold=0)
        return data
    path.write_bytes(model.SerializeToString())
    return path


def feed() -> dict[str, np.ndarray]:
    return {"i": np.arange(40), "x": np.ones((40, 64), "f")}


def expected() -> list[np.ndarray]:
    w = weights()
    return [(w["table"][:40] + 1) @ w["w"], w["left"] + w["right"]]


def action(function: Callable[[Path], None]) -> Callable[[Path], None]:
    ACTIONS[function.__name__] = function
    return function


@action
def truncated(path: Path) -> None:
    os.truncate(path, 0)


@action
def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


@action
def rewritten(path: Path) -> None:
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(bytes(255 - b for b in content[:4096]) + content[4096:][::-1])


@action
def deleted(path: Path) -> None:
    path.unlink()


@action
def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    other.replace(path)


HARMLESS = ("deleted", "replaced")
MOMENTS: dict[str, tuple[Any, str]] = {
    "opened": (SourceFile, "__init__"),
    "parsed": (load, "_parse"),
    "loaded": (build, "load"),
    "optimized": (pipelines, "optimize"),
    "partitioned": (build, "assign"),
    "packed": (compiling, "contents"),
    "compiled": (parts.Parts, "__init__"),
    "found": (compiled_cache._Model, "__init__"),
    "read": (array_file, "arrays_of"),
}
"""After the first call of each the file changes."""
UNCALLED = {
    "built": {"found", "read"},
    "graph kept": {"found", "read"},
    "engine kept": set[str](),
    "numpy": {"packed", "found", "read"},
    "external": {"found", "read"},
}
"""Of each mode, the moments that it does not have."""
LATER = ("started", "run", "explained", "contradicted")


def changing(moment: str, change: Callable[[], None]) -> Callable[[], bool]:
    """Make a change after the next call; returns a function that undoes it and says whether it happened."""
    home, name = MOMENTS[moment]
    plain = getattr(home, name)
    pending = [change]

    def wrapped(*args: Any, **named: Any) -> Any:
        result = plain(*args, **named)
        if pending:
            pending.pop()()
        return result

    def undo() -> bool:
        setattr(home, name, plain)
        return not pending

    setattr(home, name, wrapped)
    return undo


def life(path: Path, mode: str, moment: str, change: Callable[[], None]) -> None:
    """Start, run twice, explain, and run with sizes that contradict the model's names."""

    def now(later: str) -> None:
        if later == moment:
            change()

    if mode == "numpy":
        engine = build.build(str(path), build.BuildOptions())
        runs = lambda: engine.run(feed(), ["y", "z"], RunContext())  # noqa: E731
    else:
        session = sx.InferenceSession(str(path))
        runs = lambda: session.run(None, feed())  # noqa: E731
    now("started")
    check(runs())
    now("run")
    check(runs())
    print("ran", end=" ", flush=True)
    if mode != "numpy":
        now("explained")
        session.explain()
        now("contradicted")
        given = {"i": np.arange(1), "x": np.ones((40, 64), "f")}
        (found,) = session.run(["y"], given)
        assert np.array_equal(found, (weights()["table"][:1] + given["x"]) @ weights()["w"])
    check(runs())


def check(found: list[np.ndarray]) -> None:
    for a, b in zip(found, expected(), strict=True):
        assert np.array_equal(a, b), "the answer is wrong"


def cases(mode: str) -> list[tuple[str, str]]:
    """Actions and moments. At the first two, external data is not opened yet: what lies there later is the model."""
    moments = [*MOMENTS, *LATER]
    return [(name, moment) for name in ACTIONS for moment in moments[2 if mode == "external" else 0 :]]


def main(mode: str, folder: str) -> None:
    path = Path(folder) / "model.onnx"
    if mode == "graph kept":
        compiled_cache.key_of = lambda *_: None  # the engine is not cached
    for name, moment in cases(mode):
        data = write(path, mode)
        if mode.endswith("kept"):
            sx.InferenceSession(str(path))
            constants._packed.clear()
        print(name, moment, end=": ", flush=True)
        change = partial(ACTIONS[name], data)
        undo = changing(moment, change) if moment in MOMENTS else None
        try:
            life(path, mode, moment, change)
            print("right", flush=True)
        except SardonyxError as error:
            print(f"{type(error).__name__} {error}".replace("\n", " "), flush=True)
        if undo is not None:
            assert undo() == (moment not in UNCALLED[mode]), f"{moment} in the mode {mode}"


if __name__ == "__main__":
    main(*sys.argv[1:])
