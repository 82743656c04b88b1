"""Resize, against the operator's own meaning and onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest

from sardonyx.ops.resize import resize
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array

NEAREST, LINEAR, CUBIC = 'mode = "nearest"', 'mode = "linear"', 'mode = "cubic"'


@dataclass(frozen=True)
class Case:
    x: tuple[int, ...]
    attributes: str = NEAREST
    scales: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    roi: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        def constant(name: str, dtype: str, values: tuple[float, ...]) -> str:
            return f"{name} = Constant<value = {dtype}[{len(values)}] {{{', '.join(map(str, values))}}}>() "

        given = [("roi", "float", self.roi), ("scales", "float", self.scales), ("sizes", "int64", self.sizes)]
        makes = "".join(constant(*g) for g in given if g[2])
        names = ", ".join(name if values else "" for name, _, values in given)
        return f"{makes}y = Resize<{self.attributes}>(x, {names.rstrip(', ')})"

    def feed(self, dtype: str = "float32") -> Array:
        x = np.random.default_rng(sum(self.x)).standard_normal(self.x)
        return (x * 40 + 100 if dtype[0] in "ui" else x).astype(dtype)


def types(case: Case, dtype: str = "float") -> tuple[str, str]:
    return f"{dtype}[{','.join(map(str, case.x))}] x", f"{dtype}[{','.join('ABCDE'[: len(case.x)])}] y"


def attributes(case: Case) -> dict[str, object]:
    node = onnx.parser.parse_node(case.text.rpartition(">() ")[2] or case.text)
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {name: v.decode() if isinstance(v, bytes) else v for name, v in found.items()}


def expected(case: Case, x: Array) -> Array:
    given = (np.array(v, t) if v else None for v, t in ((case.roi, "f"), (case.scales, "f"), (case.sizes, "q")))
    return np.asarray(resize(x, *given, **attributes(case)))  # type: ignore[arg-type]


def transformed(name: str, more: str = "") -> str:
    return f'coordinate_transformation_mode = "{name}"{more and ", " + more}'


TRANSFORMS = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
CASES = {
    **{f"nearest {t} {r}": Case((1, 2, 5, 7), transformed(t, f'nearest_mode = "{r}"'), (1, 1, 1.7, 0.6))
       for t in (*TRANSFORMS, "tf_half_pixel_for_nn") for r in ROUNDINGS},
    **{f"nearest twice, {t} {r}": Case((2, 3, 5, 19), transformed(t, f'nearest_mode = "{r}"'), (1, 1, 2, 2))
       for t in ("half_pixel", "asymmetric") for r in ROUNDINGS},
    "nearest three times": Case((1, 2, 3, 21), NEAREST, (1, 1, 3, 3)),
    "nearest of channels": Case((2, 3, 4, 5), NEAREST, (1, 2, 1, 1)),
    **{f"linear {t}": Case((1, 2, 6, 9), transformed(t, LINEAR), (1, 1, 1.6, 0.7)) for t in TRANSFORMS},
    **{f"cubic {t}": Case((1, 2, 6, 9), transformed(t, CUBIC), (1, 1, 1.6, 0.7)) for t in TRANSFORMS},
    **{f"linear twice, {t}": Case((2, 2, 5, 37), transformed(t, LINEAR), (1, 1, 2, 2)) for t in TRANSFORMS},
    "linear three times": Case((1, 2, 4, 19), LINEAR, (1, 1, 3, 3)),
    "linear many times": Case((1, 2, 4, 5), LINEAR, (), (1, 2, 48, 60)),
    "linear half": Case((1, 3, 10, 36), LINEAR, (1, 1, 0.5, 0.5)),
    "linear third": Case((1, 2, 7, 130), LINEAR, (1, 1, 0.7, 0.3)),
    "linear a little larger": Case((1, 2, 6, 50), LINEAR, (1, 1, 1.6, 1.6)),
    "linear to sizes": Case((1, 2, 13, 17), LINEAR, (), (1, 2, 7, 40)),
    "linear to one": Case((1, 2, 13, 17), transformed("pytorch_half_pixel", LINEAR), (), (1, 2, 1, 1)),
    "linear from one": Case((1, 2, 1, 1), LINEAR, (), (1, 2, 5, 9)),
    "linear of 3 axes": Case((1, 2, 4, 5, 6), LINEAR, (1, 1, 1.5, 2, 2)),
    "linear of channels last": Case((1, 5, 6, 20), LINEAR, (1, 2, 1.5, 1)),
    "linear of colours": Case((5, 6, 3), LINEAR, (2, 1.5, 1)),
    "linear of rows alone": Case((2, 3, 6, 70), LINEAR, (1, 1, 1.5, 1)),
    "cubic of channels last": Case((1, 5, 6, 9), CUBIC, (1, 2, 1.5, 1)),
    "linear of one axis": Case((40,), LINEAR, (2.5,)),
    "cubic twice": Case((1, 2, 6, 21), CUBIC, (1, 1, 2, 2)),
    "cubic sharp": Case((1, 2, 6, 21), f"{CUBIC}, cubic_coeff_a = -0.5, exclude_outside = 1", (1, 1, 2, 1.3)),
    "linear antialiased": Case((1, 2, 20, 31), f"{LINEAR}, antialias = 1", (1, 1, 0.3, 0.4)),
    "linear antialiased and grown": Case((1, 2, 6, 31), f"{LINEAR}, antialias = 1", (1, 1, 2, 0.4)),
    "cubic antialiased": Case((1, 2, 20, 31), f"{CUBIC}, antialias = 1", (1, 1, 0.6, 0.2)),
    "cubic antialiased, alone": Case((1, 2, 20, 31), f"{CUBIC}, antialias = 1, exclude_outside = 1", (), (1, 2, 9, 7)),
    "axes": Case((1, 2, 5, 7), f"{LINEAR}, axes = [3, 2]", (1.5, 2.5)),
    "crop": Case((1, 1, 6, 8), transformed("tf_crop_and_resize", LINEAR),
                 (), (1, 1, 4, 5), (0, 0, .2, .3, 1, 1, .7, .8)),
    "crop outside": Case((1, 2, 6, 8), transformed("tf_crop_and_resize", f"{LINEAR}, extrapolation_value = 9.0"),
                         (), (1, 2, 7, 5), (0, 0, -.2, .3, 1, 1, .7, 1.4)),
    "crop of more than there is": Case((1, 2, 6, 40), transformed("tf_crop_and_resize", LINEAR),
                                       (), (1, 2, 7, 80), (0, 0, 0, -1, 1, 1, 1, 2)),
    "crop nearest": Case((1, 2, 6, 8), transformed("tf_crop_and_resize", "extrapolation_value = 9.0, axes = [2, 3]"),
                         (), (7, 5), (-.2, .3, .7, 1.4)),
    "as large as fits": Case((1, 2, 5, 7), f'{LINEAR}, keep_aspect_ratio_policy = "not_larger", axes = [2, 3]',
                             (), (9, 9)),
    "no smaller": Case((1, 2, 5, 7), 'keep_aspect_ratio_policy = "not_smaller", axes = [2, 3]', (), (9, 9)),
    "nothing": Case((1, 2, 5, 7), LINEAR, (1, 1, 1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_against_the_meaning(name: str) -> None:
    case = CASES[name]
    x = case.feed()
    compiled = Compiled(case.text, *types(case))
    (got,) = compiled.run([x])
    np.testing.assert_allclose(got, expected(case, x), rtol=1e-5, atol=2e-6)
    (again,) = compiled.run([x], threads=3)
    np.testing.assert_array_equal(again, got)


@pytest.mark.sliced(9)
@pytest.mark.parametrize("cpu", ["haswell", "sapphirerapids"])
@pytest.mark.parametrize("name", CASES)
def test_other_chips_and_addresses(name: str, cpu: str) -> None:
    case = CASES[name]
    x = case.feed()
    (got,) = Compiled(case.text, *types(case), cpu).run([x], threads=2, checked=True)
    np.testing.assert_allclose(got, expected(case, x), rtol=1e-5, atol=2e-6)


def onnxruntime_answer(case: Case, x: Array) -> Array:
    ort = pytest.importorskip("onnxruntime")
    inputs, outputs = types(case)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({outputs}) {{ {case.text} }}'
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize(
    "name",
    ["nearest half_pixel round_prefer_floor", "nearest asymmetric floor", "linear half_pixel",
     "linear twice, align_corners", "linear twice, pytorch_half_pixel", "cubic half_pixel", "cubic twice",
     "linear antialiased", "crop outside"],
)  # fmt: skip
def test_against_onnxruntime(name: str) -> None:
    case = CASES[name]
    x = case.feed()
    (got,) = Compiled(case.text, *types(case)).run([x])
    np.testing.assert_allclose(got, onnxruntime_answer(case, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "numpy"), [("uint8", "uint8"), ("int32", "int32"), ("float16", "float16"),
                                              ("double", "float64"), ("bool", "bool")])  # fmt: skip
@pytest.mark.parametrize(
    "name", ["nearest twice, asymmetric floor", "nearest half_pixel floor", "linear twice, half_pixel"]
)
def test_types(name: str, dtype: str, numpy: str) -> None:
    case = CASES[name]
    if numpy == "bool" and "linear" in name:
        pytest.skip("a bool has no weights")
    x = case.feed() > 0 if numpy == "bool" else case.feed(numpy)
    (got,) = Compiled(case.text, *types(case, dtype)).run([x], threads=2)
    want = expected(case, x)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.astype("d"), want.astype("d"), rtol=2e-3 if numpy == "float16" else 1e-6, atol=1e-6)


SIZES = ((1, 2, 5, 9), (2, 1, 1, 1), (0, 3, 4, 4), (1, 3, 17, 33))


@pytest.mark.parametrize(
    "case",
    [Case((), NEAREST, (1, 1, 2, 2)), Case((), LINEAR, (1, 1, 2, 2)), Case((), LINEAR, (1, 1, 0.5, 1.5)),
     Case((), f"{CUBIC}, axes = [2, 3]", (), (7, 11)), Case((), f"{LINEAR}, antialias = 1, axes = [2, 3]", (), (3, 5)),
     Case((), transformed("align_corners", f"{LINEAR}, axes = [2, 3]"), (), (1, 20))],
    ids=lambda c: f"{c.attributes} {c.scales or c.sizes}",
)  # fmt: skip
def test_dynamic_sizes(case: Case) -> None:
    compiled = Compiled(case.text, "float[n,c,h,w] x", "float[n,c,p,q] y")
    for shape in SIZES:
        x = np.random.default_rng(1).standard_normal(shape).astype("f")
        (got,) = compiled.run([x], threads=2)
        np.testing.assert_allclose(got, expected(case, x), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "name", ["nearest twice, asymmetric floor", "nearest three times", "linear twice, half_pixel", "linear half"]
)
def test_nhwc_images_are_resized_along_channels(name: str) -> None:
    """NHWC in and out: vectors lie along the channels."""
    case = replace(CASES[name], x=(2, 21, 5, 8))
    resize = case.text.replace("y =", "b =").replace("(x,", "(a,")
    body = f"a = Transpose<perm = [0, 3, 1, 2]>(x) {resize} y = Transpose<perm = [0, 2, 3, 1]>(b)"
    compiled = Compiled(body, "float[2,5,8,21] x", "float[A,B,C,D] y", "haswell")
    assert [step.spec.name for step in compiled.steps] == ["resize"]
    assert dict(compiled.steps[0].spec.statics)["config"].inner is None
    x = case.feed()
    (got,) = compiled.run([np.ascontiguousarray(x.transpose(0, 2, 3, 1))], threads=2, checked=True)
    np.testing.assert_allclose(got.transpose(0, 3, 1, 2), expected(case, x), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("mode", [LINEAR, CUBIC])
def test_any_number_of_rows(mode: str) -> None:
    case = Case((), mode, (1, 1, 2, 2))
    compiled = Compiled(case.text, "float[n,c,h,w] x", "float[n,c,p,q] y", "skylake-avx512")
    for height in (1, 2, 3, 8):
        x = np.random.default_rng(1).standard_normal((1, 2, height, 33)).astype("f")
        (got,) = compiled.run([x], threads=3, checked=True)
        np.testing.assert_allclose(got, expected(case, x), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("mode", [LINEAR, CUBIC])
def test_rows_of_every_length_in_long_vectors(mode: str) -> None:
    case = Case((), mode, (1, 1, 2, 2))
    compiled = Compiled(case.text, "float[n,c,h,w] x", "float[n,c,p,q] y", "skylake-avx512")
    for width in (1, 15, 16, 17, 31, 32, 33, 48, 49, 80):
        x = np.random.default_rng(1).standard_normal((1, 2, 3, width)).astype("f")
        (got,) = compiled.run([x], checked=True)
        np.testing.assert_allclose(got, expected(case, x), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("cpu", ["skylake-avx512", "haswell"])
@pytest.mark.parametrize(
    ("mode", "factor", "vectors"),
    [(CUBIC, 2, 1), (CUBIC, 2, 5), (CUBIC, 2, 8), (CUBIC, 2, 9), (LINEAR, 2, 2), (LINEAR, 4, 3), (LINEAR, 8, 2),
     (LINEAR, 8, 3)],
)  # fmt: skip
def test_short_rows_are_unrolled(mode: str, factor: int, vectors: int, cpu: str) -> None:
    """Bit-identical to the loop over rows of any length."""
    width = vectors * (16 if cpu == "skylake-avx512" else 8)
    case = Case((1, 2, 6, width), mode, (1, 1, 2, factor))
    unrolled, looped = (Compiled(case.text, *t, cpu) for t in (types(case), ("float[1,2,6,w] x", "float[A,B,C,D] y")))
    found = [dict(one.steps[0].spec.statics)["config"].unrolled_vectors for one in (unrolled, looped)]
    assert found == [vectors if vectors * factor <= 16 else 0, 0]
    x = case.feed()
    (got,), (wanted,) = (one.run([x], threads=2, checked=True) for one in (unrolled, looped))
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_allclose(got, expected(case, x), rtol=1e-5, atol=2e-6)


def test_the_epilogue_is_part_of_the_kernel() -> None:
    case = CASES["linear twice, half_pixel"]
    body = case.text.replace("y =", "a =") + " b = Add(a, r) y = Relu(b)"
    compiled = Compiled(body, "float[2,2,5,37] x, float[1,2,1,74] r", "float[2,2,10,74] y")
    assert len(compiled.steps) == 1
    x, r = case.feed(), np.random.default_rng(1).standard_normal((1, 2, 1, 74)).astype("f")
    (got,) = compiled.run([x, r])
    np.testing.assert_allclose(got, np.maximum(expected(case, x) + r, 0), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["linear twice, half_pixel", "linear half", "nearest three times"])
def test_nan_and_infinity_propagate_as_in_numpy(name: str) -> None:
    case = CASES[name]
    x = case.feed()
    x[0, 0, 1, 3], x[0, 1, 0, 0], x[0, 1, -1, -1] = np.nan, np.inf, -np.inf
    (got,) = Compiled(case.text, *types(case)).run([x])
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got, expected(case, x), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (1, 0, 3, 2), (3, 1, 2, 0)])
def test_results_in_another_order(order: tuple[int, ...]) -> None:
    case = CASES["linear half"]
    body = case.text.replace("y =", "a =") + f" y = Transpose<perm = {list(order)}>(a)"
    compiled = Compiled(body, types(case)[0], "float[A,B,C,D] y")
    assert len(compiled.steps) == 1
    (got,) = compiled.run([case.feed()], checked=True)
    np.testing.assert_allclose(got, expected(case, case.feed()).transpose(order), rtol=1e-5, atol=2e-6)
