"""Operators on images that are no convolutions, against their own meaning in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest

from sardonyx.errors import Fail, InvalidArgument
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from tests.comparing import assert_same
from tests.lower.agree import ROUNDING, feeds, parse, part_of
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array


def check(
    body: str,
    inputs: str,
    outputs: str,
    *sizes: Mapping[str, int],
    cpu: str | None = None,
    checked: bool = False,
    given: Sequence[Array] | None = None,
) -> None:
    """Compiled code answers as the operators' meanings do, on one thread and on three."""
    part, compiled = part_of(parse(body, inputs, outputs)), Compiled(body, inputs, outputs, cpu)
    program = Program(part.nodes, part.inputs, part.outputs, bind)
    for each in sizes or ({},):
        fed = list(given) if given is not None else feeds(part, each)
        want, got = program.run(fed, RunContext()), compiled.run(fed, checked=checked)
        for w, g, again in zip(want, got, compiled.run(fed, threads=3), strict=True):
            assert_same(g, w, ROUNDING)
            np.testing.assert_array_equal(again, g)


def constant(name: str, *values: float, dtype: str = "int64") -> str:
    return f"{name} = Constant<value = {dtype}[{len(values)}] {{{', '.join(map(str, values))}}}>() "


# -- Pad


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(0, 0, 2, 3, 0, 0, 1, 4), (1, 0, 0, 9, 0, 2, 0, -1), (0, 0, 0, 0, 0, 0, 12, 0)])
def test_pad(mode: str, pads: tuple[int, ...]) -> None:
    body = constant("p", *pads) + f'y = Pad<mode = "{mode}">(x, p)'
    check(body, "float[2,3,h,w] x", "float[a,b,c,d] y", {"h": 5, "w": 7}, {"h": 4, "w": 30}, {"h": 1, "w": 2})


@pytest.mark.parametrize("dtype", ["uint8", "float16", "int64"])
def test_pad_of_other_types(dtype: str) -> None:
    body = constant("p", 1, 5, 2, 1) + constant("axes", 1, 2) + 'y = Pad<mode = "reflect">(x, p, , axes)'
    check(body, f"{dtype}[3,6,9] x", f"{dtype}[3,9,15] y", checked=True)


def test_pads_that_follow_from_sizes() -> None:
    body = (
        constant("zeros", 0, 0, 0)
        + "s = Shape<start = 1, end = 2>(x) p = Concat<axis = 0>(zeros, s) "
        + 'y = Pad<mode = "wrap">(x, p)'
    )
    check(body, "float[n,m] x", "float[n,k] y", {"n": 2, "m": 3}, {"n": 1, "m": 20})


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads_whose_sign_the_sizes_decide(mode: str) -> None:
    """As relative positions are cut or filled for a window around them: negative for short sequences."""
    body = (
        constant("window", 5)
        + constant("back", 4)
        + constant("zero", 0)
        + "n = Shape<start = 1, end = 2>(x) before = Sub(n, window) after = Sub(back, n) "
        + f'p = Concat<axis = 0>(zero, before, zero, after) c = Pad<mode = "{mode}">(x, p) y = Exp(c)'
    )
    check(body, "float[b,n] x", "float[b,k] y", *({"b": 2, "n": n} for n in (3, 4, 5, 6, 9)))


def test_more_is_cropped_than_there_is() -> None:
    body = (
        constant("zero", 0)
        + constant("window", 9)
        + "n = Shape(x) before = Sub(n, window) p = Concat<axis = 0>(before, n) y = Pad(x, p)"
    )
    with pytest.raises(InvalidArgument, match="more is cropped"):
        Compiled(body, "float[n] x", "float[k] y").run([np.arange(4, dtype=np.float32)])


@pytest.mark.parametrize("shape", [(3, 5), (8, 4), (2, 20), (6, 9)])
def test_center_crop_pad(shape: tuple[int, int]) -> None:
    body = constant("s", *shape) + "y = CenterCropPad<axes = [1, 2]>(x, s)"
    check(body, "float[2,6,9] x", f"float[2,{shape[0]},{shape[1]}] y")


