"""``diagnose``: the problems of a model in its session, each with evidence and what fixes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.bench.machine import Usage, cores, disturbances
from sardonyx.errors import InvalidArgument
from sardonyx.profile.environment import Environment, environment
from sardonyx.profile.facts import Facts
from sardonyx.profile.findings import OPPORTUNITY, PROBLEM, Finding
from sardonyx.profile.measure import generated, profiled
from sardonyx.profile.records import Profile
from sardonyx.profile.rules import calls, fusions, memory, numbers, placement, threads
from sardonyx.records import Record

if TYPE_CHECKING:
    from sardonyx.session.options import SessionOptions
    from sardonyx.session.session import InferenceSession

Rule = Callable[[Facts], Iterable[Finding]]

RULES: tuple[Rule, ...] = (
    placement.nothing_compiled,
    placement.fallback,
    placement.inside,
    placement.missing_provider,
    numbers.doubles,
    numbers.denormals,
    threads.quota,
    threads.too_many,
    threads.crowded,
    fusions.limited,
    fusions.missed,
    memory.layouts,
    memory.copies,
    memory.strided_inputs,
    memory.memory_limit,
    calls.single_rows,
    calls.python_between,
    threads.waiting,
    placement.maps,
    memory.large_outputs,
    numbers.int8,
)
"""In the order of the report."""


class Diagnosis(Record):
    """Findings, and the profile that they are of. ``str()`` is a report for people."""

    profile: Profile
    findings: tuple[Finding, ...]
    disturbances: tuple[str, ...] = ()
    """Why the times mean little: what else kept the machine busy, a sentence each."""

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.kind == PROBLEM)

    @property
    def opportunities(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.kind == OPPORTUNITY)

    def has(self, code: str) -> bool:
        return any(f.code == code for f in self.findings)

    def to_json(self) -> dict[str, Any]:
        from sardonyx.profile.text import as_json

        return {
            "findings": [as_json(f) for f in self.findings],
            "disturbances": list(self.disturbances),
            "profile": self.profile.to_json(),
        }

    def __str__(self) -> str:
        told = [f"{finding.kind}: {finding}" for finding in (*self.problems, *self.opportunities)]
        return "\n".join(told) or "no problem found"


def diagnose(
    model: str | os.PathLike[str] | bytes,
    feeds: Mapping[str, Any] | None = None,
    *,
    options: SessionOptions | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    profile: Profile | None = None,
    surroundings: Environment | None = None,
    runs: int = 20,
    trace: str | os.PathLike[str] | None = None,
    step: Callable[[str], None] = lambda what: None,
) -> Diagnosis:
    """What is wrong with a model's run, under these options and providers.

    ``profile`` is one of a program that ran the model (``read_trace``), whose calls are judged too; by default the
    model is profiled here, with ``feeds`` or random ones, and ``trace`` is a file that keeps its trace.
    ``surroundings`` are read from the system by default.
    """
    from sardonyx.session.session import InferenceSession

    disturbed: tuple[str, ...] = ()
    if profile is None:
        usage = Usage.now()
        given = feeds if feeds is not None else generated(model)
        profile, session = profiled(
            model, given, runs=runs, options=options, providers=providers, trace=trace, step=step
        )
        disturbed = disturbances(usage, Usage.now(), len(cores()))
    else:
        given = feeds or {}
        step("loading the model")
        session = InferenceSession(model, options, providers=list(providers))
        _require_same_model(profile, session)
    around = environment() if surroundings is None else surroundings
    facts = Facts(profile, session, around, providers, given, disturbed)
    return Diagnosis(profile, tuple(finding for rule in RULES for finding in rule(facts)), disturbed)


def _require_same_model(profile: Profile, session: InferenceSession) -> None:
    """A trace tells the names of inputs (onnxruntime's does not); those of another model are not this one's."""
    declared = {each.name for each in (*session.get_inputs(), *session.get_overridable_initializers())}
    told = {name for run in profile.runs for name in run.inputs}
    if unknown := sorted(told - declared):
        raise InvalidArgument(
            "the trace is of another model", where=profile.source, expected=sorted(declared), got=unknown
        )
