"""Where the time of a model goes: each step with its time, its rate, and its share of what this machine can do.

    python -m benchmarks.layers MODEL.onnx ... [--precision highest medium] [--threads 2] [--rows 10] [--markdown FILE]

Feeds are those that lie beside a model, as benchmarks/zoo writes them or a folder of trained models has them, else
random. A step's time reaches from the end of the step before it to the end of its last thread, so that waiting
counts (but not in parts with loops, where it is what its slowest thread worked in all trips). A step's limit is the
longer of two times: its operations at the rate of a loop that only uses registers, at that precision; and that of its
bytes. Weights that all together are more than L2 holds come from beyond it in every run: at the rate at which a buffer
as large as all of them comes into L2. Other bytes are read as fast as a buffer of their size.

A model's share is told in pairs: a run that nobody watches, and rates right after it, each of the burst in the middle
of several that together take about as long as the run. Clocks change, and so does what neighbours leave of a core and
of L3: that hits both. The share is the median over pairs of the sum of steps' limits in the run's time, and it comes
with its interval, and with the median over the tenth of pairs whose limits are the lowest, when the machine could do
most. Times of steps are medians of runs that are watched, one in each pair. A round of pairs is on the cores that
others leave alone most at its beginning (``quiet``).
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import sardonyx
from benchmarks import page
from benchmarks.compare.report import ms, percent, table
from benchmarks.compare.rounds import WARM_RUNS
from benchmarks.quiet import probe_here, seconds_of
from benchmarks.zoo.trained import feeds_of
from sardonyx.bench.arrays import Feeds
from sardonyx.bench.limits import limit_seconds
from sardonyx.bench.statistics import paired_ratio
from sardonyx.bench.worker import move_threads
from sardonyx.interpret.context import RunContext
from sardonyx.ir import dims
from sardonyx.providers.cpu.codegen import machine_limits
from sardonyx.providers.cpu.codegen.machine_limits import MIDDLE
from sardonyx.providers.cpu.language.context import Stamp
from sardonyx.providers.cpu.machine import isa as isas
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.runtime import profile
from sardonyx.providers.cpu.runtime.step_table import StepTable
from sardonyx.providers.cpu.runtime.team import ticks_per_second

SIZES = ("filters", "channels", "groups", "blocks", "wide", "out_y", "out_x", "kernel_y", "stride_y")
SIZES += ("batch", "rows", "columns", "m", "n", "depth")
"""Arguments of kernels that tell what a step is."""
PASSES = 5
"""Over memory as large as all weights."""
FAR = "far_nbytes"
"""The rate of these."""
STEADY = 3
"""Runs after rates were measured: L3 holds weights again, and the clock, which products at full rate lower, is that of
runs."""
PAIRS = 10
"""Of a round."""


@dataclass(frozen=True)
class Pair:
    """A run, and what the machine did next to it."""

    seconds: float
    """When nobody watched."""
    rows: list[Row]
    """Of a run that was watched."""
    rates: dict[str, float]


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

    def report(self, context: RunContext, views: Any, sizes: tuple[int, ...], team: Any) -> None:
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


def _rows(table: StepTable, sizes: dict[str, int], stamps: Any, flops: Any, nbytes: Any) -> Iterator[Row]:
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


def session_of(path: Path, precision: str, threads: int) -> sardonyx.InferenceSession:
    """A session whose parts are compiled here, not taken from a cache of compiled models."""
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    # That of a file may be kept from a start before, and built anew when it is watched: weights would be there twice.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    return sardonyx.InferenceSession(
        path.read_bytes(), options, providers=["CPUExecutionProvider"], precision=precision
    )


def watched_run(session: sardonyx.InferenceSession, feeds: Feeds) -> list[Row]:
    """The steps of one run."""
    native, names = session._sess, [o.name for o in session.get_outputs()]
    with watched():
        native.engine.run(native.prepare(feeds), names, RunContext(record=lambda *_: None))
    return [row for part in Watch.kept for row in part]


def median_rows(path: Path, threads: int, precision: str = "highest") -> tuple[list[Row], dict[str, int]]:
    """The steps of a warm session, with median times, and how many nodes of which operators run on numpy."""
    session, feeds = session_of(path, precision, threads), feeds_of(path)
    for _ in range(WARM_RUNS):
        session.run(None, feeds)
    runs = [watched_run(session, feeds) for _ in range(PAIRS)]
    alike = [rows for rows in runs if len(rows) == len(runs[-1])]
    rows = [_median_row(step) for step in zip(*alike, strict=True)]
    return rows, session.explain().counts().get("reference", {})


def pairs_of(path: Path, precision: str, threads: int, rounds: int) -> list[Pair]:
    """A run that is timed comes after some that are not, and one that is watched behind it."""
    session, feeds, probe = session_of(path, precision, threads), feeds_of(path), probe_here()
    names = [o.name for o in session.get_outputs()]
    for _ in range(WARM_RUNS):
        session.run(names, feeds)

    def watch() -> list[Row]:
        return watched_run(session, feeds)

    def pair() -> Pair:
        for _ in range(STEADY):
            session.run(names, feeds)
        seconds = seconds_of(lambda: session.run(names, feeds))
        return Pair(seconds, watch(), can.do())

    found, can = list[Pair](), Machine.of(watch(), threads)
    allowed = sorted(os.sched_getaffinity(0))
    try:
        for _ in range(rounds):
            if probe:
                move_threads(probe.team(allowed, threads))
            found += [pair() for _ in range(PAIRS)]
    finally:
        if probe:
            move_threads(allowed)
    return found


@dataclass(frozen=True)
class Machine:
    """What it can do at the moment, for a model."""

    threads: int
    far: Any
    """Memory as large as all weights, where L2 does not hold them; else None."""
    sizes: tuple[int, ...]
    """Of buffers that are read."""

    @staticmethod
    def of(rows: Sequence[Row], threads: int) -> Machine:
        weights = sum(row.weights for row in rows)
        is_far = weights > isas.current().l2_nbytes * threads
        sizes = {rounded(row.nbytes - is_far * row.weights) for row in rows}
        return Machine(threads, np.ones(int(weights) // 8, np.int64) if is_far else None, tuple(sorted(sizes)))

    def do(self) -> dict[str, float]:
        """Rates, by names."""
        rates = {near(size): machine_limits.read_bandwidth(size, self.threads, pick=MIDDLE) for size in self.sizes}
        rates["f32_flops"] = machine_limits.peak_flops(threads=self.threads, pick=MIDDLE)
        if tiles := machine_limits.peak_tile_flops(threads=self.threads, pick=MIDDLE):
            rates["bf16_flops"] = tiles
        if self.far is not None:
            rates[FAR] = machine_limits.fetch_bandwidth(self.far, self.threads, bursts=PASSES, pick=MIDDLE)
        return rates


def near(size: int) -> str:
    """The rate of buffers of a size."""
    return f"near_{size}"


def rounded(nbytes: float) -> int:
    """Up to a power of two."""
    return 1 << max(15, math.ceil(math.log2(max(nbytes, 1))))


def limit(row: Row, rates: dict[str, float], precision: str) -> tuple[float, float]:
    """The least seconds for a step's arithmetic, and for its bytes."""
    far = row.weights if FAR in rates else 0
    others = row.nbytes - far
    reading_s = others / rates[near(rounded(others))] + (far / rates[FAR] if far else 0)
    return limit_seconds(rates | {"read_nbytes": math.inf}, precision, row.flops, 0), reading_s


