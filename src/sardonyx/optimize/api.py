"""``sardonyx.optimize_model``: a model rewritten by the passes of a level, with a report of all rewrites.

result = sardonyx.optimize_model("model.onnx", "extended", check=True)
print(result)                   # each rewrite, and each near miss with its reason
result.save("model.opt.onnx")   # loads in onnxruntime; spelling="portable" loads wherever the opset does
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sardonyx.errors import InvalidArgument
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Model
from sardonyx.model.load import load
from sardonyx.model.save import model_to_proto, save
from sardonyx.normalize.run import lowest_opset, normalize
from sardonyx.ops import registry
from sardonyx.optimize import manager, pipelines
from sardonyx.optimize.bisect import Culprit, Suspects
from sardonyx.optimize.check import Checker
from sardonyx.optimize.report import Declined, Report
from sardonyx.optimize.shapes import fix_dimensions

if TYPE_CHECKING:
    import onnx

METADATA = "sardonyx.optimized"
"""Metadata key under which a saved model records what was done to it."""

EVERYTHING = "every pass"
SLOWEST = 5
"""Passes whose times a report tells."""
QUANTIZED = 5e-2
"""Relative tolerance of a whole quantized model; a single rewrite may move values by one step only."""

USUAL_OPSET = 17
"""Lowest opset to write for a graph that came from no file."""


class Optimized:
    """A rewritten model. ``str()`` is a report for people; ``report`` is for programs."""

    def __init__(self, model: Model, report: Report, *, level: str, spelling: str, nodes_before: int) -> None:
        self.model, self.report, self.level, self.spelling = model, report, level, spelling
        self.unchecked: list[str] = []
        """Rewrites that could not be checked, and why."""
        self._nodes_before = nodes_before

    @property
    def node_counts(self) -> tuple[int, int]:
        """Nodes of the original and of the rewritten model; those of subgraphs included."""
        return self._nodes_before, sum(1 for _ in self.model.graph.all_nodes())

    def statistics(self) -> dict[str, int]:
        """Number of nodes by operator, most frequent first; domains other than ai.onnx are named."""
        names = (f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in self.model.graph.all_nodes())
        return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))

    def to_proto(self) -> onnx.ModelProto:
        return model_to_proto(self.model)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model; weights past protobuf's limit go to a separate file."""
        save(self.model, path)

    def __str__(self) -> str:
        before, after = self.node_counts
        listed = ", ".join(f"{name} {count}" for name, count in self.statistics().items())
        lines = [f"{self.level}, {self.spelling}: {before} nodes -> {after} ({listed})"]
        sections: dict[str, Iterable[object]] = {
            "rewrites": self.report.rewrites,
            "declined": self.report.declined,
            "rolled back": self.report.rolled_back,
            "not checked": self.unchecked,
        }
        for title, entries in sections.items():
            told = [f"  {entry}" for entry in entries]
            lines += [title, *told] if told else []
        slowest = sorted(self.report.seconds.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name} {s:.4f}" for name, s in slowest[:SLOWEST])
        lines.append(f"seconds: {sum(self.report.seconds.values()):.4f}, of which {shown}")
        return "\n".join(lines)


def optimize_model(
    model: Any,
    level: str = "extended",
    *,
    spelling: str = "contrib",
    check: bool = False,
    disabled: Collection[str] = (),
    free_dims: Mapping[str, int] | None = None,
    feeds: Mapping[str, Any] | None = None,
) -> Optimized:
    """Rewrite a copy of a model: a path, bytes, a binary file, an ``onnx.ModelProto`` or an ``ir.Model``.

    ``level`` is disabled, basic, extended, layout or all. ``spelling`` selects the operators of the result: ``contrib``
    allows onnxruntime's own, ``portable`` only ONNX's. ``disabled`` names passes to leave out, by our names or
    onnxruntime's. ``free_dims`` fixes free dimensions by name. With ``check``, every rewrite is replayed on recorded
    values of one run of the original, on ``feeds`` or on generated feeds, and undone if the results differ.
    """
    order, off = order_of(level, spelling), pass_names(disabled)
    source, written, count = _loaded(model, free_dims)
    return optimize_loaded(
        source,
        order,
        off,
        level=level,
        spelling=spelling,
        check=check,
        feeds=feeds,
        written=written,
        nodes_before=count,
    )


def optimize_loaded(
    source: Model,
    order: Sequence[str],
    off: Collection[str],
    *,
    level: str,
    spelling: str,
    written: Mapping[str, int],
    nodes_before: int,
    check: bool = False,
    feeds: Mapping[str, Any] | None = None,
) -> Optimized:
    """``optimize_model`` for a normalized model and passes in any order; without a check, the model is rewritten in
    place.
    """
    unchecked: list[str] = []
    if check:
        source, report = _checked(source, order, set(off), feeds, unchecked)
    else:
        report = manager.run(source.graph, tuple(order), off)
    result = Optimized(
        finished(source, written, level=level, spelling=spelling, report=report),
        report,
        level=level,
        spelling=spelling,
        nodes_before=nodes_before,
    )
    result.unchecked = unchecked
    return result


