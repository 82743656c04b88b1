"""The search: calibrate once, measure every layer, and keep in float what loses accuracy or time.

1. everything in integers: if that meets the budget, no remedy is needed
2. remedies, one on top of the other, each kept if it makes the model more accurate
3. each layer quantized alone, for its damage; profiles of the float and the quantized model, for its gain
4. the fewest of the most damaging layers in float with which the budget is met, by bisection
5. single layers of those back in integers, where the budget allows it; all again with SmoothQuant, if there are several
6. layers that lose time in float, where a race confirms it
7. a last race against the float model; where it is lost, other accurate models that have won one get another
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from sardonyx.errors import InvalidArgument
from sardonyx.profile.text import seconds_text
from sardonyx.quantization.budget.damage import Judge, Score
from sardonyx.quantization.budget.goal import Budget
from sardonyx.quantization.budget.latency import Stopwatch
from sardonyx.quantization.budget.layers import Layer, LayerTimes, grouped, layers_of, name_nodes
from sardonyx.quantization.budget.maker import Maker, Source, Static
from sardonyx.quantization.budget.remedies import REMEDIES, SMOOTHING, smoothing
from sardonyx.quantization.budget.report import LayerRow, RemedyRow, Report, Trial
from sardonyx.quantization.budget.samples import Samples
from sardonyx.quantization.edges import read_proto
from sardonyx.quantization.options import ExtraOptions
from sardonyx.quantization.progress import shown

GIVEN_BACK = 4
"""Layers in float that are tried in integers again."""

WHOLE_MODELS = 8
"""Trials kept for models as a whole, besides remedies and the bisection."""

RACED_AGAIN = 3
"""Accurate models that are raced once more if the one that the search ended with is no faster than float."""

NAMED = 3
"""Layers in float that a trial is named after; of more, it has their number."""

SLOWER = -0.01
"""Gain, as a share of the float model's time, below which a layer is taken to lose time."""


