"""Regions of interest that are huge or empty, and runs that are stopped inside a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model

import sardonyx
from sardonyx.errors import Fail
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.lower.interpret import bind as sizes_of
from sardonyx.providers.cpu.language.context import Code, Context
from tests.lower.agree import parse, part_of
from tests.providers.cpu.compiled import Compiled, _Arrays, forbidding
from tests.providers.cpu.running import Array

INPUTS = "float[n,c,h,w] x, float[r,4] rois, int64[r] batch"
HEAD = '<ir_version: 10, opset_import: ["": 16]>'


def text(mode: str = "avg", ratio: int = 0) -> str:
    return (
        f'y = RoiAlign<mode = "{mode}", output_height = 3, output_width = 2, sampling_ratio = {ratio}>(x, rois, batch)'
    )


def feeds(rois: Any, shape: tuple[int, ...] = (2, 5, 9, 8)) -> list[Array]:
    corners = np.array(rois, "f").reshape(-1, 4)
    x = np.random.default_rng(0).standard_normal(shape).astype("f")
    return [x, corners, np.arange(len(corners)) % max(shape[0], 1)]


def average(x: Array, rois: Array, batch: Array) -> Array:
    """The mean of samples, half a pixel off: along each axis a matrix of weights, in float64."""
    out = []
    for image, corners in zip(x[batch].astype(np.float64), rois.astype(np.float64) - 0.5, strict=True):
        rows, columns = (
            weights(corners[a], corners[a + 2], cells, size)
            for a, cells, size in ((1, 3, x.shape[2]), (0, 2, x.shape[3]))
        )
        out.append(rows @ image @ columns.T)
    return np.stack(out)


def weights(start: float, stop: float, cells: int, size: int) -> Array:
    found, step = np.zeros((cells, size)), (stop - start) / cells
    count = max(int(np.ceil(step)), 0)
    for cell in range(cells):
        at = start + cell * step + (np.arange(count) + 0.5) * step / max(count, 1)
        at = np.clip(at[(at >= -1) & (at <= size)], 0, size - 1)
        low = np.floor(at).astype(int)
        np.add.at(found[cell], low, (1 - (at - low)) / count)
        np.add.at(found[cell], np.minimum(low + 1, size - 1), (at - low) / count)
    return found


@pytest.mark.parametrize("far", [30.0, 1000.0, 1e5, 4e6])
def test_regions_far_larger_than_the_image(far: float) -> None:
    """The samples of a region of millions of pixels would be trillions; those in the image are few."""
    args = feeds([[-far, -far, far, far], [0, 0, far, 7], [-far, 2, 3, far], [far, far, far + 2, far + 2]])
    (got,) = Compiled(text(), INPUTS, "float[r,c,3,2] y").run(args, checked=True, threads=2)
    np.testing.assert_allclose(got, average(*args), rtol=2e-2 if far > 1e4 else 1e-3, atol=1e-9)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 3])
@pytest.mark.parametrize("sign", [1, -1])
def test_regions_partly_outside(mode: str, ratio: int, sign: int) -> None:
    args = feeds([[-300, -200, 400, 300], [5, 6, 300, 300], [-50, -50, -40, -40], [6, 7, 2, 1], [3, 3, 3, 3]])
    args[0] = sign * abs(args[0])
    model = f"{HEAD} g ({INPUTS}) => (float[r,c,3,2] y) {{ {text(mode, ratio)} }}"
    session = onnxruntime.InferenceSession(parse_model(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, dict(zip(("x", "rois", "batch"), args, strict=True)))
    (got,) = Compiled(text(mode, ratio), INPUTS, "float[r,c,3,2] y").run(args, checked=True)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("shape", [(2, 5, 0, 8), (2, 5, 9, 0), (2, 5, 0, 0), (2, 0, 9, 8)])
def test_an_empty_image_has_no_samples(mode: str, ratio: int, shape: tuple[int, ...]) -> None:
    """onnxruntime reads in front of the image here."""
    args = feeds([[0, 0, 4, 4], [-3, -2, 20, 30]], shape)
    (got,) = Compiled(text(mode, ratio), INPUTS, "float[r,c,3,2] y").run(args, checked=True)
    np.testing.assert_array_equal(got, np.zeros((2, shape[1], 3, 2), "f"))
    (plain,) = _reference(text(mode, ratio), args)
    np.testing.assert_array_equal(plain, got)


def _reference(body: str, args: list[Array]) -> list[Array]:
    part = part_of(parse(body, INPUTS, "float[r,c,3,2] y"))
    found: list[Array] = Program(part.nodes, part.inputs, part.outputs, bind).run(args, RunContext())
    return found


def test_a_batch_without_images_has_none_for_a_region() -> None:
    with pytest.raises(Fail, match=f"error {Code.INDEX}"):
        Compiled(text(), INPUTS, "float[r,c,3,2] y").run(feeds([[0, 0, 4, 4]], (0, 5, 9, 8)), checked=True)
    (got,) = Compiled(text(), INPUTS, "float[r,c,3,2] y").run(feeds([], (0, 5, 9, 8)), checked=True)
    assert got.shape == (0, 5, 3, 2)


def test_samples_that_an_attribute_makes_endless_are_refused() -> None:
    model = parse_model(f"{HEAD} g ({INPUTS}) => (float[r,c,3,2] y) {{ {text(ratio=1 << 30)} }}")
    session = sardonyx.InferenceSession(model.SerializeToString())
    with pytest.raises(sardonyx.errors.OutOfBudget, match="samples of RoiAlign"):
        session.run(None, dict(zip(("x", "rois", "batch"), feeds([[0, 0, 4, 4]]), strict=True)))


def test_the_error_names_the_region() -> None:
    model = parse_model(f"{HEAD} g ({INPUTS}) => (float[r,c,3,2] y) {{ {text()} }}")
    session = sardonyx.InferenceSession(model.SerializeToString())
    with pytest.raises(sardonyx.errors.InvalidArgument, match=r"finite.*region 1"):
        session.run(None, dict(zip(("x", "rois", "batch"), feeds([[0, 0, 4, 4], [0, np.nan, 4, 4]]), strict=True)))


NMS = (
    "y = NonMaxSuppression(boxes, scores, most, overlap)",
    "float[1,n,4] boxes, float[1,c,n] scores, int64[1] most, float[1] overlap",
    "int64[k,3] y",
)


@pytest.mark.parametrize("slot", [Context.CANCEL, Context.DEADLINE])
@pytest.mark.parametrize("what", ["regions", "boxes"])
def test_kernels_hear_that_a_run_is_over(what: str, slot: int) -> None:
    if what == "regions":
        made, args = Compiled(text(), INPUTS, "float[r,c,3,2] y"), feeds([[0, 0, 4, 4]])
    else:
        rng = np.random.default_rng(0)
        made = Compiled(*NMS, constants={"most": np.array([5]), "overlap": np.array([0.5], "f")})
        args = [rng.random((1, 9, 4), np.float32), rng.random((1, 2, 9), np.float32)]
    launched = _launched(made, args)
    launched.context[slot] = 1
    with pytest.raises(Fail, match=f"error {Code.CANCELLED if slot == Context.CANCEL else Code.LATE}"):
        launched()


def _launched(made: Compiled, args: list[Array]) -> Any:
    """The first step, ready to be called."""
    memory = _Arrays(sizes_of(made.lowered, [a.shape for a in args]))
    for view, array in zip(made.lowered.inputs, args, strict=True):
        memory.bind(view.storage, array)
    for view in made.lowered.outputs:
        memory._allocate(view.storage)
    return memory.launches(made.steps, isa=made.isa)[0]


@pytest.mark.parametrize("cpu", ["skylake-avx512", "sapphirerapids"])
@pytest.mark.parametrize("operator", ["average", "max", "pool", "grid"])
def test_images_of_convolutions_are_sampled_in_nhwc(operator: str, cpu: str) -> None:
    """The channels of a pixel are adjacent then, so that a tap is one vector."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 8, 9, 13)).astype("f"), rng.standard_normal((37, 8, 3, 3)).astype("f")
    rois = np.array([[0, 0, 7, 7], [-3, 2, 20, 8.5], [4, 1, 4, 1], [2, 3, 9, 5], [5, 5, 12, 8]], "f")
    if operator == "pool":
        sample = "y = MaxRoiPool<pooled_shape = [3, 2]>(a, p)"
        points, types = np.c_[[0, 1, 1, 0, 1], np.round(rois)].astype("f"), "float[r,5] p"
    elif operator == "grid":
        sample = "y = GridSample(a, p)"
        points, types = rng.uniform(-1.4, 1.4, (2, 41, 2, 2)).astype("f"), "float[2,j,k,2] p"
    else:
        mode = "avg" if operator == "average" else "max"
        sample = "i = Constant<value = int64[5] {0, 1, 1, 0, 1}>() "
        sample += text(mode, 2).replace("(x, rois, batch)", "(a, p, i)")
        points, types = rois, "float[5,4] p"
    body = f"c = Conv<pads = [1, 1, 1, 1]>(x, w) a = Relu(c) {sample}"
    inputs, outputs = f"float[2,8,h,v] x, float[37,8,3,3] w, {types}", "float[d,e,f,g] y"
    part = part_of(parse(body, inputs, outputs))
    (want,) = Program(part.nodes, part.inputs, part.outputs, bind).run([x, w, points], RunContext())
    found = Compiled(body, inputs, outputs, cpu, constants={"w": w})
    sampling = next(s.spec for s in found.steps if s.spec.name in ("roi_align", "grid_sample_nhwc"))
    assert operator == "grid" or dict(sampling.statics)["config"].has_adjacent_channels
    assert not any("Conv" not in [n.op_type for n in s.nodes] and s.spec.name == "transpose" for s in found.steps)
    (got,), (again,) = found.run([x, points], checked=True), found.run([x, points], threads=3)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", "neoverse-n1"])
