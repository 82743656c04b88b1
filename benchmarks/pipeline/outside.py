"""The steps around a model by Pillow and numpy, and contestants that run them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sardonyx.bench.arrays import Array, Feeds

Run = Callable[[Array], Array]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HEIGHT, WIDTH = 1080, 1920
IOU, SCORE, MOST = 0.45, 0.25, 300


def for_classifier(pixels: Array, dtype: Any = np.float32) -> Array:
    small = Image.fromarray(pixels).resize((455, 256), Image.Resampling.BILINEAR).crop((115, 16, 339, 240))
    x = (np.asarray(small, np.float32) / 255 - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return np.ascontiguousarray(x.transpose(2, 0, 1)[None].astype(dtype))


def letterboxed(pixels: Array, size: int, *, center: bool, scale: float) -> Array:
    height, width = HEIGHT * size // WIDTH, size
    top = (size - height) // 2 if center else 0
    box = np.full((size, size, 3), 114, np.uint8)
    box[top : top + height] = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
    return np.ascontiguousarray(box.transpose(2, 0, 1)[None]).astype(np.float32) * np.float32(scale)


def suppressed(boxes: Array, scores: Array, score: float = SCORE) -> tuple[Array, Array, Array]:
    """Boxes (n, 4), scores and classes of what is left."""
    best, kind = scores.max(1), scores.argmax(1)
    left = np.flatnonzero(best > score)
    left = left[np.argsort(-best[left], kind="stable")]
    chosen: list[int] = []
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    while left.size and len(chosen) < MOST:
        i, left = int(left[0]), left[1:]
        chosen.append(i)
        sides = np.minimum(boxes[i, 2:], boxes[left, 2:]) - np.maximum(boxes[i, :2], boxes[left, :2])
        both = np.maximum(sides, 0).prod(1)
        left = left[(both <= IOU * (areas[i] + areas[left] - both)) | (kind[left] != kind[i])]
    return boxes[chosen], best[chosen], kind[chosen]


def yolo(raw: Array) -> tuple[Array, Array, Array]:
    rows = raw[0].T
    half = rows[:, 2:4] / 2
    return suppressed(np.concatenate([rows[:, :2] - half, rows[:, :2] + half], 1), rows[:, 4:])


def yolox(raw: Array, size: int, score: float) -> tuple[Array, Array, Array]:
    grids = [np.mgrid[: size // s, : size // s][::-1].reshape(2, -1).T for s in (8, 16, 32)]
    steps = np.repeat(np.float32([8, 16, 32]), [len(g) for g in grids])[:, None]
    center, half = (raw[0, :, :2] + np.concatenate(grids)) * steps, np.exp(raw[0, :, 2:4]) * steps / 2
    boxes = np.concatenate([center - half, center + half], 1).astype(np.float32)
    boxes, best, kind = suppressed(boxes, raw[0, :, 5:] * raw[0, :, 4:5], score)
    return np.clip(boxes * (WIDTH / size), 0, np.float32([WIDTH, HEIGHT] * 2)), best, kind


def _top(scores: Array) -> list[Array]:
    order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    return [np.take_along_axis(scores, order, 1), order]


STEPS: dict[str, Callable[[Run, Feeds], Any]] = {
    "normalize-224": lambda run, feeds: [for_classifier(feeds["image"])],
    "letterbox-640": lambda run, feeds: [letterboxed(feeds["image"], 640, center=True, scale=1 / 255)],
    "suppress-8400": lambda run, feeds: yolo(feeds["x"]),
    "squeezenet": lambda run, feeds: _top(run(for_classifier(feeds["image"], np.float16)).reshape(1, -1)),
    "yolox-nano": lambda run, feeds: yolox(run(letterboxed(feeds["image"], 416, center=False, scale=1)), 416, 0.02),
}
"""By case: what surrounds a call of the model."""


def alone(model: Path) -> Path:
    """The model without its steps, beside the one with them."""
    return model.with_suffix(".alone.onnx")


class Outside:
    """A contestant of ``benchmarks.compare``: the steps of a case, around a session of the model alone."""

    def __init__(self, engine: str, model: str, threads: int) -> None:
        path = Path(model)
        self._steps, self._run = STEPS[path.stem], self._nothing
        if alone(path).exists():
            import importlib

            package = importlib.import_module(engine)
            options = package.SessionOptions()
            options.intra_op_num_threads = threads
            session = package.InferenceSession(str(alone(path)), options, providers=["CPUExecutionProvider"])
            name = session.get_inputs()[0].name
            self._run = lambda x: session.run(None, {name: x})[0]

    def _nothing(self, x: Array) -> Array:
        return x

    def run(self, feeds: Feeds) -> list[Array]:
        return list(self._steps(self._run, feeds))

    def names(self) -> list[set[str]]:
        return []

    def about(self) -> dict[str, Any]:
        return {}


def around_sardonyx(model: str, threads: int) -> Outside:
    return Outside("sardonyx", model, threads)


def around_onnxruntime(model: str, threads: int) -> Outside:
    return Outside("onnxruntime", model, threads)
