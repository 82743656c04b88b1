"""Where the time of a model goes: each step with its time, its rate, and its share of what this machine can do.

    python benchmarks/layers.py MODEL.onnx ... [--precision highest medium] [--threads 2] [--rows 10] [--markdown FILE]

Feeds are those that lie beside a model, as benchmarks/models.py writes them or a folder of trained models has them,
else random. A step's time reaches from the end of the step before it to the end of its last thread, so that waiting
counts (but not in parts with loops, where it is what its slowest thread worked in all trips). A step's limit is the
longer of two times: its operations at the rate of a loop that only uses registers, at that precision, right before and
after the run, for clocks change; and that of its bytes. Weights that all together are more than L2 holds come from
beyond it in every run: at the rate at which a buffer as large as all of them comes into L2. Other bytes are read as
fast as a buffer of their size. A model's share is that of the sum of its limits in its time when nobody watches its
steps; beside it stands the one that it had if all bytes of a step were read as fast as a buffer of their size.

Runs go to the cores that others leave alone most (``quiet``). All times are medians of the runs before and after which
all of them were quiet; of all runs, where none was or nothing tells.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.compare.cases import stored
from benchmarks.compare.limits import limit_seconds
from benchmarks.compare.process import machine
from benchmarks.compare.report import ms, percent, table
from benchmarks.compare.rounds import WARM_RUNS
from benchmarks.compare.worker import move_threads
from benchmarks.quiet import probe_here
from benchmarks.shared import feeds_of

import sardonyx
from sardonyx.interpret.context import RunContext
from sardonyx.ir import dims
from sardonyx.providers.cpu import isa as isas
from sardonyx.providers.cpu import limits, profile
from sardonyx.providers.cpu.context import Stamp
from sardonyx.providers.cpu.steps import Ref, Step
from sardonyx.providers.cpu.table import Table
from sardonyx.providers.cpu.threads import ticks_per_second

SIZES = ("filters", "channels", "groups", "blocks", "wide", "out_y", "out_x", "kernel_y", "stride_y")
SIZES += ("batch", "rows", "columns", "m", "n", "depth")
"""Arguments of kernels that tell what a step is."""
TRIES = 5
"""Measurements of a bandwidth, of which the best counts."""
STEADY = 3
"""Runs before the one that is timed: threads are awake, caches hold what they do from run to run, and the clock, which
products at full rate lower, is that of runs."""
STAY = 10
"""Runs on the same cores, before the quietest are looked for again."""


@dataclass(frozen=True)
class Run:
    """One of those that were timed."""

    seconds: float
    """When nobody watched."""
    rows: list[Row]
    rates: dict[str, float]
    is_quiet: bool


@dataclass(frozen=True)
class Row:
    """One step of one run."""

    kernel: str
    what: str
    seconds: float
    busy_s: float
    """What a thread worked, on average."""
    flops: float
    nbytes: float
    weights: float
    """Of those bytes."""


class Watch(profile.Recorder):
    """Keeps the time stamps of a run's parts, step by step."""

    kept: list[list[Row]]

    def report(self, context: RunContext, views: Any, sizes: tuple[int, ...]) -> None:
        values = np.array(self._table.evaluate(sizes), np.float64)
        flops, nbytes = values[self._table.flops], values[self._table.traffic]
        stamps = self._stamps / ticks_per_second()
        named = dict(zip(self._table.binding.names, sizes, strict=True))
        self.kept.append(list(_rows(self._table, named, stamps, flops, nbytes)))


@contextmanager
def watched() -> Iterator[None]:
    """Have compiled parts tell us of their steps."""
    Watch.kept = []
    usual = profile.Recorder
    profile.Recorder = Watch  # type: ignore[misc]
    try:
        yield
    finally:
        profile.Recorder = usual  # type: ignore[misc]


