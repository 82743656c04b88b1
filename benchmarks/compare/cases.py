"""What is timed: a model's file, and feeds of one size for it.

A folder of models holds MODEL.onnx, and for each case CASE.npz (feeds as `in:NAME`, what torch or another engine
answers to them as `told:NAME`), both written by benchmarks/zoo, and CASE.f64.npz (the float64 reference; see
reference.py).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sardonyx.bench.arrays import Array, Feeds

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("SARDONYX_BENCH_CACHE", Path.home() / ".cache" / "sardonyx-bench"))
FOLDER = CACHE / "compare"


@dataclass(frozen=True)
class Files:
    """Where a case lies. Without a reference it is timed alone, and has neither errors nor a limit."""

    model: Path
    feeds: Path
    reference: Path | None = None


@dataclass(frozen=True)
class Case:
    """One row of the tables. A case with steps feeds one token at a time and hands the cache on."""

    name: str
    model: str
    batch: int = 1
    length: int = 0
    steps: int = 0

    @classmethod
    def of(cls, model: str) -> Case:
        """The one case of a model that takes feeds of one size."""
        return cls(model, model)

    def onnx(self, folder: Path) -> Path:
        return folder / f"{self.model}.onnx"

    def feeds(self, folder: Path) -> Path:
        return folder / f"{self.name}.npz"

    def reference(self, folder: Path) -> Path:
        return folder / f"{self.name}.f64.npz"

    def files(self, folder: Path) -> Files:
        return Files(self.onnx(folder), self.feeds(folder), self.reference(folder))


CASES = (
    Case("bert-1x128", "bert", 1, 128),
    Case("vit-1", "vit"),
    Case("gpt2-1x256", "gpt2", 1, 256),
    Case("minilm-1x128", "minilm", 1, 128),
    Case("gpt2-steps", "gpt2-past", steps=64),
    Case("bert-8x128", "bert", 8, 128),
    Case("whisper-encoder-1", "whisper-encoder"),
    Case("t5-encoder-1x128", "t5-encoder", 1, 128),
    Case("llama-steps", "llama-past", steps=64),
    Case("mlp-1", "mlp"),
    Case("mlp-64", "mlp", 64),
    Case("tagger-1x40", "tagger", 1, 40),
    Case("tagger-8x40", "tagger", 8, 40),
    Case("vocoder-1x64", "vocoder", 1, 64),
    Case("recognizer-1x320", "recognizer", 1, 320),
    *map(Case.of, ("resnet50", "mobilenetv2", "efficientnet-b0", "convnext-tiny", "yolov8n", "shufflenetv2")),
    *map(Case.of, ("densenet121", "squeezenet", "inception-v2", "vgg16", "inception-v1", "shufflenet")),
    *map(Case.of, ("alexnet", "zfnet512", "vgg19", "resnet50-caffe2")),
    *map(Case.of, ("fading-convnet", "fading-transformer")),
)
"""In the order in which a short budget is spent."""


def cases_in(folder: Path) -> tuple[Case, ...]:
    """All of the above, and the models that a folder holds beside those, each with one case of its name."""
    known = {case.model for case in CASES}
    others = sorted(path.stem for path in folder.glob("*.onnx") if path.stem not in known)
    return (*CASES, *(Case.of(name) for name in others if (folder / f"{name}.npz").exists()))


def step_feeds(ids: Array, step: int, cache: Feeds) -> Feeds:
    """What a decoder takes to read token `step` of `ids` after those before it, whose keys and values are `cache`."""
    return {
        "input_ids": ids[:, step : step + 1],
        "attention_mask": np.ones((len(ids), step + 1), np.int64),
        "position_ids": np.full((len(ids), 1), step, np.int64),
        **cache,
    }


def cache_of(outputs: Feeds) -> Feeds:
    """The cache that a step gave, under the names by which the next one takes it."""
    return {n.replace("present.", "past_key_values.", 1): v for n, v in outputs.items() if n.startswith("present.")}
