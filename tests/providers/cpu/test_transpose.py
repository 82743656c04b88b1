"""Copies and transposes: every element width, odd sizes, bits preserved."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx import dtypes
from sardonyx.lower.groups import Apply, Expression, Loop
from sardonyx.ops.pointwise import program_of
from sardonyx.providers.cpu.kernels.loops import interleave, loop
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from sardonyx.providers.cpu.program.steps import Step
from tests.providers.cpu.running import Array, Memory

MACHINES = [None, "haswell", "skylake-avx512"]
RNG = np.random.default_rng(3)


def copied(x: Array, *, machine: str | None = None, threads: int = 2) -> tuple[Array, list[Step]]:
    """A view's elements, written one after the other."""
    chip, memory = isa.named(machine), Memory()
    view, out = memory.input(x), memory.output(x.shape, x.dtype)
    group = Loop((), x.shape, 0, (view,), Expression((view.dtype,), (), (0,)), (out,))
    steps = loop.steps(group, Analysis(Target(chip)))
    memory.run(steps, threads=threads, isa=chip, checked=machine is None)
    return memory.array(out), steps


def bits(*shape: int, dtype: Any) -> Array:
    raw = RNG.integers(0, 256, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    return raw.view(dtype).reshape(shape) if np.dtype(dtype) != bool else (raw[..., 0] & 1).astype(bool)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8"])
def test_transposes(machine: str | None, dtype: str) -> None:
    for shape in ((4, 4), (16, 16), (5, 7), (33, 70), (3, 64, 40), (300, 17), (20, 300), (2, 47, 47), (0, 8)):
        x = bits(*shape, dtype=dtype).swapaxes(-1, -2)
        y, steps = copied(x, machine=machine)
        assert y.tobytes() == x.tobytes(), shape
        kernel = "interleave" if min(shape[-2:]) <= interleave.MAX_PLANES else "transpose"
        assert x.size == 0 or {s.spec.name for s in steps} == {kernel}


@pytest.mark.parametrize("perm", [(0, 2, 1, 3), (3, 0, 1, 2), (2, 3, 0, 1), (3, 2, 1, 0), (1, 0, 3, 2)])
def test_permutations(perm: tuple[int, ...]) -> None:
    x = bits(3, 9, 5, 18, dtype="f4").transpose(perm)
    y, _ = copied(x)
    assert y.tobytes() == x.tobytes()


def test_rows_in_blocks() -> None:
    """Heads and positions change places: rows are copied in row blocks, with one left over."""
    for length in (1, 16, 37):
        x = bits(3, length, 5, 18, dtype="f4").transpose(0, 2, 1, 3)
        y, steps = copied(x, threads=3)
        assert y.tobytes() == x.tobytes()
        assert steps[0].variant == ("in row blocks" if length > 1 else "")


@pytest.mark.parametrize("dtype", ["?", ml_dtypes.bfloat16, "f2", "i8", "i1", ml_dtypes.float8_e4m3fn])
def test_copies_keep_every_bit(dtype: Any) -> None:
    """NaN payloads too: a copy loads and stores integers."""
    x = bits(6, 50, dtype=dtype)
    for view in (x, x[:, 3:40], x[::2, ::3], np.broadcast_to(x[:1], (4, 50))):
        y, _ = copied(view)
        assert y.tobytes() == view.tobytes()


def test_reversed() -> None:
    """A negative stride: element 0 is not the first in memory."""
    memory = Memory()
    x = bits(41, dtype="f4")
    view = memory.input(x)
    view = type(view)(view.storage, view.shape, (-1,), 40)
    out = memory.output((41,), "f4")
    steps = loop.steps(
        Loop((), (41,), 0, (view,), Expression((view.dtype,), (), (0,)), (out,)), Analysis(Target(isa.named(None)))
    )
    memory.run(steps)
    assert memory.array(out).tobytes() == x[::-1].tobytes()


@pytest.mark.parametrize("machine", MACHINES)
def test_transposed_operand_of_a_sum(machine: str | None) -> None:
    """Only the transposed operand is transposed; biases along rows and columns are read directly."""
    program = program_of("Add", 2)
    assert program is not None
    f32 = dtypes.f32
    e = Expression((f32, f32, f32), (Apply(program, (0, 1), f32), Apply(program, (3, 2), f32)), (4,))
    x, along, down = (RNG.standard_normal(s).astype("f") for s in ((45, 37), (45,), (37, 1)))
    chip, memory = isa.named(machine), Memory()
    views = tuple(memory.input(np.broadcast_to(a, (37, 45))) for a in (x.T, along, down))
    out = memory.output((37, 45), "f")
    steps = loop.steps(Loop((), (37, 45), 0, views, e, (out,)), Analysis(Target(chip)))
    assert steps[0].spec.name == "transpose"
    memory.run(steps, threads=3, isa=chip, checked=True)
    assert np.array_equal(memory.array(out), x.T + along + down)
