"""Depthwise convolutions of NHWC images, against numpy in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx import dtypes
from sardonyx.ir.scalar import Emitter, Expr, trace
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Apply, Convolution, Expression, Storage, View, Window
from sardonyx.lower.views import dense
from sardonyx.providers.cpu import select
from sardonyx.providers.cpu.kernels.conv import on_tiles
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from sardonyx.providers.cpu.program.constants import content
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array, Memory, by_pixel

TOLERANCE = {np.float32: 2e-6, np.float64: 1e-14, np.float16: 2e-3, ml_dtypes.bfloat16: 2e-2}


@dataclass(frozen=True)
class Case:
    """An image (batch, channels, *sizes) under a window."""

    x: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    """In front of the image."""
    ends: tuple[int, ...] = ()
    """Behind it; as in front where they are left out."""
    dtype: Any = np.float32
    room: int = 0
    """Further channels in the memory of the image and the result."""

    @property
    def window(self) -> Window:
        ones, zeros = (1,) * len(self.kernel), (0,) * len(self.kernel)
        return Window(self.kernel, self.strides or ones, self.dilations or ones, self.pads or zeros)

    @property
    def out(self) -> tuple[int, ...]:
        w, ends = self.window, self.ends or self.pads or (0,) * len(self.kernel)
        spans = ((n - 1) * d + 1 for n, d in zip(w.kernel, w.dilations, strict=True))
        given = zip(self.x[2:], w.pads, ends, spans, w.strides, strict=True)
        return (*self.x[:2], *(max((n + int(a) + b - span) // s + 1, 0) for n, a, b, span, s in given))


CASES = {
    "3x3": Case((2, 21, 9, 10), (3, 3), pads=(1, 1)),
    "3x3, stride 2": Case((1, 17, 13, 18), (3, 3), (2, 2), pads=(1, 1)),
    "3x3, dilation": Case((1, 19, 12, 13), (3, 3), (1, 1), (2, 3), (2, 3)),
    "3x3, stride and dilation": Case((1, 6, 15, 14), (3, 3), (2, 3), (3, 2)),
    "3x3, pads below 0": Case((1, 18, 9, 9), (3, 3), pads=(-1, -2), ends=(1, 1)),
    "5x5": Case((1, 48, 12, 7), (5, 5), pads=(2, 2)),
    "3x9": Case((1, 20, 8, 21), (3, 9), pads=(1, 4)),
    "1x1": Case((2, 30, 4, 5), (1, 1)),
    "a channel slice": Case((1, 35, 8, 9), (3, 3), pads=(1, 1), room=13),
    "deep": Case((1, 400, 4, 14), (3, 3), pads=(1, 1)),
    "wide": Case((1, 8, 3, 1100), (3, 3), pads=(1, 1)),
    "only padding": Case((1, 20, 1, 1), (3, 3), pads=(4, 4)),
    "1 axis": Case((2, 22, 31), (5,), pads=(4,), ends=(0,)),
    "1 axis, many taps": Case((1, 18, 40), (15,), pads=(7,)),
    "3 axes": Case((1, 18, 4, 5, 6), (3, 3, 3), pads=(1, 1, 1)),
    "3 axes, stride": Case((1, 9, 6, 5, 9), (2, 3, 3), (2, 1, 2), pads=(1, 0, 1)),
    "double": Case((1, 11, 7, 8), (3, 3), pads=(1, 1), dtype=np.float64),
    "half": Case((1, 23, 7, 8), (3, 3), (2, 2), pads=(1, 1), dtype=np.float16),
    "brain": Case((1, 23, 7, 8), (3, 3), pads=(1, 1), dtype=ml_dtypes.bfloat16),
    "no batch": Case((0, 20, 4, 5), (3, 3)),
    "no rows": Case((1, 20, 0, 5), (3, 3), pads=(2, 1)),
}


def bias_residual_relu6(e: Emitter, x: Expr, bias: Expr, residual: Expr, scale: Expr) -> Expr:
    return e.minimum(e.maximum(x + bias, 0), 6) * scale + residual


class Run:
    """A case with bias, a scale for each image and channel, and a residual."""

    def __init__(self, case: Case, cpu: str | None = None, *, weights_are_constant: bool = True) -> None:
        self.case, self.memory = case, _Memory()
        rng = np.random.default_rng(sum(case.x))
        c, out, wide = case.x[1], case.out, case.dtype
        self.x = rng.standard_normal(case.x).astype(wide)
        self.w = (rng.standard_normal((c, 1, *case.kernel)) / np.prod(case.kernel) ** 0.5).astype(wide)
        self.bias, self.scale = rng.standard_normal(c).astype(wide), rng.standard_normal((out[0], c)).astype(wide)
        self.residual = rng.standard_normal(out).astype(wide)
        memory, lead = self.memory, (1,) * len(case.kernel)
        x = memory.input(by_pixel(self.x, case.room))
        extra = [
            memory.input(np.broadcast_to(self.bias.reshape(1, c, *lead), out)),
            memory.input(by_pixel(self.residual)),
            memory.input(np.broadcast_to(self.scale.reshape(out[0], c, *lead), out)),
        ]
        dtype = dtypes.of_numpy(np.dtype(wide))
        w = dense(Storage("constant", dtype, self.w.size, tensor=Tensor.of(self.w)), self.w.shape)
        if not weights_are_constant:
            w = memory.input(self.w)
        axes = range(2, len(out))
        self.y = memory.output((*out[:1], c + case.room, *out[2:]), wide, order=(0, *axes, 1))
        y = replace(self.y, shape=out)
        sums = dtypes.f64 if wide is np.float64 else dtypes.f32
        program = trace(bias_residual_relu6, (True,) * 4)
        epilogue = Expression((sums, dtype, dtype, dtype), (Apply(program, (0, 1, 2, 3), sums),), (4,))
        views = tuple(_unit(v) for v in extra)
        group = Convolution((), epilogue, views, (y,), _unit(x), w, case.window, c)
        self.isa = isa.named(cpu)
        self.steps = select.steps_of(group, Analysis(Target(self.isa)))

    def __call__(self, **options: Any) -> Array:
        self.memory.run(self.steps, isa=self.isa, **options)
        return self.memory.array(replace(self.y, shape=self.case.out)).copy()

    def expected(self) -> Array:
        """In float64."""
        case, window = self.case, self.case.window
        x, w, bias, scale, residual = (
            v.astype(np.float64) for v in (self.x, self.w, self.bias, self.scale, self.residual)
        )
        total = np.zeros(case.out)
        for place in product(*(range(n) for n in case.out[2:])):
            for tap in product(*(range(n) for n in case.kernel)):
                at = tuple(
                    p * s + t * d - pad
                    for p, s, t, d, pad in zip(place, window.strides, tap, window.dilations, window.pads, strict=True)
                )
                if all(0 <= i < n for i, n in zip(at, case.x[2:], strict=True)):
                    total[(..., *place)] += x[(..., *at)] * w[(slice(None), 0, *tap)]
        lead = (1,) * len(case.kernel)
        summed = np.clip(total + bias.reshape(1, -1, *lead), 0, 6) * scale.reshape(*scale.shape, *lead)
        return np.asarray(summed + residual)


class _Memory(Memory):
    def _allocate(self, storage: Storage) -> None:
        super()._allocate(storage)
        if storage.kind == "constant":
            self._flat[storage.number] = content(storage).reshape(-1)


def _unit(view: View) -> View:
    """A single channel has a stride of one element, too."""
    return replace(view, strides=(view.strides[0], 1, *view.strides[2:]))


def assert_close(got: Array, run: Run) -> None:
    case = run.case
    tolerance = TOLERANCE[case.dtype] * max(float(np.prod(case.kernel)) ** 0.5, 1)
    np.testing.assert_allclose(got.astype(np.float64), run.expected(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name: str) -> None:
    run = Run(CASES[name])
    assert run.steps[-1].spec.name == "conv_depthwise_nhwc"
    got = run(threads=1)
    assert_close(got, run)
    for threads in (2, 3):
        np.testing.assert_array_equal(run(threads=threads), got)


def test_memory_outside_a_slice_is_not_written() -> None:
    run = Run(CASES["a channel slice"])
    before = run.memory.array(run.y)[:, run.case.x[1] :].copy()
    run()
    np.testing.assert_array_equal(run.memory.array(run.y)[:, run.case.x[1] :], before)


@pytest.mark.parametrize(
    ("name", "cpu"),
    [
        ("3x3, stride 2", "haswell"), ("3x3, stride 2", "skylake-avx512"), ("a channel slice", "skylake-avx512"),
        ("5x5", "skylake-avx512"), ("half", "sapphirerapids"),
    ],
)  # fmt: skip
def test_other_chips(name: str, cpu: str) -> None:
    run = Run(CASES[name], cpu)
    assert_close(run(threads=2), run)


@pytest.mark.parametrize("name", ["a channel slice", "1 axis, many taps"])
def test_every_address_is_inside(name: str) -> None:
    run = Run(CASES[name])
    assert_close(run(checked=True), run)


def test_weights_of_the_run() -> None:
    run = Run(CASES["5x5"], weights_are_constant=False)
    assert [step.spec.name for step in run.steps] == ["pack_panels", "conv_depthwise_nhwc"]
    assert_close(run(), run)


def test_nan_and_infinity_reach_their_windows_alone() -> None:
    run = Run(CASES["3x3"])
    x = run.memory.array(_view_of(run, "x"))
    x[0, 3, 4, 4], x[1, 20, 0, 0], run.x[0, 3, 4, 4], run.x[1, 20, 0, 0] = np.nan, np.inf, np.nan, np.inf
    got, want = run(), run.expected()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    there = np.isfinite(want)
    np.testing.assert_allclose(got[there], want[there], rtol=1e-5, atol=1e-5)


def _view_of(run: Run, name: str) -> View:
    ref: Any = run.steps[-1].args[name]
    shape = run.case.x
    strides = (shape[1] * shape[2] * shape[3], 1, shape[1] * shape[3], shape[1])
    return View(ref.storage, shape, strides)


def test_nchw_images_take_the_other_kernel() -> None:
    """If channels of the result, or of another operand, are not contiguous."""
    run = Run(CASES["3x3"])
    memory, out = run.memory, run.case.out
    x, y = memory.input(by_pixel(run.x)), memory.output(out, np.float32)
    w = memory.input(run.w)
    for extra, result in (((), y), ((memory.input(run.residual),), replace(run.y, shape=out))):
        kinds = (dtypes.f32,) * (1 + len(extra))
        epilogue = Expression(kinds, (), (0,))
        group = Convolution((), epilogue, extra, (result,), x, w, run.case.window, run.case.x[1])
        steps = select.steps_of(group, Analysis(Target(isa.named(None))))
        assert [step.spec.name for step in steps] == ["conv_depthwise_nchw"]


def test_dynamic_sizes() -> None:
    """A network that is written channels last has such images on every chip."""
    body = """a = Transpose<perm = [0, 3, 1, 2]>(x) b = Conv<group = 18, strides = [2, 2], pads = [1, 1, 1, 1]>(a, w)
              c = Relu(b) y = Transpose<perm = [0, 2, 3, 1]>(c)"""
    w = np.random.default_rng(0).standard_normal((18, 1, 3, 3)).astype(np.float32)
    compiled = Compiled(body, "float[n,h,w,18] x, float[18,1,3,3] w", "float[n,p,q,18] y")
    assert [step.spec.name for step in compiled.steps] == ["pack_panels", "conv_depthwise_nhwc"]
    for n, high, wide in ((1, 9, 40), (2, 1, 1), (0, 4, 4), (1, 30, 7)):
        x = np.random.default_rng(1).standard_normal((n, high, wide, 18)).astype(np.float32)
        (got,) = compiled.run([x, w], threads=2)
        padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
        want = np.zeros(got.shape)
        for ty, tx in product(range(3), range(3)):
            want += padded[:, ty::2, tx::2][:, : got.shape[1], : got.shape[2]] * w[:, 0, ty, tx]
        np.testing.assert_allclose(got, np.maximum(want, 0), rtol=1e-5, atol=1e-5)


ON_TILES = {
    "one tap": ("pads = [1, 1, 1, 1]", "y = Conv(e, w3)", (384, 64, 1, 1)),
    "half a block of channels": ("pads = [1, 1, 1, 1]", "y = Conv(e, w3)", (384, 80, 1, 1)),
    "less than half": ("pads = [1, 1, 1, 1]", "y = Conv(e, w3)", (384, 72, 1, 1)),
    "more than half": ("pads = [1, 1, 1, 1]", "y = Conv(e, w3)", (384, 88, 1, 1)),
    "pixels close together": ("pads = [1, 1, 1, 1]", "y = Conv<pads = [1, 1, 1, 1]>(e, w3)", (64, 40, 3, 3)),
    "pixels close together, no whole vectors": ("pads = [1, 1, 1, 1]", "y = Conv(e, w3)", (96, 44, 3, 3)),
    "padded, and read by others": (
        "pads = [1, 1, 1, 1], strides = [2, 2]",
        "c = Conv<pads = [1, 1, 1, 1]>(e, w3) y = Add(c, e)",
        (64, 64, 3, 3),
    ),
}


@pytest.mark.parametrize("name", ON_TILES)
def test_results_are_packed_for_amx_convolutions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "garbage", b"\xff")  # NaN, which weights of zero do not hide
    monkeypatch.setitem(on_tiles.LEAST_GAIN, 3, 0)
    monkeypatch.setattr(on_tiles, "LEAST_DEPTH", 1 << 20)
    window, rest, shape = ON_TILES[name]
    n = shape[1]
    body = f"a = Relu(x) d = Conv<group = {n}, {window}>(a, w2, b) e = Relu(d) {rest}"
    rng = np.random.default_rng(0)
    sizes = {"x": (2, n, 9, 10), "w2": (n, 1, 3, 3), "b": (n,), "w3": shape}
    feeds = {k: (rng.standard_normal(s) / max(np.prod(s[1:]), 1) ** 0.5).astype(np.float32) for k, s in sizes.items()}
    feeds["x"] *= 60
    inputs = ", ".join(f"float[{','.join(map(str, s))}] {k}" for k, s in sizes.items())
    weights = {k: v for k, v in feeds.items() if k != "x"}
    compiled = Compiled(body, inputs, "float[A,B,C,D] y", "sapphirerapids", constants=weights)
    names = [step.spec.name for step in compiled.steps]
    assert names[-2:] == ["conv_depthwise_nhwc", "conv_amx"] and "pack_image" not in names
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => (float[A,B,C,D] y) {{ {body} }}'
    model = ReferenceEvaluator(onnx.parser.parse_model(text.replace("float", "double")))
    for odd in (None, np.inf, 1e38):
        if odd is not None:
            feeds["x"][1, 5, 3, 4] = odd
        with np.errstate(invalid="ignore"):
            (want,) = model.run(None, {k: v.astype(np.float64) for k, v in feeds.items()})
        (got,) = compiled.run([feeds["x"]], checked=odd is None)
        (again,) = compiled.run([feeds["x"]], threads=3)
        np.testing.assert_array_equal(again, got)
        near = np.isfinite(got) & (np.abs(want) < 1e30)
        assert near.mean() > 0.7 and (odd is not None or near.all())
        np.testing.assert_allclose(got[near], want[near], rtol=2e-5, atol=2e-5)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
