"""What do pre- and post-processing cost in the graph, and outside of it by Pillow and numpy?

    python -m benchmarks.pipeline [--models DIR] [--threads N] [--seconds S] [--markdown FILE]

The photograph is 1920 by 1080 bytes a colour. `graph` is one session of a model with its steps (``sardonyx.pipeline``);
`outside` does the same steps by Pillow and numpy, and gives the result to a session of the model alone. DIR may hold
`cls__squeezenet1.0-fp16.onnx` and `det__yolox-nano-416.onnx`; without it only the steps are measured. Processes and
rounds are those of ``benchmarks.compare``. Resizing counts every pixel everywhere, as Pillow does.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from PIL import Image

import sardonyx
from benchmarks import page
from benchmarks.compare.cases import Case, Files
from benchmarks.compare.report import ms, table
from benchmarks.compare.rounds import Settings, measure
from benchmarks.pipeline.outside import HEIGHT, IOU, MEAN, MOST, SCORE, STD, WIDTH, alone, around_sardonyx
from sardonyx import pipeline
from sardonyx.bench.arrays import Array, Feeds, store
from sardonyx.bench.engines import Contestant

PASS = '<ir_version: 9, opset_import: ["": 18]> g (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Identity(x) }'
BOXES = '<ir_version: 9, opset_import: ["": 18]> g (float[1, 84, 8400] x) => (float[1, 84, 8400] y) { y = Identity(x) }'
GRAPH = (Contestant("sardonyx", label="graph, sardonyx"), Contestant("onnxruntime", label="graph, onnxruntime"))
OUTSIDE = tuple(
    Contestant(f"benchmarks.pipeline.outside:around_{engine}", label=f"outside, {engine}")
    for engine in ("sardonyx", "onnxruntime")
)
ROUNDS = 9


@dataclass(frozen=True)
class Whole:
    """A model with its steps, and the model alone where there is one."""

    name: str
    model: Any
    feeds: Feeds
    alone: Path | None = None

    def write(self, folder: Path) -> Files:
        files = Files(folder / f"{self.name}.onnx", folder / f"{self.name}.npz")
        onnx.save(self.model, files.model)
        store(files.feeds, **{"in": self.feeds})
        if self.alone is not None:
            shutil.copyfile(self.alone, alone(files.model))
        return files


def photograph() -> Array:
    coarse = np.random.default_rng(0).integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))


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


def wholes(models: Path | None) -> Iterator[Whole]:
    photo = {"image": photograph()}
    classifier = [pipeline.Resize(256), pipeline.CenterCrop(224), pipeline.Normalize(MEAN, STD)]
    detector = [pipeline.Letterbox(640, antialias=True), pipeline.Normalize()]
    plain = onnx.parser.parse_model(PASS)
    tail = [pipeline.YoloBoxes(), pipeline.NonMaxSuppression(IOU, SCORE, MOST)]
    yield Whole("normalize-224", pipeline.add(plain, before=classifier), photo)
    yield Whole("letterbox-640", pipeline.add(plain, before=detector), photo)
    yield Whole("suppress-8400", pipeline.add(onnx.parser.parse_model(BOXES), after=tail), {"x": detections()})
    if models is None:
        return
    path = models / "cls__squeezenet1.0-fp16.onnx"
    after = [pipeline.Flatten(), pipeline.TopK(5)]
    yield Whole("squeezenet", pipeline.add(path, before=classifier, after=after), photo, path)
    path = models / "det__yolox-nano-416.onnx"
    before = [pipeline.Letterbox(416, center=False, antialias=True)]
    after = [pipeline.YoloxBoxes(416), pipeline.NonMaxSuppression(IOU, 0.02, MOST), pipeline.ToImage()]
    yield Whole("yolox-nano", pipeline.add(path, before=before, after=after), photo, path)


def difference(files: Files, feeds: Feeds) -> float | None:
    """The largest between what the graph gives and what the steps outside give; None where one gives more."""
    session = sardonyx.InferenceSession(str(files.model))
    inside = session.run(None, feeds)[0]
    outside = np.asarray(around_sardonyx(str(files.model), 1).run(feeds)[0])
    return float(np.abs(inside.astype(np.float64) - outside).max()) if inside.shape == outside.shape else None


def row(whole: Whole, folder: Path, threads: int, seconds: float) -> list[str]:
    files = whole.write(folder)
    contestants = (*GRAPH, *(OUTSIDE if whole.alone else OUTSIDE[:1]))
    entries = measure(Case.of(whole.name), files, contestants, Settings("", threads, ROUNDS, seconds))["contestants"]
    times = [ms(entries[c.name]["median_s"]) if c.name in entries else "" for c in (*GRAPH, *OUTSIDE)]
    off = difference(files, whole.feeds)
    return [whole.name, *times, "another number of results" if off is None else f"{off:.1e}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each case")
    parser.add_argument("--markdown", type=Path, help="write the page there")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for whole in wholes(args.models):
            rows.append(row(whole, Path(folder), args.threads, args.seconds))
            print("  ".join(rows[-1]), flush=True)
    header = ("milliseconds", *(c.name for c in (*GRAPH, *OUTSIDE)), "graph and outside differ by")
    title = "Steps in the graph, and outside by Pillow and numpy"
    text = page.head(title, ("onnxruntime", "pillow", "numpy"), f"{args.threads} threads") + "\n" + table(header, rows)
    print(text)
    page.write(args.markdown, text)


if __name__ == "__main__":
    main()