# -- sampling


@pytest.mark.parametrize(
    ("mode", "padding", "align"),
    list(product(("nearest", "linear", "cubic"), ("zeros", "border", "reflection"), (0, 1))),
)
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    body = f'y = GridSample<mode = "{mode}", padding_mode = "{padding}", align_corners = {align}>(x, g)'
    rng = np.random.default_rng(3)
    x, grid = rng.standard_normal((2, 3, 5, 7)).astype("f"), rng.uniform(-1.6, 1.6, (2, 4, 19, 2)).astype("f")
    check(body, "float[n,c,h,w] x, float[n,p,q,2] g", "float[n,c,p,q] y", given=[x, grid])


@pytest.mark.parametrize(("mode", "cpu"), [("nearest", None), ("linear", None), ("linear", "haswell")])
def test_grid_sample_of_volumes(mode: str, cpu: str | None) -> None:
    rng = np.random.default_rng(3)
    x, grid = rng.standard_normal((2, 3, 4, 5, 7)).astype("f"), rng.uniform(-1.3, 1.3, (2, 3, 4, 5, 3)).astype("f")
    x[0, 0, 0, 0, 0], grid[1, 0, 0, 0] = np.inf, np.nan
    body = f'y = GridSample<mode = "{mode}">(x, g)'
    check(body, "float[2,3,4,5,7] x, float[2,3,4,5,3] g", "float[2,3,3,4,5] y",
          cpu=cpu, checked=True, given=[x, grid])  # fmt: skip


@pytest.mark.parametrize("cpu", ["x86-64", "haswell", "skylake-avx512", "neoverse-n1"])
@pytest.mark.parametrize(("mode", "padding"), [("linear", "zeros"), ("linear", "reflection"), ("cubic", "border")])
def test_grid_sample_of_many_channels(mode: str, padding: str, cpu: str) -> None:
    """Channels along the lanes; the second image's are adjacent already. Padding is 0 next to infinities too."""
    rng = np.random.default_rng(3)
    x, grid = rng.standard_normal((2, 19, 5, 7)).astype("f"), rng.uniform(-1.6, 1.6, (2, 41, 2, 2)).astype("f")
    x[0, 3, 0, 0], x[1, 18, 4, 6], grid[0, 0, 0] = np.inf, np.nan, np.nan
    sample = f'GridSample<mode = "{mode}", padding_mode = "{padding}">'
    types = "float[n,19,h,w] x, float[n,p,q,2] g", "float[n,19,p,q] y"
    assert any(step.spec.name == "grid_sample_nhwc" for step in Compiled(f"y = {sample}(x, g)", *types, cpu).steps)
    check(f"y = {sample}(x, g)", *types, cpu=cpu, checked=True, given=[x, grid])
    if padding == "zeros":
        body = f"t = Transpose<perm = [0, 3, 1, 2]>(x) a = {sample}(t, g) y = Mul(a, a)"
        nhwc = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        check(body, "float[n,h,w,19] x, float[n,p,q,2] g", types[1], cpu=cpu, checked=True, given=[nhwc, grid])


