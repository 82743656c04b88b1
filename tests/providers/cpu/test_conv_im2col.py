"""Convolutions with few outputs as products of matrices, against onnx's own evaluator in float64."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.interpret.context import RunContext
from sardonyx.ir.tensor import Tensor
from sardonyx.providers.cpu import CpuProvider
from sardonyx.providers.cpu.kernels.gemm import amx
from sardonyx.providers.cpu.language.context import NOBODY, Row
from sardonyx.providers.cpu.runtime.executable import CpuExecutable
from tests.lower.agree import parse, part_of
from tests.providers.cpu.compiled import NHWC_VARIANTS, Compiled, forbidding
from tests.providers.cpu.running import Array, holds
from tests.providers.cpu.test_conv import Case, assert_close, expected, feeds_of, graph

CASES = {
    "one pixel": Case((1, 17, 1, 1), (5, 17, 1, 1)),
    "single pixels": Case((2, 9, 1, 2), (33, 9, 1, 1), then="y = Relu(a)"),
    "single pixels, apart": Case((1, 9, 3, 4), (7, 9, 1, 1), "strides = [2, 3]"),
    "single pixels, padded": Case((1, 3, 1, 1), (4, 3, 1, 1), "pads = [0, 1, 1, 0]"),
    "single pixels, padded behind": Case((1, 3, 2, 2), (4, 3, 1, 1), "pads = [0, 0, 0, 1]"),
    "all of the image": Case((2, 6, 4, 5), (19, 6, 4, 5)),
    "3x3": Case((1, 6, 2, 2), (9, 6, 3, 3), "pads = [1, 1, 1, 1]"),
    "3x3, stride and dilation": Case((1, 3, 8, 9), (4, 3, 3, 3), "strides = [3, 4], dilations = [2, 3]"),
    "one channel, along a row": Case((1, 1, 31), (20, 1, 16), "strides = [5]"),
    "one channel, dilation": Case((1, 1, 20), (20, 1, 4), "strides = [5], dilations = [3]"),
    "one channel, padded": Case((1, 1, 9), (3, 1, 4), "strides = [4], pads = [1, 2]"),
    "one channel, padded behind": Case((1, 1, 9), (3, 1, 4), "strides = [4], pads = [0, 3]"),
    "one channel, two axes": Case((1, 1, 5, 6), (3, 1, 4, 4)),
    "1 axis": Case((2, 6, 2), (70, 6, 5), "pads = [2, 2]"),
    "3 axes": Case((1, 3, 2, 2, 3), (4, 3, 3, 3, 3), "pads = [1, 1, 1, 0, 0, 0]"),
    "only padding": Case((1, 2, 1, 1), (3, 2, 3, 3), "pads = [4, 4, 0, 0], strides = [2, 2]"),
    "long sums": Case((1, 300, 1, 1), (40, 300, 3, 3), "pads = [1, 1, 1, 1]"),
    "what follows": Case((1, 4, 2, 2), (8, 4, 3, 3), "pads = [1, 1, 1, 1]", "c = Add(a, a) t = Tanh(c) y = Add(t, a)"),
    "double": Case((1, 6, 2, 1), (9, 6, 3, 3), "pads = [1, 1, 1, 1]", dtype="double"),
    "half": Case((1, 6, 3, 3), (9, 6, 3, 3), "strides = [2, 2], pads = [1, 1, 1, 1]", dtype="float16"),
    "brain": Case((1, 6, 2, 2), (9, 6, 3, 3), "pads = [1, 1, 1, 1]", dtype="bfloat16"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _by_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images stay as they are on every chip."""
    forbidding(monkeypatch, *NHWC_VARIANTS)


def compiled(case: Case, weights: Array, cpu: str | None = None) -> Compiled:
    found = Compiled(*graph(case), cpu, constants={"w": weights})
    assert found.steps[-1].spec.name in ("gemm", "conv_nhwc")
    return found


@pytest.mark.parametrize("name", CASES)
def test_against_onnx(name: str) -> None:
    case = CASES[name]
    feeds = feeds_of(case)
    found = compiled(case, feeds.pop("w"))
    (got,) = found.run(list(feeds.values()), checked=True)
    assert_close(got, expected(case, feeds_of(case)), case)
    for threads in (2, 3):
        (again,) = found.run(list(feeds.values()), threads=threads)
        np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", "sapphirerapids"])
