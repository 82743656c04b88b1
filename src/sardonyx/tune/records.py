"""What was tried, and what came of it."""

from __future__ import annotations

from typing import Any

from sardonyx.bench.statistics import Ratio
from sardonyx.profile.diagnosis import Diagnosis
from sardonyx.profile.text import as_json, seconds_text
from sardonyx.records import Record
from sardonyx.session.config_file import Config


class Trial(Record):
    """A setting that was tried on top of those kept before."""

    change: str
    code: str
    """The finding that named it; empty for one that is tried for every model."""
    before_s: float
    """For the rows of a run, or for one row where batches are compared: the median."""
    after_s: float
    ratio: Ratio
    """How many times as fast as before."""
    is_real: bool
    """Whether the difference is more than noise."""
    error: float
    """The largest relative error of an output, next to the model as it was."""
    is_kept: bool
    reason: str

    def __str__(self) -> str:
        kept = "kept    " if self.is_kept else "left out"
        times = f"{self.times_text}; " if self.before_s else ""
        return f"{kept}  {self.change}\n          {times}{self.reason}"

    @property
    def times_text(self) -> str:
        """Before and after."""
        return f"{seconds_text(self.before_s)} -> {seconds_text(self.after_s)}, {self.ratio} times as fast"


class Tuning(Record):
    """The outcome. ``str()`` is a report for people; ``config.save(path)`` writes what was kept."""

    trials: tuple[Trial, ...]
    config: Config
    before: Diagnosis
    after: Diagnosis
    before_s: float
    """A row's median time as it was, in the comparison of all that was kept."""
    after_s: float
    ratio: Ratio
    disturbances: tuple[str, ...]
    """What else took the machine's time, a sentence each: then figures mean less."""

    @property
    def repaired(self) -> tuple[str, ...]:
        """Codes of the problems that are gone."""
        left = {f.code for f in self.after.problems}
        return tuple(dict.fromkeys(f.code for f in self.before.problems if f.code not in left))

    def to_json(self) -> dict[str, Any]:
        sides = {"before": self.before, "after": self.after}
        return {
            "trials": as_json(self.trials),
            "config": self.config.to_json(),
            "repaired": list(self.repaired),
            "before_s": self.before_s,
            "after_s": self.after_s,
            "ratio": as_json(self.ratio),
            "disturbances": list(self.disturbances),
            **{name: [as_json(f) for f in side.findings] for name, side in sides.items()},
        }

    def __str__(self) -> str:
        lines = [str(trial) for trial in self.trials] or ["nothing to try"]
        if any(trial.is_kept for trial in self.trials):
            a_row = " a row" if "batch" in self.config.calls else ""
            times = f"{seconds_text(self.before_s)} -> {seconds_text(self.after_s)}{a_row}"
            lines.append(f"all that was kept: {times}, {self.ratio} times as fast")
        if self.repaired:
            lines.append(f"repaired: {', '.join(self.repaired)}")
        lines += self.disturbances
        left = [finding for finding in self.after.problems if finding.code not in self.repaired]
        return "\n".join([*lines, *(f"left: {finding.title}; {finding.fix.text}" for finding in left)])
