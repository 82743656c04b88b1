"""Gather and Fill: indices from both ends, any axis, strided views, and indices out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import Fail
from sardonyx.ir import dims
from sardonyx.lower.groups import Fill, Gather
from sardonyx.providers.cpu.kernels.index import gather
from sardonyx.providers.cpu.kernels.loops import fill
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from tests.providers.cpu.running import Array, Memory

MACHINES = [None, "skylake-avx512"]
RNG = np.random.default_rng(11)


def gathered(data: Array, indices: Array, axis: int, *, machine: str | None = None, threads: int = 2) -> Array:
    chip, memory = isa.named(machine), Memory()
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    out = memory.output(shape, data.dtype)
    group = Gather((), memory.input(data), memory.input(indices), axis, out)
    memory.run(gather.steps(group, Analysis(Target(chip))), threads=threads, isa=chip, checked=True)
    return memory.array(out)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("dtype", "index", "data", "indices", "axis"),
    [
        ("f4", "i8", (50, 33), (2, 7), 0),
        ("f2", "i4", (3, 50), (5,), 1),
        ("f4", "i8", (3, 50, 4), (), 1),
        ("f8", "i8", (9,), (2, 3), 0),
        ("f8", "i4", (9,), (), 0),
        ("u1", "i8", (4, 6, 5), (2, 2), 1),
        ("f4", "i8", (4, 6, 5), (2, 2), 2),
        ("f4", "i8", (7, 9000), (3,), 0),
        ("f4", "i8", (7, 3), (0,), 0),
        ("f4", "i8", (7, 0), (2,), 0),
    ],
)
def test_gather(
    machine: str | None, dtype: str, index: str, data: tuple[int, ...], indices: tuple[int, ...], axis: int
) -> None:
    x = RNG.integers(0, 100, data).astype(dtype)
    i = np.asarray(RNG.integers(-data[axis], data[axis], indices)).astype(index)
    assert np.array_equal(gathered(x, i, axis, machine=machine), np.take(x, i, axis))


def test_strided_views() -> None:
    x = RNG.standard_normal((20, 12, 8)).astype("f")
    i = RNG.integers(0, 6, (6, 8))
    for data in (x[::2, 1:, ::2], x.transpose(1, 0, 2), x.transpose(0, 2, 1)):
        assert np.array_equal(gathered(data, i[:, ::2], 1), np.take(data, i[:, ::2], 1))


@pytest.mark.parametrize(("size", "index"), [(5, 5), (5, -6), (0, 0), (5, 1 << 40)])
@pytest.mark.parametrize("columns", [(), (3,)])
def test_indices_outside_are_reported(size: int, index: int, columns: tuple[int, ...]) -> None:
    x = np.zeros((size, *columns), "f")
    with pytest.raises(Fail, match=r"error 1.*" + str(index)):
        gathered(x, np.array([0, index]) if size else np.array([index]), 0)


@pytest.mark.parametrize("dtype", ["i8", "i4", "f4"])
def test_fill_with_sizes(dtype: Any) -> None:
    n = dims.symbol("n")
    memory = Memory({"n": 10})
    out = memory.output((4,), dtype)
    steps = fill.steps(Fill((), out, (-1, n, dims.mul(n, 3), 7)), Analysis(Target(isa.named(None))))  # type: ignore[arg-type]
    memory.run(steps, threads=2, checked=True)
    assert memory.array(out).tolist() == [-1, 10, 30, 7]


def test_fill_of_one_number() -> None:
    memory = Memory()
    out = memory.output((), "i8")
    memory.run(fill.steps(Fill((), out, (42,)), Analysis(Target(isa.named(None)))), threads=2, checked=True)
    assert memory.array(out) == 42


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", ["i8", "i4", "f4"])
def test_ranges(machine: str | None, dtype: str) -> None:
    chip = isa.named(machine)
    for n in (0, 1, 5, 17, 9001):
        memory = Memory({"n": n})
        out = memory.output((dims.symbol("n"),), dtype)
        memory.run(fill.steps(Fill((), out, (), 5, -3), Analysis(Target(chip))), threads=3, isa=chip, checked=True)
        assert np.array_equal(memory.array(out), np.arange(5, 5 - 3 * n, -3).astype(dtype)[:n])
