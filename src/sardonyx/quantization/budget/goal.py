"""What a quantized model may lose, and what the search for it may cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sardonyx.errors import InvalidArgument
from sardonyx.quantization.budget.damage import Score, SessionMetric

REMEDIES = ("equalization", "per-channel weights", "bias correction", "SmoothQuant")


@dataclass(frozen=True)
class Budget:
    """The largest loss of the metric, the smallest SQNR, or both; and limits of the search.

    ``samples`` of the evaluation are used for SQNR, cosine and times; the metric gets all. Without ``evaluation`` the
    calibration samples are used.
    """

    max_loss: float | None = None
    """How far the metric may fall below the float model's (rise above it, unless ``higher_is_better``)."""
    min_sqnr_db: float | None = None
    """The smallest signal to quantization noise ratio of the model's outputs, in dB."""
    higher_is_better: bool = True
    must_be_faster: bool = True
    """Whether a model that is no faster than float on this machine is refused."""
    evaluation: Any = None
    """A reader or an iterable of feeds."""
    samples: int = 32
    max_trials: int = 100
    """Models that are built and run; layers are measured in groups where there are more of them."""
    max_seconds: float = 1800.0
    """When nothing new is tried any more."""
    remedies: tuple[str, ...] = REMEDIES
    """What may be tried besides keeping layers in float."""

    @staticmethod
    def of(budget: Any, metric: Any) -> Budget:
        """A Budget, or a number: the largest loss of the metric, or the smallest SQNR where there is no metric."""
        if isinstance(budget, Budget):
            made = budget
        elif isinstance(budget, (int, float)) and not isinstance(budget, bool):
            made = Budget(max_loss=float(budget)) if metric is not None else Budget(min_sqnr_db=float(budget))
        else:
            raise InvalidArgument(
                "budget says how much accuracy may be lost",
                expected="the largest loss of the metric, the smallest SQNR in dB if there is no metric, or a Budget",
                got=repr(budget),
            )
        made._check(metric)
        return made

    def _check(self, metric: Any) -> None:
        if self.max_loss is None and self.min_sqnr_db is None:
            raise InvalidArgument("the budget has no limit", expected="max_loss or min_sqnr_db")
        if self.max_loss is not None and metric is None:
            raise InvalidArgument("max_loss needs a metric", hint="pass metric=, or a budget with min_sqnr_db")
        for name in ("max_loss", "min_sqnr_db", "max_seconds"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise InvalidArgument(f"{name} is not a finite number", got=value)
        if self.max_loss is not None and self.max_loss < 0:
            raise InvalidArgument("max_loss is negative", got=self.max_loss)
        if self.samples < 1 or self.max_trials < 8:
            raise InvalidArgument(
                "the search needs samples and trials",
                expected="samples of at least 1, max_trials of at least 8",
                got=f"{self.samples} and {self.max_trials}",
            )
        if unknown := set(self.remedies) - set(REMEDIES):
            raise InvalidArgument("no such remedy", where=", ".join(sorted(unknown)), expected=", ".join(REMEDIES))
        if metric is not None and not isinstance(metric, SessionMetric) and not callable(metric):
            raise InvalidArgument("metric is not callable", expected="metric(outputs_by_sample) -> float")

    def loss(self, floats: Score, score: Score) -> float | None:
        """How much worse a model's metric is than the float model's."""
        if floats.metric is None or score.metric is None:
            return None
        fall = floats.metric - score.metric
        return fall if self.higher_is_better else -fall

    def shortfall(self, floats: Score, score: Score) -> str | None:
        """Why a model does not meet the budget's limits of accuracy; None if it does."""
        if not score.is_finite:
            return "its outputs are not finite where the float model's are"
        loss = self.loss(floats, score)
        if self.max_loss is not None and (loss is None or not loss <= self.max_loss):
            return f"it loses {loss:.4g} of the metric, more than {self.max_loss:.4g}"
        if self.min_sqnr_db is not None and not score.sqnr_db >= self.min_sqnr_db:
            return f"its SQNR is {score.sqnr_db:.1f} dB, less than {self.min_sqnr_db:.1f} dB"
        return None

    def is_better(self, floats: Score, new: Score, old: Score) -> bool:
        """Whether one model is more accurate than another, in what the budget limits."""
        if self.max_loss is not None:
            lost, before = self.loss(floats, new), self.loss(floats, old)
            assert lost is not None and before is not None
            if lost != before and max(lost, before) > self.max_loss:
                return lost < before
        return new.sqnr_db > old.sqnr_db + 0.3

    def __str__(self) -> str:
        limits = []
        if self.max_loss is not None:
            limits.append(f"at most {self.max_loss:.4g} of the metric lost")
        if self.min_sqnr_db is not None:
            limits.append(f"SQNR of at least {self.min_sqnr_db:.1f} dB")
        if self.must_be_faster:
            limits.append("faster than float")
        return ", ".join(limits)
