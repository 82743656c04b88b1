"""Steps before and after models, compared with Pillow and numpy, and with onnxruntime on the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import pipeline
from sardonyx.errors import InvalidArgument, SardonyxError

PIL = pytest.importorskip("PIL.Image")
ort = pytest.importorskip("onnxruntime")

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILTERS = {"linear": PIL.Resampling.BILINEAR, "nearest": PIL.Resampling.NEAREST}
SIZES = [(97, 131), (131, 97), (64, 64), (20, 300)]
PASS = '<ir_version: 9, opset_import: ["": 18]> g (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Identity(x) }'


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def image(height: int, width: int) -> np.ndarray:
    """Colours that change slowly, as in photographs."""
    coarse = np.random.default_rng(height).integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
    return np.asarray(PIL.fromarray(coarse).resize((width, height), PIL.Resampling.BICUBIC))


def checked(model: Any) -> sardonyx.InferenceSession:
    """A session of a model that onnx finds valid and the CPU provider compiles as a whole."""
    onnx.checker.check_model(model, full_check=True)
    session = sardonyx.InferenceSession(model)
    assert {p.provider for p in session.explain().placements} == {"cpu"}, session.explain()
    return session


def peer(model: onnx.ModelProto) -> Any:
    return ort.InferenceSession(model.SerializeToString())


def planes(pixels: Any) -> np.ndarray:
    return np.asarray(pixels).transpose(2, 0, 1)[None].astype(np.float32)


def off(a: np.ndarray, b: np.ndarray) -> float:
    assert a.shape == b.shape
    return float(np.abs(a.astype(np.float64) - b).max())


# -- before


@pytest.mark.parametrize("size", [48, (40, 56), (150, 170)], ids=str)
def test_resize_is_pillows(size: Any) -> None:
    model = pipeline.add(parsed(PASS), before=[pipeline.Resize(size)])
    ours, theirs = checked(model), peer(model)
    for height, width in SIZES:
        pixels, shorter = image(height, width), min(height, width)
        wanted = (height * size // shorter, width * size // shorter) if isinstance(size, int) else size
        (made,) = ours.run(None, {"image": pixels})
        assert off(made, planes(PIL.fromarray(pixels).resize(wanted[::-1], FILTERS["linear"]))) <= 1
        assert off(made, theirs.run(None, {"image": pixels})[0]) <= 1


@pytest.mark.parametrize("mode", ["nearest", "cubic"])
def test_other_modes_are_those_of_onnxruntime(mode: str) -> None:
    model = pipeline.add(parsed(PASS), before=[pipeline.Resize((50, 61), mode, antialias=False)])
    pixels = image(97, 131)
    assert off(checked(model).run(None, {"image": pixels})[0], peer(model).run(None, {"image": pixels})[0]) <= 1


@pytest.mark.parametrize("known", [True, False], ids=["known sizes", "any size"])
def test_the_steps_of_a_classifier(known: bool) -> None:
    sizes = dict(height=97, width=131) if known else {}
    steps = [pipeline.Image(**sizes), pipeline.Resize(48), pipeline.CenterCrop(40), pipeline.Normalize(MEAN, STD)]
    model = pipeline.add(parsed(PASS), before=steps)
    ours = checked(model)
    assert ours.get_inputs()[0].shape == ([97, 131, 3] if known else ["height", "width", 3])
    pixels = image(97, 131)
    small = PIL.fromarray(pixels).resize((64, 48), FILTERS["linear"]).crop((12, 4, 52, 44))
    want = (planes(small) / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    (made,) = ours.run(None, {"image": pixels})
    assert off(made, want) <= 1.01 / 255 / min(STD)
    assert off(made, peer(model).run(None, {"image": pixels})[0]) <= 1.01 / 255 / min(STD)


def test_a_crop_larger_than_the_picture_is_black_around_it() -> None:
    model = pipeline.add(parsed(PASS), before=[pipeline.CenterCrop((30, 10))])
    pixels = image(20, 12)
    want = np.zeros((1, 3, 30, 10), np.float32)
    want[:, :, 5:25] = planes(pixels)[..., 1:11]
    np.testing.assert_array_equal(checked(model).run(None, {"image": pixels})[0], want)


@pytest.mark.parametrize("center", [True, False])
def test_letterbox(center: bool) -> None:
    model = pipeline.add(parsed(PASS), before=[pipeline.Letterbox((64, 80), 7, center=center, antialias=True)])
    ours, theirs = checked(model), peer(model)
    for height, width in SIZES:
        pixels = image(height, width)
        ratio = min(64 / height, 80 / width)
        inner = [max(1, int(np.floor(n * ratio + 0.5))) for n in (height, width)]
        top, left = ((64 - inner[0]) // 2, (80 - inner[1]) // 2) if center else (0, 0)
        want = np.full((1, 3, 64, 80), 7, np.float32)
        small = PIL.fromarray(pixels).resize((inner[1], inner[0]), FILTERS["linear"])
        want[:, :, top : top + inner[0], left : left + inner[1]] = planes(small)
        (made,) = ours.run(None, {"image": pixels})
        assert off(made, want) <= 1
        assert off(made, theirs.run(None, {"image": pixels})[0]) <= 1


def test_float_inputs_are_not_cast() -> None:
    steps = [pipeline.Normalize(0.5, 0.25), pipeline.Resize((24, 30), "cubic"), pipeline.Letterbox(40, fill=1)]
    model = pipeline.add(parsed(PASS), before=steps)
    pixels = image(50, 60)
    (made,) = checked(model).run(None, {"image": pixels})
    np.testing.assert_allclose(made, peer(model).run(None, {"image": pixels})[0], atol=1e-4)
    assert made[0, 0, 0, 0] == 1


@pytest.mark.parametrize("layout", ["HWC", "NHWC", "CHW", "NCHW"])
def test_layouts_and_channels(layout: str) -> None:
    pixels = image(9, 13)
    fed = pixels if layout.endswith("C") else pixels.transpose(2, 0, 1)
    fed = np.stack([fed, 255 - fed]) if layout.startswith("N") else fed
    model = pipeline.add(parsed(PASS), before=[pipeline.Image("photo", layout), pipeline.SwapChannels()])
    (made,) = checked(model).run(None, {"photo": fed})
    want = planes(pixels)[:, ::-1]
    np.testing.assert_array_equal(made, np.concatenate([want, 255 - want]) if layout.startswith("N") else want)


def test_old_models_are_upgraded_to_the_opset_of_the_steps(tmp_path: Path) -> None:
    text = """<ir_version: 3, opset_import: ["": 7]> g (float16[1, 3, 8, 8] x, float16[1] scale) => (float16[1, 3] y) {
        a = Mul(x, scale) b = GlobalAveragePool(a) y = Flatten(b) }"""
    old = parsed(text)
    old.graph.initializer.append(onnx.numpy_helper.from_array(np.float16([2]), "scale"))
    path = pipeline.add(old, before=[pipeline.Resize((8, 8))], after=[pipeline.Softmax()], path=tmp_path / "new.onnx")
    model = onnx.load(path)
    assert [o.version for o in model.opset_import if not o.domain] == [18]
    pixels = image(30, 40)
    (made,) = checked(model).run(None, {"image": pixels})
    assert made.dtype == np.float16
    np.testing.assert_allclose(made, peer(model).run(None, {"image": pixels})[0], atol=2e-2)


# -- after the model


SCORES = (
    '<ir_version: 9, opset_import: ["": 18]> g (float[n, 10] x) => (float[n, 10] y, z) { y = Mul(x, x) z = Neg(x) }'
)


def test_scores_become_answers() -> None:
    x = np.random.default_rng(0).normal(size=(4, 10)).astype(np.float32)
    powers = np.exp(x * x) / np.exp(x * x).sum(1, keepdims=True)
    order = np.argsort(-powers, axis=1)[:, :3]
    model = pipeline.add(parsed(SCORES), after=[pipeline.Softmax(), pipeline.TopK(3)])
    session = checked(model)
    assert [o.name for o in session.get_outputs()] == ["scores", "indices", "z"]
    best, places, z = session.run(None, {"x": x})
    np.testing.assert_allclose(best, np.take_along_axis(powers, order, 1), rtol=1e-5)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(z, -x)
    (index,) = checked(pipeline.add(parsed(SCORES), after=[pipeline.ArgMax()])).run(["index"], {"x": x})
    np.testing.assert_array_equal(index, order[:, 0])
    words = [f"class {i}" for i in range(10)]
    named = pipeline.add(parsed(SCORES), after=[pipeline.TopK(3), pipeline.Labels(words)])
    for session in (sardonyx.InferenceSession(named), peer(named)):
        labels = session.run(["labels"], {"x": x})[0]
        assert labels.tolist() == [[words[i] for i in row] for row in order]


def kept(boxes: np.ndarray, scores: np.ndarray, iou: float, least: float, most: int) -> list[int]:
    """Greedy suppression inside classes, best first."""
    best, kind, found = scores.max(1), scores.argmax(1), list[int]()
    for i in np.argsort(-best, kind="stable"):
        overlaps = [overlap(boxes[i], boxes[j]) for j in found if kind[i] == kind[j]]
        if best[i] > least and len(found) < most and all(o <= iou for o in overlaps):
            found.append(int(i))
    return found


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    both = sides.prod()
    return float(both / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - both))


def detections(count: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres with sizes, many of which overlap, and scores."""
    r = np.random.default_rng(count)
    boxes = np.concatenate(
        [r.choice([100, 108, 200, 300], (count, 2)) + r.normal(size=(count, 2)), r.uniform(30, 60, (count, 2))], 1
    )
    return boxes.astype(np.float32), r.uniform(0, 1, (count, classes)).astype(np.float32) ** 2


