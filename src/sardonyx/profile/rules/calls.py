"""How a program calls the session. Only traces of programs are judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from sardonyx.profile.facts import Facts
from sardonyx.profile.findings import Finding, Fix
from sardonyx.profile.records import RunUse

LEAST_RUNS = 16
SINGLE_SHARE = 0.9
"""Of the runs, with one row each."""
BATCH = 32
IDLE_SHARE, IDLE_S = 0.5, 2e-4
"""Of a caller's time between runs, and seconds of the median gap, above which it is a problem."""


def single_rows(facts: Facts) -> Iterator[Finding]:
    """A batch of one in a loop, for a model that takes more."""
    runs = facts.profile.runs
    open_inputs = [v.name for v in facts.graph.inputs if v.const is None and v.shape and isinstance(v.shape[0], str)]
    others = [v.name for v in facts.graph.inputs if v.const is None and v.shape and v.name not in open_inputs]
    if not facts.profile.is_own_calls or len(runs) < LEAST_RUNS or not open_inputs or others:
        return
    single = [r for r in runs if all(shape[:1] == (1,) for n, (_, shape) in r.inputs.items() if n in open_inputs)]
    if len(single) < SINGLE_SHARE * len(runs):
        return
    kinds = {v.shape[0] for v in facts.graph.inputs if v.name in open_inputs and v.shape}
    yield Finding(
        "batch-of-one",
        f"{len(single)} of {len(runs)} runs have one row, and the model takes any number",
        {"runs": len(runs), "runs_with_one_row": len(single), "seconds_a_run": median(r.seconds for r in single)},
        f"Each run reads all weights and costs a call; {BATCH} rows at once share both.",
        Fix(f"collect rows and run them together: np.concatenate(rows), {BATCH} at a time", batch=BATCH)
        if len(kinds) == 1
        else Fix("collect rows and run them together"),
    )


def python_between(facts: Facts) -> Iterator[Finding]:
    """Work in Python between runs, during which the engine has nothing to do."""
    if not facts.profile.is_own_calls:
        return
    by_thread: dict[int, list[RunUse]] = defaultdict(list)
    for run in facts.profile.runs:
        by_thread[run.thread].append(run)
    gaps, busy = list[float](), 0.0
    for runs in by_thread.values():
        if len(runs) >= LEAST_RUNS:
            gaps += [max(0.0, b.start_s - a.start_s - a.seconds) for a, b in pairwise(runs)]
            busy += sum(r.seconds for r in runs)
    if not gaps or median(gaps) < IDLE_S or sum(gaps) < IDLE_SHARE * (sum(gaps) + busy):
        return
    share = sum(gaps) / (sum(gaps) + busy)
    yield Finding(
        "python-between-runs",
        f"callers spend {100 * share:.0f} % of their time between runs",
        {"share_between_runs": share, "median_gap_s": median(gaps), "runs": len(gaps)},
        "Pre- and post-processing in Python, or waiting for data, takes longer than the model.",
        Fix("write the processing into the model (sardonyx.pipeline), or prepare inputs during runs (run_async)"),
    )