def bisect_model(
    model: Any,
    level: str = "extended",
    *,
    spelling: str = "portable",
    disabled: Collection[str] = (),
    free_dims: Mapping[str, int] | None = None,
    feeds: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
) -> Culprit | None:
    """The pass, or combination of passes, that changes a model's results; None if there is none."""
    off = pass_names(disabled)
    order = [name for name in order_of(level, spelling) if name not in off]
    source, _, _ = _loaded(model, free_dims)
    return Suspects(source, order, feeds, tolerance).culprit()


def order_of(level: str, spelling: str) -> tuple[str, ...]:
    """The passes of a level; from extended on, those of the spelling too."""
    if level not in pipelines.LEVELS:
        raise InvalidArgument("unknown level", expected=", ".join(pipelines.LEVELS), got=repr(level))
    if spelling not in pipelines.SPELLINGS:
        raise InvalidArgument("unknown spelling", expected=", ".join(pipelines.SPELLINGS), got=repr(spelling))
    order = pipelines.LEVELS[level]
    return order if level in ("disabled", "basic") else (*order, *pipelines.SPELLINGS[spelling])


def pass_names(names: Collection[str]) -> set[str]:
    """Our names of passes, from our names or onnxruntime's."""
    if isinstance(names, str):
        raise InvalidArgument("disabled is a collection of names", got=repr(names))
    for name in names:
        if name not in manager.PASSES and name not in pipelines.ONNXRUNTIME_NAMES:
            near = difflib.get_close_matches(name, [*manager.PASSES, *pipelines.ONNXRUNTIME_NAMES], 3)
            hint = f"did you mean {' or '.join(near)}?" if near else "see sardonyx.optimize.pipelines"
            raise InvalidArgument("no pass has this name", got=repr(name), hint=hint)
    return pipelines.our_names(names)


def finished(model: Model, written: Mapping[str, int], *, level: str, spelling: str, report: Report) -> Model:
    """The model for writing: at the lowest opsets that allow its nodes, from ``written`` on, with a record of the
    rewrites.
    """
    domains = dict.fromkeys(node.domain for node in model.graph.all_nodes())
    opsets = {**dict.fromkeys(domains, 1), **model.opsets}
    for domain in opsets.keys() & {"", "ai.onnx.ml"}:
        opsets[domain] = lowest_opset(model, domain, at_least=written.get(domain, 1))
    done = {"version": version(), "level": level, "spelling": spelling, "rewrites": report.count()}
    return replace(model, opsets=opsets, metadata={**model.metadata, METADATA: json.dumps(done)})


def version() -> str:
    """Sardonyx's own version."""
    return str(sys.modules["sardonyx"].__version__)


def _loaded(model: Any, free_dims: Mapping[str, int] | None) -> tuple[Model, dict[str, int], int]:
    """A normalized copy of the model, its original opsets, and its number of nodes."""
    source = clone(model) if isinstance(model, Model) else load(model)
    written, count = dict(source.opsets), sum(1 for _ in source.graph.all_nodes())
    if isinstance(model, Model):
        written[""] = min(USUAL_OPSET, written.get("", USUAL_OPSET))  # normalization hides the original operator
    normalize(source)
    fix_dimensions(source.graph, free_dims or {}, {})
    return source, written, count


def _checked(
    source: Model, order: Sequence[str], off: set[str], feeds: Mapping[str, Any] | None, unchecked: list[str]
) -> tuple[Model, Report]:
    """Check every rewrite by itself and the whole model at the end: passes that edit nodes in place show only there."""
    refused: list[Declined] = []
    while True:
        model = clone(source)
        judge = Checker(model.graph, feeds)
        report = manager.run(model.graph, tuple(order), off, judge)
        kept = [name for name in order if name not in off]
        suspects = None if _is_random(source) else Suspects(source, kept, judge.feeds, _whole_tolerance(source))
        why = None if suspects is None else suspects.differs(model)
        if suspects is None or why is None:
            break
        found = suspects.first_at_fault(judged=True)
        guilty = EVERYTHING if found is None else suspects.order[found[0]]
        off |= set(order) if found is None else {guilty}
        refused.append(Declined(guilty, "the model", why))
    report.rolled_back += refused
    unchecked += judge.unjudged
    if suspects is None:
        unchecked.append("the model as a whole: it draws random numbers")
    return model, report


def _whole_tolerance(model: Model) -> float | None:
    """How much a whole model's results may change; None for rounding errors only.

    In a quantized network one value that is rounded to a different step changes everything after it.
    """
    return QUANTIZED if any(node.op_type == "QuantizeLinear" for node in model.graph.all_nodes()) else None


def _is_random(model: Model) -> bool:
    meanings = (registry.find(node.domain, node.op_type) for node in model.graph.all_nodes())
    return any(meaning is not None and not meaning.pure for meaning in meanings)
