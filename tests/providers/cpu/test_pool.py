"""Pooling, against onnxruntime and, for what it lacks, the operators' own meanings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from sardonyx.errors import InvalidArgument
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.ops.pool import average_pool, max_pool
from tests.lower.agree import parse, part_of
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array

ort = pytest.importorskip("onnxruntime")

BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Case:
    x: tuple[int, ...]
    attributes: str

    def text(self, op: str, *, counts: bool = False) -> str:
        more = ", count_include_pad = 1" if counts else ""
        return f"y = {op}<{self.attributes}{more}>(x)"

    @property
    def feed(self) -> Array:
        return np.random.default_rng(sum(self.x)).standard_normal(self.x).astype(np.float32)


CASES = {
    "2x2, stride 2": Case((2, 3, 8, 10), "kernel_shape = [2, 2], strides = [2, 2]"),
    "3x3, stride 2, padded": Case((1, 5, 13, 14), "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"),
    "3x3, stride 1": Case((1, 3, 9, 33), "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"),
    "uneven pads": Case((1, 3, 7, 9), "kernel_shape = [3, 4], strides = [1, 2], pads = [0, 2, 1, 1]"),
    "ceil": Case((1, 3, 7, 10), "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1"),
    "ceil, padded": Case((1, 3, 8, 8), "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1"),
    "ceil, a window over the end": Case((1, 3, 2, 9), "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1"),
    "dilation": Case((1, 3, 11, 12), "kernel_shape = [3, 3], dilations = [2, 3]"),
    "5x5, padded": Case((1, 3, 20, 20), "kernel_shape = [5, 5], pads = [2, 2, 2, 2]"),
    "wide": Case((1, 2, 4, 40), "kernel_shape = [1, 12], strides = [1, 4]"),
    "3x3, stride 3": Case((1, 5, 28, 23), "kernel_shape = [3, 3], strides = [3, 3], pads = [1, 1, 0, 0]"),
    "same": Case((1, 3, 7, 8), 'kernel_shape = [3, 2], strides = [2, 2], auto_pad = "SAME_UPPER"'),
    "1 axis": Case((2, 3, 30), "kernel_shape = [4], strides = [3], pads = [1, 2]"),
    "3 axes": Case((1, 2, 5, 6, 7), "kernel_shape = [2, 3, 2], strides = [1, 2, 2], pads = [0, 1, 0, 1, 1, 1]"),
    "a large image": Case((1, 2, 90, 130), "kernel_shape = [2, 2], strides = [2, 2]"),
    "a large image, stride 1": Case((1, 2, 37, 70), "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"),
    "columns": Case((1, 2, 20, 35), "kernel_shape = [3, 1]"),
    "much larger than the image": Case(
        (2, 3, 11, 12), "kernel_shape = [1792, 1792], strides = [1792, 1792], ceil_mode = 1"
    ),
    "larger than the image, padded": Case(
        (2, 3, 11, 12), "kernel_shape = [20, 21], strides = [2, 3], pads = [7, 8, 9, 15], ceil_mode = 1"
    ),
    "larger than the image, same": Case(
        (1, 3, 11, 37), 'kernel_shape = [300, 301], strides = [2, 3], auto_pad = "SAME_LOWER"'
    ),
    "over the whole padded image": Case((1, 3, 11, 12), "kernel_shape = [14, 16], pads = [1, 2, 2, 2]"),
    "many rows": Case((1, 2, 170, 30), "kernel_shape = [150, 3], strides = [2, 1], pads = [70, 1, 5, 1]"),
    "many rows, dilated": Case((1, 2, 150, 50), "kernel_shape = [41, 20], strides = [1, 3], dilations = [3, 2]"),
    "1 axis, large": Case((2, 3, 300), "kernel_shape = [1000], strides = [100], pads = [700, 600]"),
    "3 axes, large": Case(
        (1, 2, 7, 8, 40), "kernel_shape = [9, 12, 30], strides = [1, 2, 3], pads = [4, 5, 6, 5, 1, 7], ceil_mode = 1"
    ),
    "planes": Case((1, 2, 3, 9, 20), "kernel_shape = [1, 3, 3], pads = [0, 1, 1, 0, 1, 1]"),
}  # fmt: skip


def shape(case: Case, dtype: str = "float") -> tuple[str, str]:
    return f"{dtype}[{','.join(map(str, case.x))}] x", f"{dtype}[{','.join('ABCDE'[: len(case.x)])}] y"


def expected(case: Case, body: str) -> Array:
    inputs, outputs = shape(case)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": case.feed})[0])


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "AveragePool with pads"])
@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name: str, op: str) -> None:
    case = CASES[name]
    body = case.text(op.removesuffix(" with pads"), counts=op.endswith("pads"))
    compiled = Compiled(body, *shape(case))
    (got,) = compiled.run([case.feed])
    np.testing.assert_allclose(got, expected(case, body), rtol=1e-6, atol=1e-6)
    (again,) = compiled.run([case.feed], threads=3)
    np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "AveragePool with pads", "LpPool"])
@pytest.mark.parametrize("name", [name for name in CASES if "large" in name or "many" in name or "whole" in name])
def test_large_windows_over_images_of_any_size(name: str, op: str) -> None:
    case = CASES[name]
    body = case.text(op.removesuffix(" with pads"), counts=op.endswith("pads"))
    sizes = [",".join("nchwd"[: len(case.x)]), ",".join("ABCDE"[: len(case.x)])]
    (got,) = Compiled(body, f"float[{sizes[0]}] x", f"float[{sizes[1]}] y").run([case.feed], checked=True, threads=2)
    want = expected(case, body)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    part = part_of(parse(body, *shape(case)))
    (got,) = Program(part.nodes, part.inputs, part.outputs, bind).run([case.feed], RunContext())
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


def test_a_window_over_the_end_by_the_reference() -> None:
    case = CASES["ceil, a window over the end"]
    for op, pool in (("MaxPool", max_pool), ("AveragePool", average_pool)):
        got = pool(case.feed, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
        np.testing.assert_allclose(got, expected(case, case.text(op)), rtol=1e-6, atol=1e-6)
    with pytest.raises(InvalidArgument, match=r"larger than the padded input.*<= 3"):
        max_pool(case.feed, kernel_shape=[4, 4], strides=[2, 2], ceil_mode=1)


@pytest.mark.parametrize(("dtype", "numpy"), [("float16", np.float16), ("bfloat16", BF16), ("double", np.float64)])
def test_one_window_over_a_whole_image(dtype: str, numpy: Any) -> None:
    case = Case((3, 16, 3, 5), "kernel_shape = [3, 5], strides = [2, 2]")
    x = case.feed.astype(numpy)
    for op, pool in (("MaxPool", max_pool), ("AveragePool", average_pool)):
        (got,) = Compiled(case.text(op), *shape(case, dtype)).run([x], checked=True)
        assert got.dtype == numpy
        want = pool(x, kernel_shape=[3, 5], strides=[2, 2])
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-2, atol=1e-2)


@pytest.mark.sliced(7)
@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("name", CASES)
def test_other_chips(name: str, op: str, cpu: str) -> None:
    case = CASES[name]
    body = case.text(op)
    (got,) = Compiled(body, *shape(case), cpu).run([case.feed], checked=True)
    np.testing.assert_allclose(got, expected(case, body), rtol=1e-6, atol=1e-6)


@pytest.mark.sliced(4)
@pytest.mark.parametrize("name", CASES)
def test_every_address_is_inside(name: str) -> None:
    case = CASES[name]
    body = case.text("AveragePool")
    (got,) = Compiled(body, *shape(case)).run([case.feed], checked=True)
    np.testing.assert_allclose(got, expected(case, body), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "numpy"), [("int8", np.int8), ("uint8", np.uint8), ("float16", np.float16), ("double", np.float64)]
)
def test_types(dtype: str, numpy: type) -> None:
    case = CASES["3x3, stride 2, padded"]
    x = np.clip(case.feed * 30 + 60, 0, 120).astype(numpy)
    (got,) = Compiled(case.text("MaxPool"), *shape(case, dtype)).run([x])
    want = max_pool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("cpu", [None, "skylake-avx512"])
def test_dynamic_sizes(cpu: str | None) -> None:
    body = "a = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x) y = Relu(a)"
    compiled = Compiled(body, "float[n,c,h,w] x", "float[n,c,p,q] y", cpu)
    assert len(compiled.steps) == 1, "what follows is part of the kernel"
    widths = [(1, 2, 3, w) for w in (31, 32, 33, 34, 63, 64, 65, 2100)]
    for sizes in ((1, 2, 9, 9), (0, 3, 4, 4), (2, 0, 4, 4), (1, 1, 1, 1), (1, 40, 30, 7), *widths):
        x = np.random.default_rng(1).standard_normal(sizes).astype("f")
        (got,) = compiled.run([x], threads=2)
        want = max_pool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        np.testing.assert_array_equal(got, np.maximum(np.asarray(want), 0))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("attributes", "width", "vectors"),
    [("kernel_shape = [3, 3], pads = [1, 1, 1, 1]", 16, 1), ("kernel_shape = [3, 3], pads = [1, 1, 1, 1]", 80, 5),
     ("kernel_shape = [2, 3], pads = [0, 0, 1, 2]", 32, 2), ("kernel_shape = [1, 5], pads = [0, 3, 0, 1]", 32, 2),
     ("kernel_shape = [3, 3], pads = [1, 1, 1, 1]", 272, 0), ("kernel_shape = [3, 3], pads = [1, 1, 1, 1]", 40, 0)],
)  # fmt: skip
def test_short_rows_are_unrolled(attributes: str, width: int, vectors: int, op: str) -> None:
    """Bit-identical to the loop over rows of any length."""
    case = Case((2, 2, 7, width), attributes)
    open_width = "float[2,2,7,w] x", "float[A,B,C,D] y"
    unrolled, looped = (Compiled(case.text(op), *t, "skylake-avx512") for t in (shape(case), open_width))
    assert [dict(one.steps[0].spec.statics)["config"].unrolled_vectors for one in (unrolled, looped)] == [vectors, 0]
    x = case.feed
    x[0, 0, 2, 3], x[0, 1, 0, 0], x[1, 1, -1, -1] = np.nan, np.inf, -np.inf
    (got,), (wanted,) = (one.run([x], threads=2, checked=True) for one in (unrolled, looped))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("cpu", [None, "skylake-avx512"])
def test_nan_is_the_largest_in_its_windows_only(cpu: str | None) -> None:
    case = CASES["3x3, stride 1"]
    x = case.feed
    x[0, 0, 4, 7], x[0, 1, 0, 0], x[0, 2, 8, 32] = np.nan, np.inf, -np.inf
    for op, meaning in (("MaxPool", max_pool), ("AveragePool", average_pool)):
        with np.errstate(invalid="ignore"):
            want = meaning(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        (got,) = Compiled(case.text(op), *shape(case), cpu).run([x])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