DETECTOR = """<ir_version: 9, opset_import: ["": 18]> g (float[1, 3, 320, 320] x, float[1, {}] raw) => ({} out) {{
    m = ReduceMean <keepdims=0> (x) zero = Sub(m, m) out = Add(raw, zero) }}"""


@pytest.mark.parametrize("shape", [(400, 300), (300, 400)])
def test_boxes_are_those_of_the_image(shape: tuple[int, int]) -> None:
    places, scores = detections(60, 5)
    raw = np.concatenate([places, scores], 1).T[None]
    model = pipeline.add(
        parsed(DETECTOR.format("9, 60", "float[1, 9, 60]")),
        before=[pipeline.Letterbox(320), pipeline.Normalize()],
        after=[pipeline.YoloBoxes(), pipeline.NonMaxSuppression(0.4, 0.2, 40), pipeline.ToImage()],
    )
    half = places[:, 2:] / 2
    corners = np.concatenate([places[:, :2] - half, places[:, :2] + half], 1)
    chosen = kept(corners, scores, 0.4, 0.2, 40)
    assert 5 < len(chosen) < 40
    height, width = shape
    scale, bar = 320 / 400, (320 - 300 * 320 // 400) // 2
    shift = [bar, 0] * 2 if height > width else [0, bar] * 2
    want = np.clip((corners[chosen] - shift) / scale, 0, [width, height] * 2)
    for session in (checked(model), peer(model)):
        boxes, best, kind = session.run(["boxes", "scores", "classes"], {"image": image(*shape), "raw": raw})
        np.testing.assert_allclose(boxes, want, atol=1e-2)
        np.testing.assert_allclose(best, scores.max(1)[chosen], rtol=1e-6)
        np.testing.assert_array_equal(kind, scores.argmax(1)[chosen])


def test_grids_of_yolox() -> None:
    r = np.random.default_rng(3)
    raw = r.normal(size=(1, 8 * 8 + 4 * 4 + 2 * 2, 7)).astype(np.float32)
    text = DETECTOR.format("84, 7", "float[1, 84, 7]").replace("320", "64")
    model = pipeline.add(parsed(text), after=[pipeline.YoloxBoxes(64)])
    boxes, scores = checked(model).run(None, {"x": np.zeros((1, 3, 64, 64), "f"), "raw": raw})
    row = 0
    for stride in (8, 16, 32):
        for y in range(64 // stride):
            for x in range(64 // stride):
                cell = raw[0, row].astype(np.float64)
                center, span = (cell[:2] + np.array([x, y])) * stride, np.exp(cell[2:4]) * stride
                np.testing.assert_allclose(
                    boxes[0, row], [*(center - span / 2), *(center + span / 2)], rtol=1e-4, atol=1e-3
                )
                np.testing.assert_allclose(scores[0, row], cell[4] * cell[5:], rtol=1e-5, atol=1e-6)
                row += 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (dict(before=[pipeline.Resize((5, 5))], input="nowhere"), "no such input"),
        (dict(after=[pipeline.Softmax()], outputs=["nowhere"]), "no such outputs"),
        (dict(before=[pipeline.Resize(8), pipeline.Image()]), "Image, once and first"),
        (dict(before=[pipeline.Softmax()]), "Image, once and first"),
        (dict(after=[pipeline.Resize(8)]), "a step after the model"),
        (dict(after=[pipeline.ToImage()]), "ToImage needs steps before"),
        (dict(after=[pipeline.NonMaxSuppression()]), "takes boxes and scores"),
        (dict(before=[pipeline.Normalize((0.5, 0.5), (1.0, 1.0))]), "one mean and std for each channel"),
    ],
)
def test_misfits_are_refused(call: dict[str, Any], message: str) -> None:
    with pytest.raises(SardonyxError, match=message):
        pipeline.add(parsed(PASS), **call)


def test_a_picture_of_another_size_than_the_model_reads_is_refused() -> None:
    fixed = parsed(PASS.replace("float[n, 3, h, w] x", "float[1, 3, 32, 32] x"))
    with pytest.raises(InvalidArgument, match=r"does not fit the model's input.*32, 32\].*16, 16"):
        pipeline.add(fixed, before=[pipeline.Resize((16, 16))])


@pytest.mark.parametrize(
    "make",
    [
        lambda: pipeline.Resize(0),
        lambda: pipeline.Resize((1, 2, 3)),
        lambda: pipeline.Resize(8, "bilinear"),
        lambda: pipeline.CenterCrop(-1),
        lambda: pipeline.Letterbox(64, fill=300),
        lambda: pipeline.Normalize(std=0.0),
        lambda: pipeline.Image(layout="WHC"),
    ],
)
def test_steps_check_their_arguments(make: Any) -> None:
    with pytest.raises(InvalidArgument):
        make()