@pytest.mark.parametrize("name", ["single pixels, apart", "3x3, stride and dilation", "one channel, along a row"])
def test_on_other_chips(name: str, cpu: str) -> None:
    case = CASES[name]
    feeds = feeds_of(case)
    (got,) = compiled(case, feeds.pop("w"), cpu).run(list(feeds.values()), checked=True)
    assert_close(got, expected(case, feeds_of(case)), case)


def test_special_numbers() -> None:
    case = CASES["3x3"]
    feeds = feeds_of(case)
    feeds["x"][0, 1, 0, 0], feeds["x"][0, 2, 1, 1] = np.inf, np.nan
    (got,) = compiled(case, feeds["w"]).run([feeds["x"], feeds["b"]])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected(case, feeds)))


SEQUENCE = "a = Conv<pads = [1, 1], strides = [2]>(x, w, b) c = Relu(a) d = Conv<pads = [1, 1]>(c, v) y = Add(d, e)"


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_outputs_is_known_in_the_run(threads: int) -> None:
    rng = np.random.default_rng(5)
    w, v = (rng.standard_normal(s).astype(np.float32) for s in ((40, 33, 3), (33, 40, 3)))
    weights = {"w": w, "b": rng.standard_normal(40).astype(np.float32), "v": v, "e": np.ones((1, 1), np.float32)}
    inputs = "float[n,33,t] x, float[40,33,3] w, float[40] b, float[33,40,3] v, float[1,1] e"
    made = parse(SEQUENCE, inputs, "float[n,33,u] y")
    for value in list(made.inputs)[1:]:
        value.const = Tensor.of(weights[value.name])
    part = part_of(made)
    provider = CpuProvider(policy=Compiled.policy)
    provider.threads = threads
    executable = provider.compile(part)
    assert isinstance(executable, CpuExecutable)
    few = next(step.only for step in executable.table.steps if step.only is not None).most
    assert few is not None
    ways = set()
    for batch, length in ((1, 1), (1, 2 * few), (1, 2 * few + 1), (3, 5), (2, 70), (0, 4), (1, 3)):
        x = rng.standard_normal((batch, 33, length)).astype(np.float32)
        (got,) = executable.run([x], RunContext())
        hidden = np.maximum(_conv(x, w, 2) + weights["b"][:, None], 0)
        want = _conv(hidden, v, 1) + 1.0
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        is_left_out = executable._shapes[(x.shape,)].rows[:, Row.WHO] == NOBODY
        assert is_left_out.all() == (got.size == 0)
        ways.add(tuple(is_left_out))
    assert len(ways) == 3  # few outputs, many, and none