@pytest.mark.parametrize("cpu", ["x86-64", "haswell", "skylake-avx512", "neoverse-n1"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample_of_few_channels(mode: str, cpu: str) -> None:
    """Points along the lanes, of two blocks. Padding is 0 next to infinities too."""
    rng = np.random.default_rng(3)
    x, grid = rng.standard_normal((2, 3, 5, 7)).astype("f"), rng.uniform(-1.6, 1.6, (2, 41, 2, 2)).astype("f")
    x[0, 1, 0, 0], x[1, 2, 4, 6], grid[0, 0, 0] = np.inf, np.nan, np.nan
    types = "float[n,c,h,w] x, float[n,p,q,2] g", "float[n,c,p,q] y"
    check(f'y = GridSample<mode = "{mode}">(x, g)', *types, cpu=cpu, checked=True, given=[x, grid])


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_grid_sample_of_many_channels_of_other_types(dtype: str) -> None:
    body = 'y = GridSample<mode = "linear">(x, g)'
    check(body, f"{dtype}[2,24,4,5,6] x, {dtype}[2,3,4,5,3] g", f"{dtype}[2,24,3,4,5] y", checked=True)


def test_few_points_of_a_large_image() -> None:
    types = "float[1,32,64,64] x, float[1,3,4,2] g", "float[1,32,3,4] y"
    assert all(step.spec.name != "grid_sample_nhwc" for step in Compiled("y = GridSample(x, g)", *types).steps)


def test_the_epilogue_is_part_of_the_kernel() -> None:
    body = "a = GridSample(x, g) y = Relu(a)"
    types = "float[1,2,5,6] x, float[1,3,4,2] g", "float[1,2,3,4] y"
    assert sum(step.spec.name == "grid_sample" for step in Compiled(body, *types).steps) == 1
    assert all(
        "Relu" not in [n.op_type for n in s.nodes] or s.spec.name == "grid_sample" for s in Compiled(body, *types).steps
    )
    check(body, *types)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("sizes", [(2, 3, 5, 7), (2, 1, 4, 1, 6)])
def test_affine_grid(sizes: tuple[int, ...], align: int) -> None:
    rank, shape = len(sizes) - 2, ",".join(map(str, (sizes[0], *sizes[2:])))
    body = constant("s", *sizes) + f"y = AffineGrid<align_corners = {align}>(t, s)"
    check(body, f"float[2,{rank},{rank + 1}] t", f"float[{shape},{rank}] y")


# -- regions


ROIS = np.array([[0, 0, 9, 7], [1.5, 2, 6, 3.5], [-3, -2, 20, 30], [4, 4, 4, 4], [5, 1, 4, 0]], "f")


@pytest.mark.parametrize(
    ("mode", "ratio", "transform"),
    list(product(("avg", "max"), (0, 2), ("half_pixel", "output_half_pixel"))),
)
def test_roi_align(mode: str, ratio: int, transform: str) -> None:
    body = (
        f'y = RoiAlign<mode = "{mode}", output_height = 3, output_width = 2, sampling_ratio = {ratio}, '
        f'spatial_scale = 0.8, coordinate_transformation_mode = "{transform}">(x, rois, batch)'
    )
    x = np.random.default_rng(0).standard_normal((2, 5, 9, 8)).astype("f")
    given = [x, ROIS, np.array([0, 1, 0, 1, 1])]
    check(body, "float[n,c,h,w] x, float[r,4] rois, int64[r] batch", "float[r,c,3,2] y", given=given, checked=True)


@pytest.mark.parametrize("batch", [2, -1])
def test_regions_of_images_that_are_not_there(batch: int) -> None:
    body = "y = RoiAlign<output_height = 2, output_width = 2>(x, rois, batch)"
    compiled = Compiled(body, "float[2,5,9,8] x, float[5,4] rois, int64[5] batch", "float[5,5,2,2] y")
    with pytest.raises(Fail):
        compiled.run([np.zeros((2, 5, 9, 8), "f"), ROIS, np.array([0, 1, 0, batch, 1])])


def test_regions_that_are_not_finite() -> None:
    body = "y = RoiAlign<output_height = 2, output_width = 2>(x, rois, batch)"
    compiled = Compiled(body, "float[2,5,9,8] x, float[1,4] rois, int64[1] batch", "float[1,5,2,2] y")
    for bad in (np.nan, np.inf, 1e30):
        with pytest.raises(Fail):
            compiled.run([np.zeros((2, 5, 9, 8), "f"), np.array([[0, 0, bad, 3]], "f"), np.array([0])])


def test_max_roi_pool() -> None:
    rois = np.concatenate([np.array([[0], [1], [0], [1], [1]], "f"), ROIS], axis=1)
    x = np.random.default_rng(0).standard_normal((2, 5, 9, 8)).astype("f")
    body = "y = MaxRoiPool<pooled_shape = [3, 2], spatial_scale = 0.8>(x, rois)"
    check(body, "float[2,5,9,8] x, float[5,5] rois", "float[5,5,3,2] y", given=[x, rois], checked=True)


# -- pooling


@pytest.mark.parametrize(
    "attributes",
    ["kernel_shape = [2, 2], strides = [2, 2]", "kernel_shape = [3, 3], strides = [2, 1], pads = [1, 1, 1, 1]",
     "kernel_shape = [2, 3], dilations = [2, 1], ceil_mode = 1, strides = [2, 2]",
     "kernel_shape = [3, 2], pads = [2, 1, 0, 1], storage_order = 1"],
)  # fmt: skip
def test_places_of_the_largest(attributes: str) -> None:
    x = np.random.default_rng(5).integers(-3, 3, (2, 3, 7, 12)).astype("f")
    x[0, 0, 2, 3], x[0, 1, :3, :4], x[1, 2, 0, 0] = np.nan, -np.inf, np.inf
    body, outputs = f"y, i = MaxPool<{attributes}>(x)", "float[a,b,c,d] y, int64[a,b,c,d] i"
    check(body, "float[2,3,h,w] x", outputs.replace("c,d", "p,q"), given=[x])


def test_places_of_the_largest_integers() -> None:
    body = "y, i = MaxPool<kernel_shape = [3], pads = [1, 1], strides = [2]>(x)"
    check(body, "int8[2,3,9] x", "int8[2,3,5] y, int64[2,3,5] i")


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p: int) -> None:
    body = f"a = LpPool<p = {p}, kernel_shape = [3, 2], strides = [2, 1], pads = [1, 0, 1, 1]>(x) y = Neg(a)"
    check(body, "float[n,3,h,w] x", "float[n,3,p,q] y", {"n": 2, "h": 7, "w": 21}, {"n": 1, "h": 3, "w": 2})
    check(f"y = GlobalLpPool<p = {p}>(x)", "float[2,3,5,7] x", "float[2,3,1,1] y")


@pytest.mark.parametrize(("size", "beta"), [(3, 0.75), (5, 0.5), (2, 0.6)])
def test_lrn(size: int, beta: float) -> None:
    body = f"y = LRN<size = {size}, alpha = 0.3, beta = {beta}, bias = 1.5>(x)"
    check(
        body, "float[n,c,h,w] x", "float[n,c,h,w] y", {"n": 2, "c": 7, "h": 3, "w": 5}, {"n": 1, "c": 1, "h": 4, "w": 4}
    )


@pytest.mark.parametrize(
    ("columns", "image", "attributes"),
    [("2,18,20", (6, 7), "pads = [0, 0, 0, 0]"), ("1,9,30", (6, 6), "pads = [1, 1, 0, 1]"),
     ("1,9,9", (6, 7), "strides = [2, 2], pads = [0, 1, 1, 0]"), ("1,9,6", (6, 7), "dilations = [2, 2]")],
)  # fmt: skip
def test_col2im(columns: str, image: tuple[int, int], attributes: str) -> None:
    body = constant("s", *image) + constant("b", 3, 3) + f"y = Col2Im<{attributes}>(x, s, b)"
    check(body, f"float[{columns}] x", "float[a,b,c,d] y")


def test_batch_normalization_in_training() -> None:
    body = "y, m, v = BatchNormalization<training_mode = 1, momentum = 0.8, epsilon = 0.01>(x, s, b, mean, var)"
    inputs = "float[n,c,h] x, float[c] s, float[c] b, float[c] mean, float[c] var"
    check(body, inputs, "float[n,c,h] y, float[c] m, float[c] v", {"n": 3, "c": 5, "h": 7}, {"n": 2, "c": 1, "h": 40})
