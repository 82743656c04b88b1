"""A quantized model beside the float model that it was made of: operators, size, error, metric and time."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sardonyx.quantization.budget.damage import Judge
from sardonyx.quantization.budget.latency import Stopwatch
from sardonyx.quantization.budget.samples import Samples
from sardonyx.records import Record

QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulNBits", "GatherBlockQuantized")


class Outcome(Record):
    """Two models on the same samples. Times are of a race in this process."""

    nbytes: tuple[int, int]
    """Of the float and of the quantized model, external data included."""
    operators: Mapping[str, tuple[int, int]]
    """Kinds of operators of which the two have different numbers."""
    samples: int
    sqnr_db: float
    """Signal to quantization noise ratio of the worst output."""
    cosine: float
    is_finite: bool
    metric: tuple[float, float] | None
    seconds: tuple[float, float]
    """Medians of a run."""
    speedup: float
    is_faster: bool
    """Whether the rounds of the race show it."""


def quantized_operators(model: str | os.PathLike[str]) -> int:
    """How many operators of a model quantize, or compute with quantized values."""
    counts = _operators(model)
    return sum(n for op, n in counts.items() if op in QUANTIZED or op.startswith("QLinear") or op.endswith("Integer"))


class Baseline:
    """The float model run on samples, for quantized models to be compared with."""

    def __init__(
        self,
        floats: str | os.PathLike[str],
        data: Iterable[Mapping[str, Any]],
        metric: Callable[[Any], float] | None = None,
    ) -> None:
        """``metric`` is a function of the outputs of all samples, as ``quantize_static`` takes it."""
        self._floats = os.fspath(floats)
        self._samples = Samples(data, Path(), "evaluation", held_nbytes=math.inf)
        self._judge = Judge(self._floats, self._samples, metric, len(self._samples))

    def compare(self, quantized: str | os.PathLike[str]) -> Outcome:
        """Run a quantized model on the samples, compare, and race both models on the first one."""
        score = self._judge(os.fspath(quantized))
        race = Stopwatch(self._samples.first(1)[0]).race({"float": self._floats, "it": os.fspath(quantized)})
        before, after = _operators(self._floats), _operators(quantized)
        changed = sorted(op for op in {*before, *after} if before[op] != after[op])
        value = self._judge.floats.metric
        return Outcome(
            nbytes=(_nbytes(self._floats), _nbytes(quantized)),
            operators={op: (before[op], after[op]) for op in changed},
            samples=len(self._samples),
            sqnr_db=score.sqnr_db,
            cosine=score.cosine,
            is_finite=score.is_finite,
            metric=None if value is None or score.metric is None else (value, score.metric),
            seconds=(race.ms("float") / 1e3, race.ms("it") / 1e3),
            speedup=race.speedup("it", "float"),
            is_faster=race.is_faster("it", "float"),
        )


def _operators(model: str | os.PathLike[str]) -> Counter[str]:
    from sardonyx.model.load import load

    return Counter(node.op_type for node in load(os.fspath(model)).graph.all_nodes() if node.op_type != "Constant")


def _nbytes(model: str | os.PathLike[str]) -> int:
    """The file with those that have its weights."""
    from sardonyx.inspection.risks import external_files
    from sardonyx.model.load import scan

    path = Path(model)
    external = external_files(scan(os.fspath(path)).parsed().proto, os.fspath(path.absolute().parent))
    return path.stat().st_size + sum(nbytes or 0 for nbytes in external.values())
