"""What quantization costs: outputs of the float model and of another compared, and the metric of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.quantization.budget.samples import Feeds, Samples
from sardonyx.quantization.running import check_feeds, open_session

Array = Any


@dataclass(frozen=True)
class SessionMetric:
    """A metric that runs the model itself: ``function(session)`` returns a number."""

    function: Callable[[Any], float]


@dataclass(frozen=True)
class Score:
    """How a model answers. SQNR and cosine are those of the worst output; the float model's are infinite and 1."""

    sqnr_db: float = math.inf
    cosine: float = 1.0
    metric: float | None = None
    is_finite: bool = True

    @property
    def noise(self) -> float:
        """Power of the noise, as a share of the signal's; noises of layers add up nearly."""
        return 0.0 if self.sqnr_db == math.inf else 10 ** (-self.sqnr_db / 10)


class Comparison:
    """Sums over samples of one output."""

    def __init__(self) -> None:
        self.signal = self.noise = self.dot = self.other = 0.0
        self.is_finite = True

    def add(self, expected: Array, got: Array) -> None:
        expected, got = (np.asarray(a, np.float64).reshape(-1) for a in (expected, got))
        if expected.shape != got.shape:
            raise RuntimeException("a quantized model gives outputs of other shapes than the float model")
        finite = np.isfinite(expected)
        expected, got = expected[finite], got[finite]
        if not np.isfinite(got).all():
            self.is_finite = False
            return
        self.signal += float(expected @ expected)
        self.noise += float(np.square(expected - got).sum())
        self.dot += float(expected @ got)
        self.other += float(got @ got)

    @property
    def sqnr_db(self) -> float:
        if not self.is_finite:
            return -math.inf
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf

    @property
    def cosine(self) -> float:
        if not self.is_finite:
            return 0.0
        norms = math.sqrt(self.signal) * math.sqrt(self.other)
        return self.dot / norms if norms else float(self.signal == self.other)


class Judge:
    """Scores models against the float model, whose outputs for ``count`` samples are kept."""

    def __init__(self, model: Any, samples: Samples, metric: Any, count: int) -> None:
        self._samples, self._first = samples, samples.first(count)
        self._on_session = metric.function if isinstance(metric, SessionMetric) else None
        self._on_outputs: Callable[[list[Feeds]], float] | None = None if self._on_session else metric
        session = open_session(model)
        for feeds in self._first:
            check_feeds(session, feeds)
        self.names = [o.name for o in session.get_outputs()]
        self._expected, value = self._outputs(session)
        self._compared = [
            name
            for name in self.names
            if isinstance(self._expected[0][name], np.ndarray) and self._expected[0][name].dtype.kind == "f"
        ]
        if not self._compared and metric is None:
            raise InvalidArgument(
                "the model returns no tensor of floats, so that errors cannot be measured",
                where=", ".join(self.names),
                hint="pass metric=",
            )
        self.floats = Score(metric=value)

    @property
    def counts(self) -> tuple[int, int]:
        """On how many samples outputs are compared, the first ones, and how many samples there are."""
        return len(self._first), len(self._samples)

    def __call__(self, model: Any) -> Score:
        """Run a model (a path) on all samples that are needed."""
        outputs, value = self._outputs(open_session(model))
        compared = {name: Comparison() for name in self._compared}
        for expected, got in zip(self._expected, outputs, strict=True):
            for name, comparison in compared.items():
                comparison.add(expected[name], got[name])
        return Score(
            min((c.sqnr_db for c in compared.values()), default=math.inf),
            min((c.cosine for c in compared.values()), default=1.0),
            value,
            all(c.is_finite for c in compared.values()),
        )

    def _outputs(self, session: Any) -> tuple[list[Feeds], float | None]:
        """Outputs of the first samples, and the metric."""
        source = self._first if self._on_outputs is None else self._samples
        outputs = [dict(zip(self.names, session.run(self.names, feeds), strict=True)) for feeds in source]
        if self._on_outputs is not None:
            return outputs[: len(self._first)], _number(self._on_outputs(outputs))
        return outputs, None if self._on_session is None else _number(self._on_session(session))


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidArgument("the metric returned no number", got=repr(value)) from None
    if not math.isfinite(number):
        raise InvalidArgument("the metric returned a number that is not finite", got=number)
    return number