def _conv(x: Array, w: Array, stride: int) -> Array:
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1)))
    count = max((padded.shape[2] - 3) // stride + 1, 0)
    taps = [padded[:, :, t : t + stride * count : stride][:, :, :count] for t in range(3)]
    return np.einsum("tncp,fct->nfp", np.stack(taps), w.astype(np.float64))


AUDIO = {
    "windows overlap": Case((2, 1, 700), (33, 1, 10), "strides = [5]", "y = Relu(a)"),
    "windows lie apart": Case((1, 1, 2000), (40, 1, 7), "strides = [19]"),
    "padded": Case((2, 1, 700), (33, 1, 10), "strides = [5], pads = [7, 12]", "y = Tanh(a)"),
    "padded, few outputs": Case((2, 1, 30), (33, 1, 10), "strides = [5], pads = [7, 2]"),
    "dilated": Case((1, 1, 900), (24, 1, 6), "strides = [4], dilations = [3]"),
    "half": Case((1, 1, 700), (33, 1, 10), "strides = [5]", dtype="float16"),
    "double": Case((1, 1, 700), (33, 1, 10), "strides = [5]", dtype="double"),
    "few outputs": Case((3, 1, 90), (160, 1, 47), "strides = [21]"),
}


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", "neoverse-n1"])
@pytest.mark.parametrize("name", AUDIO)
def test_windows_of_a_sequence(name: str, cpu: str) -> None:
    case = AUDIO[name]
    feeds = feeds_of(case)
    found = Compiled(*graph(case), cpu, constants={"w": feeds.pop("w")})
    assert [step.choice.name for step in found.steps if step.choice][-1] in ("conv.strided_windows", "conv.im2col")
    (got,) = found.run(list(feeds.values()), checked=True)
    assert_close(got, expected(case, feeds_of(case)), case)
    (again,) = found.run(list(feeds.values()), threads=2)
    np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", "sapphirerapids"])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (4, 9)])
def test_windows_of_a_sequence_before_another_convolution(
    cpu: str, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next convolution reads the result in its own layout; the length is open."""
    monkeypatch.undo()
    rng = np.random.default_rng(6)
    w, v = (rng.standard_normal(s).astype(np.float32) for s in ((32, 1, 10), (48, 32, 3)))
    body = f"a = Conv<strides = [5], pads = [{before}, {after}]>(x, w) c = Relu(a) "
    body += "y = Conv<pads = [1, 1], strides = [2]>(c, v)"
    found = Compiled(body, "float[n,1,t] x, float[32,1,10] w, float[48,32,3] v", "float[n,48,u] y", cpu,
                     constants={"w": w, "v": v})  # fmt: skip
    for batch, length in ((1, 10), (1, 31), (2, 700), (1, 2501)):
        x = rng.standard_normal((batch, 1, length)).astype(np.float32)
        padded = np.pad(x, ((0, 0), (0, 0), (before, after)))
        count = (padded.shape[2] - 10) // 5 + 1
        windows = np.stack([padded[:, 0, 5 * i : 5 * i + 10] for i in range(count)], axis=-1)
        hidden = np.maximum(np.einsum("fk,nkt->nft", w[:, 0].astype(np.float64), windows), 0)
        for threads in (1, 2):
            (got,) = found.run([x], threads=threads, checked=True)
            np.testing.assert_allclose(got, _conv(hidden, v, 2), rtol=1e-4, atol=1e-4)


def test_a_window_that_spans_the_image_but_for_an_open_axis() -> None:
    """As over the channels of a recording, where only the run tells how many outputs there are."""
    rng = np.random.default_rng(8)
    w = rng.standard_normal((40, 6, 11, 3)).astype(np.float32)
    body = "y = Conv<pads = [0, 1, 0, 1]>(x, w)"
    found = Compiled(body, "float[n,6,11,t] x, float[40,6,11,3] w", "float[n,40,1,t] y", constants={"w": w})
    assert any(step.only is not None for step in found.steps)
    for batch, length in ((1, 1), (2, 3), (1, 200)):
        x = rng.standard_normal((batch, 6, 11, length)).astype(np.float32)
        want = sum(_conv(x[:, :, i].astype(np.float64), w[:, :, i], 1) for i in range(11))
        for threads in (1, 2):
            (got,) = found.run([x], threads=threads, checked=True)
            np.testing.assert_allclose(got[:, :, 0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 5, 39, 40])
def test_products_of_few_rows_do_not_use_tiles(rows: int) -> None:
    """Two products of the same rows, which are split once where they are many."""
    rng = np.random.default_rng(9)
    x, w, v = (rng.standard_normal(s).astype(np.float32) for s in ((rows, 64), (64, 70), (64, 66)))
    inputs = "float[n,64] x, float[64,70] w, float[64,66] v"
    body = "y = MatMul(x, w) z = MatMul(x, v)"
    found = Compiled(body, inputs, "float[n,70] y, float[n,66] z", "sapphirerapids", constants={"w": w, "v": v})
    names = [step.spec.name for step in found.steps]
    assert sorted(names) == ["gemm", "gemm", "gemm_amx", "gemm_amx", "split_bf16"]
    done = [step.spec.name for step in found.steps if step.only is not None and holds(step.only, rows)]
    assert set(done) == ({"gemm"} if rows < amx.LEAST_ROWS[3] else {"split_bf16", "gemm_amx"})
    for threads in (1, 2):
        for got, weights in zip(found.run([x], threads=threads, checked=True), (w, v), strict=True):
            np.testing.assert_allclose(got, x.astype(np.float64) @ weights, rtol=1e-5, atol=1e-5)