def search(
    model_input: Any,
    model_output: str | os.PathLike[str],
    reader: Any,
    *,
    budget: Any,
    metric: Any = None,
    static: Static,
    stopwatch: Any = None,
    calibration_cache_path: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Report:
    """Quantize within a budget. ``static`` is quantize_static, which gets the settings; ``stopwatch`` stands in for
    the clock in tests.
    """
    goal = Budget.of(budget, metric)
    cached = None if calibration_cache_path is None else Path(calibration_cache_path)
    if reader is None and (cached is None or not cached.exists() or goal.evaluation is None):
        raise InvalidArgument(
            "a budget needs data to measure errors on",
            hint="pass a calibration_data_reader, or a calibration_cache_path that exists and Budget(evaluation=...)",
        )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sardonyx-", ignore_cleanup_errors=True)))
        samples = None if reader is None else Samples(reader, folder, "calibration")
        evaluation = samples if goal.evaluation is None else Samples(goal.evaluation, folder, "evaluation")
        assert evaluation is not None
        settings["extra_options"] = {**(settings.get("extra_options") or {}), "AccuracyGuard": 0}
        settings, is_smoothed = _without_smoothing(settings)
        maker = Maker(static, folder, samples, settings)
        model = read_proto(model_input)
        name_nodes(model)
        source = floats = maker.source("float", model, None if is_smoothed else cached)
        if is_smoothed:
            made = smoothing(floats, maker)
            if isinstance(made, str):
                raise InvalidArgument("SmoothQuant does not apply", where="extra_options", hint=made)
            source = made
        judge = Judge(str(floats.path), evaluation, metric, goal.samples)
        watch = stopwatch or Stopwatch(evaluation.first(1)[0])
        return _Search(goal, maker, judge, watch, source, floats.path, os.fspath(model_output)).run()


def _without_smoothing(settings: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Settings for models that are smoothed once, before they are calibrated; and whether they are to be."""
    given = settings["extra_options"]
    if not ExtraOptions.of(given).smooth_quant:
        return settings, False
    return {**settings, "extra_options": {k: v for k, v in given.items() if k != "SmoothQuant"}}, True


class _Search:
    def __init__(
        self, goal: Budget, maker: Maker, judge: Judge, watch: Any, source: Source, floats: Path, output: str
    ) -> None:
        self._goal, self._maker, self._judge, self._watch = goal, maker, judge, watch
        self._source, self._output = source, output
        self._begun, self._count = time.monotonic(), 0
        self._floats = judge.floats
        self._float_times: list[float] = []
        self._float_path = floats
        self._tried: dict[str, tuple[Source, frozenset[Layer]]] = {}
        """What was quantized, and which layers were kept in float, by the label of the trial."""
        trial = self._trial("float", self._floats, floats, 0)
        self._report = Report(str(goal), output, trial, self._floats, samples=judge.counts)

    def run(self) -> Report:
        report, _goal = self._report, self._goal
        plain = self._maker.make(self._source, plain=True)
        layers = layers_of(
            read_proto(str(self._source.path)), read_proto(str(plain)), frozenset(self._source.real_nodes)
        )
        if not layers:
            report.statement = "Nothing is quantized: the model has no node of the chosen operators and names."
            return report
        _path, score, _trial = self._whole(self._label(self._source, ()), self._source, ())
        source, score = self._with_remedies(self._source, score, [name for name in REMEDIES if name != SMOOTHING])
        if source is not self._source:
            plain = self._maker.make(source, plain=True)
        layers = grouped(layers, self._layer_trials(len(layers)))
        report.layers = [LayerRow(layer.name, layer.operator, layer.nodes) for layer in layers]
        self._damage(source, list(zip(report.layers, layers, strict=True)))
        self._gain(layers, plain)
        kept = self._for_accuracy(source, layers, score)
        source, kept = self._with_smoothing(source, score, layers, kept)
        if kept is None:
            self._explain(layers, frozenset(), frozenset())
            self._none_accurate(len(layers))
            return self._ended()
        losing = self._for_time(source, layers, kept)
        chosen = self._choose(source, layers, kept | losing)
        self._explain(layers, chosen & kept, chosen - kept)
        return self._ended()

    # -- trials

    def _whole(self, label: str, source: Source, kept: Collection[Layer], against: Path | None = None) -> Any:
        """Build, score and race a model; returns its path, score and trial."""
        path = self._maker.make(source, never=_nodes(kept))
        score = self._judge(str(path))
        trial = self._trial(label, score, path, len(kept))
        self._tried[label] = (source, frozenset(kept))
        contestants = {"float": str(self._float_path), "it": str(path)}
        if against is not None:
            contestants["other"] = str(against)
        self._race = self._watch.race(contestants)
        self._float_times.append(self._race.ms("float"))
        trial.speedup = self._race.speedup("it", "float")
        self._report.trials = [each for each in self._report.trials if each.label != label] + [trial]
        self._settle_times()
        self._count += 1
        return path, score, trial

    def _trial(self, label: str, score: Score, path: Path, in_float: int) -> Trial:
        return Trial(
            label,
            in_float,
            score.sqnr_db,
            score.cosine,
            self._goal.loss(self._floats, score),
            score.metric,
            sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*")),
            self._meets(score),
        )

    def _settle_times(self) -> None:
        """Times of trials as shares of one time of the float model, so that those of different races compare."""
        self._report.float_trial.latency_ms, self._report.float_trial.speedup = self._float_ms, 1.0
        for trial in self._report.trials:
            assert trial.speedup is not None
            trial.latency_ms = self._float_ms / trial.speedup

    @property
    def _float_ms(self) -> float:
        return statistics.median(self._float_times)

    def _meets(self, score: Score) -> bool:
        return self._goal.shortfall(self._floats, score) is None

    @property
    def _has_time(self) -> bool:
        return time.monotonic() - self._begun < self._goal.max_seconds

    def _layer_trials(self, layers: int) -> int:
        others = WHOLE_MODELS + len(self._goal.remedies) + math.ceil(math.log2(layers + 1))
        return max(4, self._goal.max_trials - others)

    # -- steps

    def _with_remedies(self, source: Source, score: Score, names: Sequence[str]) -> tuple[Source, Score]:
        for name in names:
            if name not in self._goal.remedies:
                continue
            if self._meets(score):
                self._report.remedies.append(RemedyRow(name, False, "not needed: the budget is met without it"))
                continue
            if not self._has_time:
                self._report.remedies.append(RemedyRow(name, False, "no time was left"))
                continue
            changed = REMEDIES[name](source, self._maker)
            if isinstance(changed, str):
                self._report.remedies.append(RemedyRow(name, False, changed))
                continue
            _, new, _ = self._whole(self._label(changed, ()), changed, ())
            better = self._goal.is_better(self._floats, new, score)
            said = f"SQNR {_db(score)} -> {_db(new)}"
            if new.metric is not None and score.metric is not None:
                said += f", metric {score.metric:.4g} -> {new.metric:.4g}"
            row = RemedyRow(name, better, said, (score.sqnr_db, new.sqnr_db))
            self._report.remedies.append(row)
            if better:
                source, score = changed, new
        return source, score

    def _with_smoothing(
        self, source: Source, score: Score, layers: list[Layer], kept: frozenset[Layer] | None
    ) -> tuple[Source, frozenset[Layer] | None]:
        """SmoothQuant changes all products to save single layers: it is tried where more than one of them would have to
        stay in float otherwise, and applied if fewer have to then.
        """
        report = self._report
        if SMOOTHING in source.remedies:
            report.remedies.append(RemedyRow(SMOOTHING, True, "asked for by extra_options"))
            return source, kept
        if SMOOTHING not in self._goal.remedies:
            return source, kept
        if kept is not None and len(kept) <= 1:
            why = "with one layer in float" if kept else "without it"
            report.remedies.append(RemedyRow(SMOOTHING, False, f"not needed: the budget is met {why}"))
            return source, kept
        smoothed, new = self._with_remedies(source, score, (SMOOTHING,))
        if smoothed is source:
            return source, kept
        before = report.layers
        report.layers = [replace(row) for row in before]
        rest = max(0, self._goal.max_trials - self._count - WHOLE_MODELS - math.ceil(math.log2(len(layers) + 1)))
        measured = [(report.layers[i], layers[i]) for i in self._by_damage() if kept is None or layers[i] in kept]
        self._damage(smoothed, measured[:rest])
        fewer = self._for_accuracy(smoothed, layers, new)
        if fewer is not None and (kept is None or len(fewer) < len(kept)):
            return smoothed, fewer
        report.layers, row = before, report.remedies[-1]
        row.applied, row.reason = False, f"{row.reason}, but no fewer layers have to stay in float"
        return source, kept

    def _damage(self, source: Source, measured: Sequence[tuple[LayerRow, Layer]]) -> None:
        for row, layer in shown(measured, "layers quantized alone", len(measured)):
            if not self._has_time:
                self._report.notes.append(
                    f"after {self._goal.max_seconds:.0f} s the damage of layers was no longer measured: "
                    f"{row.name} and those after it are taken for harmless"
                )
                return
            score = self._judge(str(self._maker.make(source, only=layer.nodes)))
            self._count += 1
            row.sqnr_db, row.cosine = score.sqnr_db, score.cosine
            row.loss = self._goal.loss(self._floats, score)

    def _gain(self, layers: list[Layer], plain: Path) -> None:
        times = [
            LayerTimes(layers, read_proto(str(path)))(self._watch.profile(str(path)))
            for path in (self._float_path, plain)
        ]
        for row in self._report.layers:
            before, after = (each.get(row.name) for each in times)
            row.gain_ms = None if before is None or after is None else before - after

    def _for_accuracy(self, source: Source, layers: list[Layer], score: Score) -> frozenset[Layer] | None:
        """The layers to keep in float for the budget's accuracy; None if no choice meets it."""
        if self._meets(score):
            return frozenset()
        order = [layers[i] for i in self._by_damage()]
        too_few, enough = 0, len(order)
        probe = self._predicted()
        while enough - too_few > 1 and self._has_time:
            middle = probe if too_few < probe < enough else (too_few + enough) // 2
            _, found, _ = self._whole(self._label(source, order[:middle]), source, order[:middle])
            if self._meets(found):
                enough, probe = middle, middle - 1
            else:
                too_few, probe = middle, 0
        if enough == len(order):
            return None
        kept = order[:enough]
        rows = {row.name: row for row in self._report.layers}
        for layer in sorted(kept[:-1], key=lambda each: -(rows[each.name].gain_ms or 0.0))[:GIVEN_BACK]:
            fewer = [each for each in kept if each is not layer]
            if not self._has_time:
                break
            _, found, _ = self._whole(self._label(source, fewer), source, fewer)
            if self._meets(found):
                kept = fewer
        return frozenset(kept)

    def _by_damage(self) -> list[int]:
        """Indices of layers, the most damaging first: by noise and loss of the metric, each as a share of all."""
        rows = self._report.layers
        noise = [_noise(row.sqnr_db) for row in rows]
        loss = [max(row.loss or 0.0, 0.0) for row in rows]
        share = [a / (sum(noise) or 1.0) + b / (sum(loss) or 1.0) for a, b in zip(noise, loss, strict=True)]
        return sorted(range(len(rows)), key=lambda i: -share[i])

    def _predicted(self) -> int:
        """How many layers to keep in float if noises add up, where the budget limits the noise; 0 where it does not."""
        if self._goal.min_sqnr_db is None:
            return 0
        noise = [_noise(self._report.layers[i].sqnr_db) for i in self._by_damage()]
        limit = 10 ** (-self._goal.min_sqnr_db / 10)
        return next((k for k in range(len(noise)) if sum(noise[k:]) <= limit), len(noise))

    def _for_time(self, source: Source, layers: list[Layer], kept: frozenset[Layer]) -> frozenset[Layer]:
        """Further layers that a race shows to be faster in float."""
        best = self._maker.make(source, never=_nodes(kept))
        limit = SLOWER * self._float_ms
        gains = {row.name: row.gain_ms for row in self._report.layers}
        slower = [layer for layer in layers if (gains[layer.name] or 0.0) < limit]
        light = [layer for layer in layers if not layer.is_heavy]
        losing: frozenset[Layer] = frozenset()
        for group in (slower, light):
            more = frozenset(group) - kept - losing
            if not more or len(kept | losing | more) == len(layers) or not self._has_time:
                continue
            tried = kept | losing | more
            path, score, _ = self._whole(self._label(source, tried), source, tried, against=best)
            if self._meets(score) and self._race.is_faster("it", "other"):
                losing, best = losing | more, path
        return losing

    def _choose(self, source: Source, layers: list[Layer], kept: frozenset[Layer]) -> frozenset[Layer]:
        """Race the best models once more, write the first that is what the budget asks for, and say so. Returns the
        layers that it keeps in float.
        """
        report, found = self._report, None
        for candidate in self._candidates(source, kept):
            _path, score, trial = self._whole(self._label(source, candidate), source, candidate)
            assert trial.speedup is not None
            is_faster = self._race.is_faster("it", "float")
            if is_faster or found is None or trial.speedup > found[0].speedup:
                found = trial, score, candidate, is_faster
            if is_faster or not self._goal.must_be_faster:
                break
        assert found is not None
        trial, score, kept, is_faster = found
        if not is_faster:
            self._compare_gains(kept)
        in_float = f"{len(kept)} of {len(layers)} layers in float" if kept else "all layers in int8"
        times = f"{trial.speedup:.2f} times as fast as float ({_time(self._float_ms)} -> {_time(trial.latency_ms)})"
        if not is_faster and self._goal.must_be_faster:
            assert trial.speedup is not None
            why, but = "int8 does not pay on this machine", ""
            if trial.speedup > 1.0:
                why, but = "no race shows int8 to be faster", " in the middle of its rounds, but they disagree too much"
            report.statement = (
                f"No model meets the budget: {why}. The best accurate one, with {in_float}, is {times}{but}. "
                "Nothing was written; run the float model, or pass Budget(must_be_faster=False)."
            )
            return kept
        self._maker.make(source, never=_nodes(kept), path=Path(self._output))
        report.chosen = trial
        accuracy = f"SQNR {_db(score)}"
        if trial.loss is not None:
            accuracy += f", {trial.loss:.4g} of the metric lost ({self._floats.metric:.4g} -> {score.metric:.4g})"
        share = trial.nbytes / report.float_trial.nbytes
        applied = f"; {' and '.join(source.remedies)}" if source.remedies else ""
        report.statement = f"The budget is met: {in_float}{applied}; {accuracy}; {times}; {share:.2f} of its size."
        if not is_faster:
            assert trial.speedup is not None
            told = "It is slower than" if trial.speedup < 1.0 else "No race shows it to be faster than"
            report.statement += (
                f" {told} the float model on this machine; it was written because the budget does not ask for speed."
            )
        return kept

    def _compare_gains(self, kept: frozenset[Layer]) -> None:
        """Say so where the profiles of layers promise a gain that the race of whole models does not show."""
        in_float = {layer.name for layer in kept}
        gain_ms = sum(row.gain_ms or 0.0 for row in self._report.layers if row.name not in in_float)
        if gain_ms > -SLOWER * self._float_ms:
            self._report.notes.append(
                f"by their profiles the layers in int8 save {_time(gain_ms)}, which the races of whole models do not "
                "show: the races decide"
            )

    def _candidates(self, source: Source, best: frozenset[Layer]) -> list[frozenset[Layer]]:
        """What the search ended with, then other accurate models that won a race against the float model."""
        others = sorted(
            (trial for trial in self._report.trials if trial.meets and (trial.speedup or 0.0) > 1.0),
            key=lambda trial: -(trial.speedup or 0.0),
        )
        tried = [kept for of, kept in (self._tried[trial.label] for trial in others) if of is source]
        return [best, *[kept for kept in tried if kept != best][:RACED_AGAIN]]

    def _explain(self, layers: list[Layer], kept: frozenset[Layer], losing: frozenset[Layer]) -> None:
        """Each layer's decision and reason."""
        for row, layer in zip(self._report.layers, layers, strict=True):
            if layer in kept:
                row.decision, row.reason = "float", self._why_float(row)
            elif layer in losing:
                slower = "" if row.gain_ms is None or row.gain_ms >= 0 else f" ({_time(-row.gain_ms)} of its own)"
                row.decision, row.reason = "float", f"the model is faster with it in float{slower}"
            elif row.gain_ms is None:
                row.reason = "computed in one step with its neighbours"
            elif row.gain_ms > -SLOWER * self._float_ms:
                row.reason = f"saves {_time(row.gain_ms)}"
            elif row.gain_ms >= SLOWER * self._float_ms:
                row.reason = "as fast in float"
            else:
                row.reason = f"{_time(-row.gain_ms)} slower, but the model is no faster with it in float"

    def _why_float(self, row: LayerRow) -> str:
        said = "its noise and that of the others exceed the budget"
        if row.sqnr_db is not None:
            said = f"quantized alone it lowers the SQNR to {row.sqnr_db:.1f} dB"
        if row.loss is not None and row.loss > 0:
            said += f" and loses {row.loss:.4g} of the metric"
        return said

    def _none_accurate(self, layers: int) -> None:
        raced = [t for t in self._report.trials if math.isfinite(t.sqnr_db)]
        best = max(raced, key=lambda t: t.sqnr_db if t.loss is None else -t.loss, default=None)
        said = (
            "" if best is None else f" The most accurate one, with {best.layers_in_float} of {layers} layers in float, "
        )
        if best is not None:
            said += f"has an SQNR of {best.sqnr_db:.1f} dB" + (
                "." if best.loss is None else f" and loses {best.loss:.4g} of the metric."
            )
        self._report.statement = (
            f"No model meets the budget: none with a layer in int8 is accurate enough ({self._goal}).{said} "
            "Nothing was written."
        )

    def _label(self, source: Source, kept: Collection[Layer]) -> str:
        kind = f"int8, {' and '.join(source.remedies)}" if source.remedies else "int8"
        if not kept:
            return kind
        named = ", ".join(layer.name for layer in kept) if len(kept) <= NAMED else f"{len(kept)} layers"
        return f"{kind}, {named} in float"

    def _ended(self) -> Report:
        took = time.monotonic() - self._begun
        self._report.notes.append(
            f"{self._count} models were built and run in {took:.0f} s; at most {self._goal.max_trials} are"
        )
        if isinstance(self._watch, Stopwatch) and (reasons := self._watch.disturbances()):
            told = " ".join(reasons).removesuffix(".")
            self._report.notes.append(f"the machine was busy, so that times and gains mean little: {told}")
        return self._report


def _nodes(layers: Collection[Layer]) -> list[str]:
    return [node for layer in layers for node in layer.nodes]


def _time(ms: float) -> str:
    return seconds_text(ms / 1e3)


def _noise(sqnr_db: float | None) -> float:
    if sqnr_db is None or sqnr_db == math.inf:
        return 0.0
    return 1e12 if sqnr_db == -math.inf else 10 ** (-sqnr_db / 10)


def _db(score: Score) -> str:
    return "exact" if score.sqnr_db == math.inf else f"{score.sqnr_db:.1f} dB"
