"""What is tried: settings that findings name, and some that are worth a try for every model."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.profile.diagnosis import Diagnosis
from sardonyx.profile.environment import Environment
from sardonyx.profile.findings import Fix
from sardonyx.records import Record
from sardonyx.session.cpu_options import SPINNING
from sardonyx.tune.setups import Setup

COUNTED = frozenset(("too-many-threads", "quota", "level", "disabled-passes"))
"""Findings whose settings are kept where they are no slower: the engine already makes good what they cost, or they cost
nothing for these inputs."""
BATCHES = (8, 32, 128)


class Candidate(Record):
    """A setting to try."""

    change: str
    setup: Setup
    code: str = ""
    """The finding that names it."""
    is_precision: bool = False
    """Whether it is allowed another error."""

    @property
    def is_kept_if_equal(self) -> bool:
        return self.code in COUNTED


def candidates(diagnosis: Diagnosis, around: Environment, precisions: tuple[str, ...]) -> Iterator[Candidate]:
    """In the order in which they are tried: what changes the graph, then calls, then threads, whose best number depends
    on the work that is left."""
    order = {"level": 0, "disabled-passes": 0, "float64": 1, "copy": 2, "strided-inputs": 2}
    found = sorted(diagnosis.findings, key=lambda f: order.get(f.code, 3))
    fixes = [(f.code, f.fix) for f in found if f.fix.is_setting]
    for code, fix in fixes:
        if code in order:
            yield _named(code, fix)
    for precision in precisions:
        yield Candidate(f"precision = {precision}", Setup({"precision": precision}), is_precision=True)
    for code, fix in fixes:
        if fix.batch:
            for count in sorted({*BATCHES, fix.batch}):
                yield Candidate(f"{count} rows in a run", Setup(batch=count, is_batched=True), code)
    yield from _threads(diagnosis, around, [_named(c, f) for c, f in fixes if "intra_op_num_threads" in f.options])


def _threads(diagnosis: Diagnosis, around: Environment, named: list[Candidate]) -> Iterator[Candidate]:
    """Numbers of threads, first those that findings name, and whether threads spin where they wait."""
    tried = {int(diagnosis.profile.settings.get("threads", 0))}
    for candidate in named:
        count = candidate.setup.options["intra_op_num_threads"]
        if count not in tried or candidate.is_kept_if_equal:
            yield candidate
        tried.add(count)
    for count in sorted({1, max(1, around.cores // 2), around.cores} - tried):
        yield Candidate(f"intra_op_num_threads = {count}", Setup({"intra_op_num_threads": count}))
    if any(k.threads > 1 for k in diagnosis.profile.kernels):
        yield Candidate(f"{SPINNING} = 0", Setup(entries={SPINNING: "0"}))


def _named(code: str, fix: Fix) -> Candidate:
    """What a finding names."""
    told = [f"{name} = {value}" for name, value in (*fix.options.items(), *fix.config.items())]
    told += [f"bind_state({given!r}, {made!r})" for given, made, _ in fix.states]
    told += ["contiguous inputs"] * fix.is_contiguous
    setup = Setup(fix.options, fix.config, states=fix.states, is_contiguous=fix.is_contiguous)
    return Candidate(", ".join(told), setup, code)