def _rows(table: Table, sizes: dict[str, int], stamps: Any, flops: Any, nbytes: Any) -> Iterator[Row]:
    before = None
    for step, of_threads, operations, moved in zip(table.steps, stamps, flops, nbytes, strict=True):
        ran = of_threads[of_threads[:, Stamp.FIRST] > 0]
        if not len(ran):
            continue
        begun, took = ran[:, Stamp.FIRST], ran[:, Stamp.TOTAL]
        end = (begun + took).max()
        span = took.max() if table.has_loops else end - (begun.min() if before is None else before)
        before = end
        node = profile.main_node(step.nodes).op_type if step.nodes else ""
        told = [f"{name} {dims.evaluate(step.args[name], sizes)}" for name in SIZES if name in step.args]
        worked = took.sum() / len(of_threads)
        what = " ".join((step.spec.name, node, *told))
        yield Row(step.spec.name, what, span, worked, operations, moved, min(_weights(step, sizes), moved))


def _weights(step: Step, sizes: dict[str, int]) -> float:
    """Bytes of the constants that a step reads."""
    storages = {given.storage for given in step.args.values() if isinstance(given, Ref)}
    return sum(dims.evaluate(s.elements, sizes) * s.dtype.itemsize for s in storages if s.kind == "constant")


def runs_of(path: Path, precision: str, threads: int, runs: int) -> list[Run]:
    """Runs that nobody watches, each followed by one that is watched, and preceded by a few that do not count."""
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    session = sardonyx.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], precision=precision)
    beside = path.with_suffix(".npz")
    feeds = stored(beside, "in") if beside.exists() else feeds_of(session, path)
    names = [o.name for o in session.get_outputs()]
    native = session._sess
    for _ in range(WARM_RUNS):
        session.run(names, feeds)
    found: list[Run] = []
    cores = allowed = sorted(os.sched_getaffinity(0))
    try:
        for i in range(runs):
            if (probe := probe_here()) and i % STAY == 0:
                cores = probe.quietest(allowed)[:threads]
                move_threads(cores)
            before = arithmetic(threads)
            was_quiet = probe is not None and probe.are_quiet(cores)
            for _ in range(STEADY):
                session.run(names, feeds)
            start = time.perf_counter()
            session.run(names, feeds)
            seconds = time.perf_counter() - start
            with watched():
                native.engine.run(native.prepare(feeds), names, RunContext(record=lambda *_: None))
            is_quiet = was_quiet and probe is not None and probe.are_quiet(cores)
            rates = {kind: max(rate, before[kind]) for kind, rate in arithmetic(threads).items()}
            found.append(Run(seconds, [row for part in Watch.kept for row in part], rates, is_quiet))
    finally:
        if cores is not allowed:
            move_threads(allowed)
    return found


def arithmetic(threads: int) -> dict[str, float]:
    """What registers reach at this moment."""
    tiles = limits.peak_tile_flops(threads=threads)
    return {"f32_flops": limits.peak_flops(threads=threads)} | ({"bf16_flops": tiles} if tiles else {})


@cache
def reading(nbytes: int, threads: int) -> float:
    return max(limits.read_bandwidth(nbytes, threads) for _ in range(TRIES))


@cache
def fetching(nbytes: int, threads: int) -> float:
    return max(limits.fetch_bandwidth(nbytes, threads) for _ in range(TRIES))


def rounded(nbytes: float) -> int:
    """Up to a power of two."""
    return 1 << max(15, math.ceil(math.log2(max(nbytes, 1))))


def limit(row: Row, rates: dict[str, float], precision: str, threads: int, weights: float) -> tuple[float, float]:
    """The least seconds for a step's arithmetic, and for its bytes, in a model with so many of ``weights``."""
    far = row.weights if weights > isas.current().l2_nbytes * threads else 0
    near = row.nbytes - far
    reading_s = near / reading(rounded(near), threads) + (far / fetching(rounded(weights), threads) if far else 0)
    return limit_seconds(rates | {"read_nbytes": math.inf}, precision, row.flops, 0), reading_s


def share_of(runs: Sequence[Run], precision: str, threads: int, weights: float) -> float:
    """Of the time of runs, the sum of their steps' limits."""
    least = [sum(max(limit(row, run.rates, precision, threads, weights)) for row in run.rows) for run in runs]
    return median(seconds / run.seconds for run, seconds in zip(runs, least, strict=True))


