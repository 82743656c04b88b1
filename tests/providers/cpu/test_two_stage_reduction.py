"""Long reductions of few rows: chunks and passes that threads share."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.ir import dims
from sardonyx.lower.groups import Apply, Count, Expression, Loop, Reduce, View
from sardonyx.providers.cpu.kernels.loops import loop, two_stage_reduction
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from tests.providers.cpu.running import Array, Memory, by_pixel
from tests.providers.cpu.test_fused_loop import DIV, EXP, MACHINES, MUL, SUB, f32, floats, layer_norm, run


def mean() -> Expression:
    return Expression((f32,), (Reduce("sum", 0, f32), Count(f32), Apply(DIV, (1, 2), f32)), (3,))


@pytest.mark.parametrize(
    ("shape", "steps"),
    [((1, 20, 60, 70), 2), ((2, 3, 150, 151), 2), ((1, 60, 1200), 2), ((1, 130, 3, 5), 1), ((1, 1400, 49), 1)],
)
def test_reductions_of_nhwc_images(shape: tuple[int, ...], steps: int) -> None:
    """Channels are neighbours: vectors lie along them, and threads share the rows of a large image, several each."""
    e = Expression(
        (f32, f32),
        (Reduce("sum", 0, f32), Count(f32), Apply(DIV, (2, 3), f32), Apply(MUL, (4, 1), f32), Reduce("max", 0, f32)),
        (5, 6),
    )
    axes = tuple(range(2, len(shape)))
    x, scale = by_pixel(floats(*shape)), floats(*shape[:2])
    memory = Memory()
    views = tuple(memory.input(np.broadcast_to(a, shape)) for a in (x, scale.reshape(*shape[:2], *(1 for _ in axes))))
    outs = tuple(memory.output(shape[:2], "f") for _ in range(2))
    made = loop.steps(Loop((), shape, len(axes), views, e, outs), Analysis(Target(isa.named(None))))
    assert [step.variant for step in made] == ["vectors across rows"] * steps
    results = []
    for threads in (1, 2, 3):
        memory.run(made, threads=threads, checked=True)
        results.append([memory.array(o).copy() for o in outs])
    mean, largest = results[0]
    want = x.astype(np.float64).mean(axes) * scale
    np.testing.assert_allclose(mean, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(largest, x.max(axes))
    for again in results[1:]:
        np.testing.assert_array_equal(again, results[0])


@pytest.mark.parametrize("machine", MACHINES)
def test_element_stores_with_vectors_across_rows(machine: str | None) -> None:
    """A reduced axis that could be cut in bands is not where elements are stored."""
    e = Expression((f32,), (*mean().steps, Apply(MUL, (0, 3), f32)), (4,))
    x = floats(1, 2048, 64)
    (y,) = run([x.transpose(0, 2, 1)], e, [((1, 64, 2048), "f")], reduced=1, order=(0, 2, 1), machine=machine)
    np.testing.assert_allclose(y, (x * x.astype(np.float64).mean(1, keepdims=True)).transpose(0, 2, 1), atol=1e-6)


@pytest.mark.parametrize("is_transposed", [False, True], ids=["by pixel", "from planes"])
@pytest.mark.parametrize(
    ("shape", "is_split"), [((2, 20, 70, 100), True), ((1, 40, 6561), True), ((1, 200, 60, 60), False)]
)
def test_passes_over_nhwc_are_separate_loops(shape: tuple[int, ...], is_split: bool, is_transposed: bool) -> None:
    """An instance normalization: threads share its pixels, for there are few channels."""
    axes, x = tuple(range(2, len(shape))), floats(*shape) + 3
    scale, bias = (np.broadcast_to(floats(shape[1]).reshape(1, -1, *(1 for _ in axes)), shape) for _ in range(2))
    memory = Memory()
    views = tuple(memory.input(a) for a in (x if is_transposed else by_pixel(x), scale, bias))
    out = memory.output(shape, "f", order=(0, *axes, 1))
    made = loop.steps(Loop((), shape, len(axes), views, layer_norm(), (out,)), Analysis(Target(isa.named(None))))
    assert (len(made) > 1) == is_split
    y = x.astype(np.float64)
    want = (y - y.mean(axes, keepdims=True)) / np.sqrt(y.var(axes, keepdims=True) + 1e-5) * scale + bias
    memory.run(made, checked=True)
    got = memory.array(out).copy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)
    for threads in (2, 3):
        memory.run(made, threads=threads)
        np.testing.assert_array_equal(memory.array(out), got)


def test_per_row_values_of_separate_loops() -> None:
    """What every pixel gets of its channel is not made by a loop of elements."""
    shape, total = (1, 20, 16384), Expression((f32,), (Reduce("sum", 0, f32),), (1,))
    x = floats(*shape)
    for e, count in ((mean(), shape[2]), (total, 1)):
        memory = Memory()
        view, out = memory.input(by_pixel(x)), memory.output(shape, "f", order=(0, 2, 1))
        made = loop.steps(Loop((), shape, 1, (view,), e, (out,)), Analysis(Target(isa.named(None))))
        memory.run(made, threads=2, checked=True)
        want = np.broadcast_to(x.astype(np.float64).sum(2, keepdims=True) / count, shape)
        np.testing.assert_allclose(memory.array(out), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pixels", [0, 1, 1931, 70_001])
def test_reductions_of_nhwc_images_of_unknown_size(pixels: int) -> None:
    """Chunks need no sizes that they divide."""
    n, size = dims.symbol("n"), dims.mul(dims.symbol("h"), dims.symbol("w")) or 0
    memory, shape = Memory({"n": 2, "h": pixels, "w": 1}), (n, 24, size)
    x = by_pixel(floats(2, 24, pixels) + 1)
    view = View(memory.input(x).storage, shape, (dims.mul(24, size) or 0, 1, 24))
    out = memory.output((n, 24), "f")
    chip = isa.named("skylake-avx512")
    made = loop.steps(Loop((), shape, 1, (view,), mean(), (out,)), Analysis(Target(chip)))
    assert len(made) == 2
    results = []
    for threads in (1, 3):
        memory.run(made, threads=threads, isa=chip, checked=True)
        results.append(memory.array(out).copy())
    np.testing.assert_array_equal(*results)
    if pixels:
        np.testing.assert_allclose(results[0], x.astype(np.float64).mean(2), rtol=1e-6)


@pytest.mark.parametrize("n", [0, 5, two_stage_reduction.CHUNK, 3 * two_stage_reduction.CHUNK + 7])
def test_long_rows(n: int) -> None:
    """A row of unknown length is reduced in pieces, with the same result for any number of threads."""
    size = dims.symbol("n")
    results = []
    x = floats(2, n) + 1
    for threads in (1, 2, 3):
        memory = Memory({"n": n})
        view, out = memory.output((2, size), "f"), memory.output((2,), "f")
        memory.array(view)[...] = x
        steps = loop.steps(Loop((), (2, size), 1, (view,), mean(), (out,)), Analysis(Target(isa.named(None))))
        assert len(steps) == 2
        memory.run(steps, threads=threads, checked=True)
        results.append(memory.array(out))
    assert all(np.array_equal(results[0], r, equal_nan=True) for r in results)
    if n:
        np.testing.assert_allclose(results[0], x.astype(np.float64).mean(-1), rtol=2e-7)


def test_long_sums_stay_exact() -> None:
    """Sums go to totals of their own before small numbers drown: one chain of additions a lane would be off by 1e-4."""
    x = np.full((20, 300_000), 0.1, "f")
    (y,) = run([x], mean(), [((20,), "f")], reduced=1, checked=False)
    np.testing.assert_allclose(y, x[0].astype(np.float64).mean(), rtol=5e-6)


def test_sums_over_several_axes_stay_exact() -> None:
    """The axes of a row that do not merge into one: each of them is summed in pieces."""
    x = np.full((300, 300, 20, 4), 0.1, "f")[..., :3]
    for axes in ((2, 0, 1, 3), (3, 0, 2, 1)):
        y = x.transpose(axes)
        (mine,) = run([y], mean(), [(y.shape[:1], "f")], reduced=3, checked=False)
        np.testing.assert_allclose(mine, x[0, 0, 0, 0].astype(np.float64), rtol=2e-5)


def grouped(x: Array, groups: int) -> tuple[Array, int]:
    """An image with an axis for groups of channels, and the number of axes of a group."""
    n, c, *spatial = x.shape
    strides = (x.strides[0], x.strides[1] * (c // groups), *x.strides[1:])
    return np.lib.stride_tricks.as_strided(x, (n, groups, c // groups, *spatial), strides), 1 + len(spatial)


@pytest.mark.parametrize("machine", [*MACHINES, "skylake-avx512"])
@pytest.mark.parametrize(
    ("shape", "groups"), [((1, 12, 5, 7), 3), ((2, 64, 30, 31), 32), ((1, 24, 201, 203), 3), ((2, 10, 9), 5)]
)
@pytest.mark.parametrize("of", ["channel", "group"])
def test_group_normalization_of_nhwc_images(shape: tuple[int, ...], groups: int, of: str, machine: str | None) -> None:
    """A row's elements are in short runs between those of other rows: vectors lie across rows and runs. Scale and bias
    are one ``of`` each.
    """
    chip = isa.named(machine)
    x, reduced = grouped(by_pixel(floats(*shape) + 3), groups)
    each = x.shape[1:3] if of == "channel" else (groups, 1)
    affine = floats(2, *each).reshape(2, 1, *each, *(1 for _ in shape[2:]))
    memory = Memory()
    views = tuple(memory.input(np.broadcast_to(a, x.shape)) for a in (x, *affine))
    order = (0, *range(3, x.ndim), 1, 2)
    out = memory.output(x.shape, "f", order=order)
    group = Loop((), x.shape, reduced, views, layer_norm(), (out,))
    made = loop.steps(group, Analysis(Target(chip)))
    assert len(made) > 3 and not made[-1].variant
    extents = [made[-1].args[name] for name in made[-1].args if name.startswith("n") and name[1:].isdigit()]
    assert extents[-1] == shape[1], "the last loop follows memory: its last axis is that of channels"
    axes, y = tuple(range(2, x.ndim)), x.astype(np.float64)
    want = (y - y.mean(axes, keepdims=True)) / np.sqrt(y.var(axes, keepdims=True) + 1e-5) * affine[0] + affine[1]
    memory.run(made, isa=chip, checked=True)
    got = memory.array(out).copy()
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=3e-6)
    memory.run(made, threads=3, isa=chip)
    np.testing.assert_array_equal(memory.array(out), got)


def test_reductions_and_softmax_over_runs() -> None:
    """Loops without stores of elements, and with values that are stored because they are expensive."""
    x, reduced = grouped(by_pixel(floats(2, 24, 40, 41)), 8)
    axes = (2, 3, 4)
    total = Expression(
        (f32,), (Reduce("max", 0, f32), Reduce("sum", 0, f32), Count(f32), Apply(DIV, (2, 3), f32)), (1, 4)
    )
    largest, average = run([x], total, [((2, 8), "f"), ((2, 8), "f")], reduced=reduced, threads=2)
    np.testing.assert_array_equal(largest, x.max(axes))
    np.testing.assert_allclose(average, x.astype(np.float64).mean(axes), atol=1e-7)
    steps = (
        Reduce("max", 0, f32), Apply(SUB, (0, 1), f32), Apply(EXP, (2,), f32), Reduce("sum", 3, f32),
        Apply(DIV, (3, 4), f32),
    )  # fmt: skip
    e = np.exp(x.astype(np.float64) - x.max(axes, keepdims=True))
    for order in (None, (0, 3, 4, 1, 2)):
        (y,) = run([x], Expression((f32,), steps, (5,)), [(x.shape, "f")], reduced=reduced, order=order, threads=2)
        np.testing.assert_allclose(y, e / e.sum(axes, keepdims=True), rtol=1e-6)


def test_normalization_of_one_long_row() -> None:
    """Threads share the only row."""
    x = floats(1, 300_007) + 5
    memory = Memory()
    views = tuple(memory.input(np.broadcast_to(a, x.shape)) for a in (x, floats(1, 1), floats(1, 1)))
    out = memory.output(x.shape, "f")
    made = loop.steps(Loop((), x.shape, 1, views, layer_norm(), (out,)), Analysis(Target(isa.named(None))))
    assert len(made) == 5
    y, (scale, bias) = x.astype(np.float64), (memory.array(v)[0, 0] for v in views[1:])
    results = []
    for threads in (1, 3):
        memory.run(made, threads=threads, checked=True)
        results.append(memory.array(out).copy())
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(
        results[0], (y - y.mean()) / np.sqrt(y.var() + 1e-5) * scale + bias, rtol=1e-5, atol=3e-6
    )