@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
@pytest.mark.parametrize(("mode", "ratio"), [("avg", 0), ("avg", 1), ("avg", 4), ("max", 2), ("max", 5)])
def test_rows_of_cells(mode: str, ratio: int, dtype: str, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Means and maxima by lines of pixels, against the kernel that takes channel by channel and against numpy."""
    rng = np.random.default_rng(ratio)
    low = rng.uniform(-6, 30, (9, 2))
    rois = np.concatenate([low, low + rng.uniform(-2, 40, (9, 2))], 1)
    given = {"float": "f4", "float16": "f2", "double": "f8"}[dtype]
    args = [rng.standard_normal((2, 37, 29, 41)).astype(given), rois.astype(given), rng.integers(0, 2, 9)]
    body = (
        f'p = RoiAlign<mode = "{mode}", output_height = 3, output_width = 19, sampling_ratio = {ratio}, '
        f"spatial_scale = 0.7>(x, rois, batch) y = Relu(p)"
    )
    inputs, outputs = f"{dtype}[n,c,h,w] x, {dtype}[r,4] rois, int64[r] batch", f"{dtype}[r,c,3,19] y"
    part = part_of(parse(body, inputs, outputs))
    (want,) = Program(part.nodes, part.inputs, part.outputs, bind).run(args, RunContext())
    made = Compiled(body, inputs, outputs, cpu)
    assert made.steps[-1].spec.name == "roi_align_rows"
    forbidding(monkeypatch, "image.roi_align_rows")
    (other,) = Compiled(body, inputs, outputs, cpu).run(args)
    tolerance = {"float": 1e-4, "float16": 2e-2, "double": 1e-4}[dtype]
    for options in ({"checked": True}, {"threads": 3}):
        (got,) = made.run(args, **options)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(got, other, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize(("mode", "ratio"), [("avg", 0), ("avg", 2), ("max", 2)])
@pytest.mark.parametrize("odd", [np.inf, np.nan, -np.inf])
def test_pixels_that_are_not_finite_stay_in_their_cells(odd: float, mode: str, ratio: int) -> None:
    args = feeds([[0.3, 0.2, 5.9, 7.7], [1, 1, 4.5, 4.5], [0, 5, 6, 8]])
    args[0][0, 2, 4, 3] = args[0][1, 1, 0, 6] = args[0][0, 0, 8, 7] = odd
    model = f"{HEAD} g ({INPUTS}) => (float[r,c,3,2] y) {{ {text(mode, ratio)} }}"
    session = onnxruntime.InferenceSession(parse_model(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, dict(zip(("x", "rois", "batch"), args, strict=True)))
    if mode == "max" and np.isnan(odd):  # whether onnxruntime's maximum is NaN depends on the order
        (want,) = _reference(text(mode, ratio), args)
    (got,) = Compiled(text(mode, ratio), INPUTS, "float[r,c,3,2] y").run(args, checked=True)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
