"""Faults on purpose: the n-th call of one of some functions fails, or kills the process.

Programs of this folder loop over n until no call is left, in processes that can die. A small model is started, with an
empty cache folder, and run; after each fault comes a start without one. LLVM compiles each kernel once in all.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser

import sardonyx as sx
from sardonyx.errors import SardonyxError
from sardonyx.providers.cpu.codegen import compiler
from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.program import constants
from sardonyx.session.compiled_cache import CachedEngine
from tests.slices import TEST_ALL, first
from tests.waiting import let_threads_end

TEXT = """
<ir_version: 10, opset_import: ["": 21]>
g (float[batch, 64] x, int64[2] i) => (float[batch, 300] y, float[2, 300] z)
{
    p = MatMul(x, w)
    y = Add(p, c)
    z = Gather(w, i)
}
"""
Functions = tuple[tuple[Any, str], ...]
WRITES: Functions = tuple((os, name) for name in ("open", "write", "replace", "fsync", "mkdir"))
STEPS: Functions = (*((os, n) for n in ("open", "write", "replace", "mkdir", "unlink", "fchmod")), (fcntl, "flock"))
"""What changes a folder, or may."""
FILES: Functions = (*STEPS, *((os, name) for name in ("fsync", "link", "preadv", "fstat", "listdir", "readlink")))
"""What we ask of file systems."""
ARRAYS = ("empty", "zeros", "ones", "full", "ascontiguousarray", "concatenate", "arange", "frombuffer")
THREADS = 2
"""Each may be writing a file when the process is killed, and takes a stack and an arena of malloc's."""
EVERY = 1 if TEST_ALL else 7
"""Of so many calls that can fail, or be the last, one does, another at each commit; `make test-all` takes each."""
MEMORY: Functions = (*((np, name) for name in ARRAYS), (mmap, "mmap"))


def points() -> Iterator[int]:
    """The calls that fail, or are the last, one after the other."""
    return count(first(EVERY), EVERY)


def weights(factor: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"w": (64, 300), "c": (300,)}
    return {name: factor * rng.integers(-8, 9, shape).astype("f") for name, shape in shapes.items()}


def started(model: Path | str) -> sx.InferenceSession:
    """A session that starts and writes with ``THREADS`` threads, on any machine."""
    options = sx.SessionOptions()
    options.intra_op_num_threads = THREADS
    return sx.InferenceSession(str(model), options)


def feed(batch: int = 3) -> dict[str, np.ndarray]:
    return {"x": np.ones((batch, 64), "f"), "i": np.array([5, 7])}


def write(path: Path, factor: int = 1) -> Path:
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in weights(factor).items())
    path.write_bytes(model.SerializeToString())
    return path


def check(session: sx.InferenceSession, batch: int = 3, factor: int = 1) -> None:
    """Whether the answer is right."""
    w, given = weights(factor), feed(batch)
    y, z = session.run(None, given)
    assert np.array_equal(y, given["x"] @ w["w"] + w["c"]) and np.array_equal(z, w["w"][given["i"]])


def was_kept(session: sx.InferenceSession) -> bool:
    return isinstance(session._sess.engine, CachedEngine)


def remember_compiled() -> None:
    """Compile each kernel once: the object is asked for by what it is made of."""
    plain, made = compiler.compiled, dict[Any, bytes]()

    def compiled(name: str, text: str, isa: Any, level: int = compiler.OPTIMIZED) -> bytes:
        key = name, text, isa.key, level
        if key not in made:
            made[key] = plain(name, text, isa, level)
        return made[key]

    compiler.compiled = compiled


def forget() -> None:
    """As a new process, but for what is imported."""
    let_threads_end()  # a kernel that one loads later is known then, and perhaps not in the cache
    linker._addresses.clear()
    linker.natives.clear()
    constants._packed.clear()


class Fault:
    """The n-th call of any of some functions fails."""

    def __init__(self, at: int, act: Callable[[str], None]) -> None:
        self.at, self.calls, self.act = at, 0, act
        self.name = ""

    @property
    def is_met(self) -> bool:
        return bool(self.name)

    def __call__(self, name: str) -> None:
        self.calls += 1
        if self.calls == self.at + 1:
            self.name = name
            self.act(name)


def error(number: int) -> Callable[[str], None]:
    def act(name: str) -> None:
        raise OSError(number, os.strerror(number))

    return act


def no_memory(name: str) -> None:
    if name == "mmap":
        raise OSError(12, os.strerror(12))
    raise MemoryError(f"{name}, on purpose")


def killed(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def faulty(functions: Sequence[tuple[Any, str]], fault: Fault) -> Iterator[Fault]:
    """Calls of these functions go by a fault, from all that look them up by their modules."""
    plain = [(home, name, getattr(home, name)) for home, name in functions]
    for home, name, function in plain:
        setattr(home, name, _guarded(name, function, fault))
    try:
        yield fault
    finally:
        for home, name, function in plain:
            setattr(home, name, function)


def _guarded(name: str, function: Any, fault: Fault) -> Any:
    def guarded(*args: Any, **named: Any) -> Any:
        fault(name)
        return function(*args, **named)

    if isinstance(function, type):
        return type(function.__name__, (function,), {"__new__": lambda cls, *a, **k: guarded(*a, **k)})
    return guarded


@cache
def allowed() -> tuple[type[BaseException], ...]:
    """What may be raised when there is no memory, or no disk."""
    return SardonyxError, MemoryError


def empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def left_over(folder: Path) -> list[str]:
    """Temporary files in a cache folder."""
    return [str(p) for p in folder.rglob("*.tmp")] if folder.exists() else []


def in_a_child(work: Callable[[], None]) -> int:
    """What became of a forked process: an exit code, or minus a signal."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            work()
            code = 0
        except allowed() as problem:
            print("raised", type(problem).__name__, str(problem)[:150], flush=True)
            code = 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
