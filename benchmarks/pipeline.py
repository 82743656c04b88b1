"""Pre- and post-processing in the graph, and outside of it by Pillow and numpy: milliseconds for one photograph.

    python benchmarks/pipeline.py [--models DIR] [--threads N] [--seconds S] [--json FILE]

The photograph is 1920 by 1080 bytes a colour. `graph` is one session of a model with its steps (``sardonyx.pipeline``);
`outside` does the same steps by Pillow and numpy, and gives the result to a session of the model alone. DIR may hold
`cls__squeezenet1.0-fp16.onnx` and `det__yolox-nano-416.onnx`; without it only the steps are measured. All contestants
run in every round; a figure is the median. Resizing counts every pixel everywhere, as Pillow does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import PIL
from PIL import Image

import sardonyx
from sardonyx import pipeline

Array = np.ndarray[Any, Any]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HEIGHT, WIDTH = 1080, 1920
IOU, SCORE, MOST = 0.45, 0.25, 300
PASS = '<ir_version: 9, opset_import: ["": 18]> g (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Identity(x) }'
BOXES = '<ir_version: 9, opset_import: ["": 18]> g (float[1, 84, 8400] x) => (float[1, 84, 8400] y) { y = Identity(x) }'
ENGINES = {"sardonyx": sardonyx, "onnxruntime": onnxruntime}


def photograph() -> Array:
    coarse = np.random.default_rng(0).integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))


# -- the steps by Pillow and numpy


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


# -- the cases


@dataclass(frozen=True)
class Case:
    name: str
    model: Any
    """With its steps."""
    feed: dict[str, Array]
    alone: Any
    """The model without them; None where there is none."""
    outside: Callable[[Callable[[Array], Array]], Any]
    """The steps around a call of the model."""


def cases(models: Path | None) -> list[Case]:
    photo = photograph()
    classifier = [pipeline.Resize(256), pipeline.CenterCrop(224), pipeline.Normalize(MEAN, STD)]
    detector = [pipeline.Letterbox(640, antialias=True), pipeline.Normalize()]
    plain = onnx.parser.parse_model(PASS)
    raw = detections()
    tail = [pipeline.YoloBoxes(), pipeline.NonMaxSuppression(IOU, SCORE, MOST)]
    found = [
        Case(
            "photograph to 224, normalised",
            pipeline.add(plain, before=classifier),
            {"image": photo},
            None,
            lambda run: [for_classifier(photo)],
        ),
        Case(
            "photograph to 640, letterboxed",
            pipeline.add(plain, before=detector),
            {"image": photo},
            None,
            lambda run: [letterboxed(photo, 640, center=True, scale=1 / 255)],
        ),
        Case(
            "8400 boxes of 80 classes, suppressed",
            pipeline.add(onnx.parser.parse_model(BOXES), after=tail),
            {"x": raw},
            None,
            lambda run: yolo(raw),
        ),
    ]
    if models is not None:
        squeezenet, nano = models / "cls__squeezenet1.0-fp16.onnx", models / "det__yolox-nano-416.onnx"
        found += [
            Case(
                "SqueezeNet, photograph to top 5",
                pipeline.add(squeezenet, before=classifier, after=[pipeline.Flatten(), pipeline.TopK(5)]),
                {"image": photo},
                squeezenet,
                lambda run: _top(run(for_classifier(photo, np.float16)).reshape(1, -1)),
            ),
            Case(
                "YOLOX-nano, photograph to boxes",
                pipeline.add(
                    nano,
                    before=[pipeline.Letterbox(416, center=False, antialias=True)],
                    after=[pipeline.YoloxBoxes(416), pipeline.NonMaxSuppression(IOU, 0.02, MOST), pipeline.ToImage()],
                ),
                {"image": photo},
                nano,
                lambda run: yolox(run(letterboxed(photo, 416, center=False, scale=1)), 416, 0.02),
            ),
        ]
    return found


def _top(scores: Array) -> list[Array]:
    order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    return [np.take_along_axis(scores, order, 1), order]


def detections() -> Array:
    """What a detector says of a street: a hundred objects, each found by several dozen boxes, and much of nothing."""
    r = np.random.default_rng(1)
    centers, spans = r.uniform(50, 590, (100, 2)), r.uniform(20, 90, (100, 2))
    which = r.integers(0, 100, 8400)
    boxes = np.concatenate(
        [centers[which] + r.normal(size=(8400, 2)) * 3, spans[which] * r.uniform(0.9, 1.1, (8400, 2))], 1
    )
    scores = r.uniform(0, 0.05, (8400, 80))
    scores[np.arange(8400), which % 80] = r.uniform(0, 1, 8400) ** 3
    return np.ascontiguousarray(np.concatenate([boxes, scores], 1).T[None], np.float32)


def session(engine: str, model: Any, threads: int) -> Any:
    options = ENGINES[engine].SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return ENGINES[engine].InferenceSession(source, options, providers=["CPUExecutionProvider"])


def contestants(case: Case, threads: int) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {}
    for engine in ENGINES:
        inside = session(engine, case.model, threads)
        found[f"graph, {engine}"] = lambda inside=inside: inside.run(None, case.feed)
        if case.alone is not None:
            bare = session(engine, case.alone, threads)
            name = bare.get_inputs()[0].name
            found[f"outside, {engine}"] = lambda bare=bare, name=name: case.outside(
                lambda x: bare.run(None, {name: x})[0]
            )
    if case.alone is None:
        found["outside"] = lambda: case.outside(lambda x: x)
    return found


def measure(case: Case, threads: int, seconds: float) -> dict[str, Any]:
    runs = contestants(case, threads)
    answers = {name: run() for name, run in runs.items()}
    first = answers["graph, sardonyx"][0].astype(np.float64)
    differences = {
        name: float(np.abs(first - a[0]).max()) if a[0].shape == first.shape else None for name, a in answers.items()
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
    medians = {name: statistics.median(t) for name, t in times.items()}
    return {"case": case.name, "threads": threads, "ms": medians, "differences": differences}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    versions = f"onnxruntime {onnxruntime.__version__}, Pillow {PIL.__version__}, numpy {np.__version__}"
    print(f"sardonyx {sardonyx.__version__}, {versions}, {args.threads} threads")
    rows = [measure(case, args.threads, args.seconds) for case in cases(args.models)]
    for row in rows:
        print(row["case"])
        ours = row["ms"]["graph, sardonyx"]
        for name, ms in row["ms"].items():
            off = row["differences"][name]
            note = "another number of results" if off is None else f"off by {off:.1e}"
            print(f"  {name:22} {ms:8.2f} ms  {ms / ours:5.2f}x  {note}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