def limit_s(pair: Pair, precision: str) -> float:
    """The least seconds for all steps."""
    return sum(max(limit(row, pair.rates, precision)) for row in pair.rows)


def document(path: Path, precision: str, args: argparse.Namespace) -> str:
    """The tables of one model at one precision."""
    pairs = pairs_of(path, precision, args.threads, args.rounds)
    if not pairs[0].rows:
        return f"## {path.stem}, {precision}\n\nNo step of it is compiled.\n"
    least, taken = [limit_s(pair, precision) for pair in pairs], [pair.seconds for pair in pairs]
    share, tenth = paired_ratio(least, taken), -(-len(pairs) // 10)
    at_most = median(bound / seconds for bound, seconds in sorted(zip(least, taken, strict=True))[:tenth])
    each = [[limit(row, pair.rates, precision) for row in pair.rows] for pair in pairs]
    rows = [_median_row(step) for step in zip(*(pair.rows for pair in pairs), strict=True)]
    limits_s = [tuple(map(median, zip(*step, strict=True))) for step in zip(*each, strict=True)]
    took, can = median(taken), {kind: median(pair.rates[kind] for pair in pairs) for kind in pairs[0].rates}
    spent, flops = sum(r.seconds for r in rows), sum(r.flops for r in rows)
    rates = ", ".join(f"{can[kind] / 1e9:.0f} {kind[:-6]}" for kind in can if kind.endswith("_flops"))
    head = f"{ms(took)} ms, {flops / took / 1e9:.1f} GFLOP/s where registers reach {rates}"
    if FAR in can:
        head += f" and weights come at {can[FAR] / 1e9:.0f} GB/s"
    head += f": {percent(share.value)} of the limit [{100 * share.low:.1f}, {100 * share.high:.1f}] "
    head += f"in {len(pairs)} pairs, {percent(at_most)} in the tenth of them when it could do most. "
    head += f"{len(rows)} steps, {ms(spent)} ms when watched"
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
    parser.add_argument("--rounds", type=int, default=3, help=f"of {PAIRS} pairs each")
    parser.add_argument("--rows", type=int, help="the longest steps only, so many of them")
    parser.add_argument("--markdown", type=Path, help="write the tables there too")
    args = parser.parse_args()
    text = [page.head("Steps of models", (), f"{args.threads} threads")]
    for path in args.models:
        for precision in args.precision:
            text.append(document(path, precision, args))
            print(text[-1], flush=True)
    page.write(args.markdown, "\n".join(text))


if __name__ == "__main__":
    main()