def document(path: Path, precision: str, args: argparse.Namespace) -> str:
    """The tables of one model at one precision."""
    runs = runs_of(path, precision, args.threads, args.runs)
    kept = [run for run in runs if run.is_quiet] or runs
    if not kept[0].rows:
        return f"## {path.stem}, {precision}\n\nNo step of it is compiled.\n"
    weights = sum(row.weights for row in kept[0].rows)
    each = [[limit(row, run.rates, precision, args.threads, weights) for row in run.rows] for run in kept]
    share, near = (share_of(kept, precision, args.threads, held) for held in (weights, 0))
    took = median(run.seconds for run in kept)
    rows = [_median_row(step) for step in zip(*(run.rows for run in kept), strict=True)]
    limits_s = [tuple(map(median, zip(*step, strict=True))) for step in zip(*each, strict=True)]
    spent, flops = sum(r.seconds for r in rows), sum(r.flops for r in rows)
    rates = ", ".join(f"{median(r.rates[kind] for r in kept) / 1e9:.0f} {kind[:-6]}" for kind in kept[0].rates)
    head = f"{ms(took)} ms, {flops / took / 1e9:.1f} GFLOP/s where registers reach {rates}"
    head += f"; {len(rows)} steps, {ms(spent)} ms when watched; {percent(share)} of the limit"
    head += f", {percent(near)} if weights were where a buffer of a step's size is"
    if probe_here():
        head += f" ({sum(run.is_quiet for run in runs)} of {len(runs)} runs quiet)"
    kernels: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        kernels.setdefault(row.kernel, []).append(i)
    ranked = sorted(kernels.items(), key=lambda item: -sum(rows[i].seconds for i in item[1]))
    by_kernel = [[f"{len(of)} {name}", *_figures(rows, limits_s, of)] for name, of in ranked]
    longest = sorted(range(len(rows)), key=lambda i: -rows[i].seconds)[: args.rows]
    by_step = [[f"{i} {rows[i].what}", *_figures(rows, limits_s, [i])] for i in sorted(longest)]
    title = f"## {path.stem}, {precision}"
    return "\n".join((title, "", f"{head}.", "", _table(by_kernel, "steps"), "", _table(by_step, "step"), ""))


def _median_row(step: Sequence[Row]) -> Row:
    seconds, busy_s = (median(getattr(row, key) for row in step) for key in ("seconds", "busy_s"))
    return replace(step[0], seconds=seconds, busy_s=busy_s)


def _table(rows: list[list[str]], what: str) -> str:
    return table((what, "ms", "threads at work", "GFLOP/s", "GB/s", "bound by", "of the limit"), rows)


def _figures(rows: list[Row], limits_s: list[tuple[float, ...]], of: list[int]) -> list[str]:
    """What some steps come to together."""
    seconds = max(sum(rows[i].seconds for i in of), 1e-9)
    busy, flops, nbytes = (sum(getattr(rows[i], key) for i in of) for key in ("busy_s", "flops", "nbytes"))
    arithmetic_s, reading_s = (sum(limits_s[i][kind] for i in of) for kind in (0, 1))
    rates = f"{flops / seconds / 1e9:.1f}", f"{nbytes / seconds / 1e9:.1f}"
    bound = "arithmetic" if arithmetic_s > reading_s else "reading"
    return [ms(seconds), percent(busy / seconds), *rates, bound, percent(sum(max(limits_s[i]) for i in of) / seconds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--precision", nargs="+", choices=("highest", "high", "medium"), default=["highest"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--rows", type=int, help="the longest steps only, so many of them")
    parser.add_argument("--markdown", type=Path, help="write the tables there too")
    args = parser.parse_args()
    chip = f"{machine()['cpu']}, {args.threads} threads"
    text = [f"# Steps of models\n\n{chip}. Made by `python benchmarks/layers.py`.\n"]
    for path in args.models:
        for precision in args.precision:
            text.append(document(path, precision, args))
            print(text[-1], flush=True)
    if args.markdown:
        args.markdown.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
