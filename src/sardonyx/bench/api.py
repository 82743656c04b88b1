"""``benchmark``: a model's times, beside those of other engines, and under other settings."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.bench.arrays import store
from sardonyx.bench.contest import Entry, Outcome, Settings, Step, contest
from sardonyx.bench.engines import OURS, PEERS, Contestant
from sardonyx.bench.inputs import Inputs, generate_inputs
from sardonyx.bench.machine import Usage, cores, disturbances, machine
from sardonyx.bench.results import Comparison, Result, Sweep, Timing
from sardonyx.bench.statistics import verdict
from sardonyx.errors import InvalidArgument, NotFound
from sardonyx.session.environment import get_available_providers

PRECISIONS = ("highest", "high", "medium")
Feeds = Mapping[str, Any]


def installed_peers() -> tuple[Contestant, ...]:
    """The engines beside which a model is measured by default, as far as this Python has them."""
    return tuple(peer for peer in PEERS if peer.precision == "highest" and find_spec(peer.engine) is not None)


def benchmark(
    model: str | os.PathLike[str] | bytes,
    feeds: Feeds | None = None,
    *,
    peers: Sequence[str | Contestant] | None = None,
    threads: int = 0,
    precision: str = "highest",
    providers: Sequence[str] = (),
    batches: Sequence[int] = (),
    callers: Sequence[int] = (),
    thread_counts: Sequence[int] = (),
    precisions: Sequence[str] = (),
    dimensions: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    rounds: int = 24,
    seconds: float = 10.0,
    starts: int = 3,
    warm_s: float = 5.0,
    seed: int = 0,
    step: Step = lambda what: None,
) -> Result:
    """Time a model, in processes of their own for Sardonyx and each peer.

    Without ``feeds`` inputs are random, of sizes that ``dimensions`` and ``shapes`` give (``generate_inputs``).
    ``peers`` are engines' names (onnxruntime, openvino) or Contestants; None: those that are installed. ``batches``,
    ``callers`` (at once), ``thread_counts`` and ``precisions`` are swept, each among themselves. ``threads`` 0 is as
    many as the cores and the quota allow, for everybody.

    ``seconds`` are those of the rounds of each comparison, without starts and warming up. Everybody is started
    ``starts`` times, the first time with an empty cache, and warmed up until the times no longer fall, for ``warm_s``
    seconds at most; the starts share the ``rounds``. ``step`` is called
    with each step's description.
    """
    _check(rounds, seconds, starts, threads, precision, (*batches, *callers, *thread_counts), precisions)
    if unknown := sorted({*providers} - {*get_available_providers()}):
        raise InvalidArgument("no such provider on this machine", expected=get_available_providers(), got=unknown)
    threads = threads or len(cores())
    subject = Contestant(OURS, precision, providers=tuple(providers))
    others = _contestants(peers)
    before = Usage.now()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made, _file_of(model, made) as path:
        sized = {"dimensions": dimensions, "shapes": shapes, "seed": seed}
        inputs = generate_inputs(path, **sized) if feeds is None else _given(feeds)  # type: ignore[arg-type]
        bench = _Bench(path, Path(made), (threads, rounds, seconds, starts), warm_s, step)
        bench.feed("", inputs.feeds)
        main = bench.run([Entry(c.name, c, batch=inputs.batch) for c in (subject, *others)])
        _require(main, subject, inputs)
        sweeps = []
        if batches:
            for size in batches:
                if feeds is not None:
                    raise InvalidArgument("batch sizes are swept with generated inputs only", got="feeds")
                bench.feed(f"batch {size}", generate_inputs(path, batch=size, **sized).feeds)  # type: ignore[arg-type]
            sweeps.append(bench.sweep("batch", [_entry(subject, f"batch {n}", n, f"batch {n}") for n in batches]))
        if callers:
            sweeps.append(
                bench.sweep("callers", [_entry(subject, f"callers {n}", inputs.batch, callers=n) for n in callers])
            )
        if thread_counts:
            settings = [replace(subject, threads=n, label=f"threads {n}") for n in thread_counts]
            sweeps.append(bench.sweep("threads", [_entry(c, c.label, inputs.batch) for c in settings]))
        if precisions:
            settings = [replace(subject, precision=p, label=f"precision {p}") for p in precisions]
            sweeps.append(bench.sweep("precision", [_entry(c, c.label, inputs.batch) for c in settings]))
        nbytes = path.stat().st_size
    timings = tuple(main.timings.values())
    return Result(
        model=_name_of(model),
        nbytes=nbytes,
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine(),
        versions={"python": platform.python_version(), **{t.engine: t.version for t in timings}},
        seed=seed,
        inputs={name: _described(value) for name, value in inputs.feeds.items()},
        statements=inputs.statements,
        disturbances=disturbances(before, Usage.now(), threads),
        timings=timings,
        comparisons=tuple(_compared(timings[0], other) for other in timings[1:]),
        sweeps=tuple(sweeps),
        absent=main.absent,
        failed=main.failed,
    )


class _Bench:
    """Contests over one model, and the files of their feeds."""

    def __init__(
        self, model: Path, folder: Path, numbers: tuple[int, int, float, int], warm_s: float, step: Step
    ) -> None:
        cache = folder / "cache"
        cache.mkdir(0o700)
        self._folder = folder
        self._feeds: dict[str, Path] = {}
        self._settings = Settings(model, self._feeds, *numbers, str(cache), warm_s, step)

    def feed(self, key: str, feeds: Feeds) -> None:
        self._feeds[key] = self._folder / f"feeds{len(self._feeds)}.npz"
        store(self._feeds[key], **{"in": feeds})

    def run(self, entries: Sequence[Entry]) -> Outcome:
        return contest(entries, self._settings)

    def sweep(self, setting: str, entries: Sequence[Entry]) -> Sweep:
        step = self._settings.step
        step(f"{setting}: {', '.join(e.name.removeprefix(setting).strip() for e in entries)}")
        outcome = self.run(entries)
        if lost := outcome.absent | outcome.failed:
            name, why = next(iter(lost.items()))
            raise InvalidArgument(f"the model does not run with {name}", got=why)
        timings = tuple(outcome.timings.values())
        best = max(timings, key=lambda t: t.throughput)
        return Sweep(setting, timings, best.name.removeprefix(setting).strip(), _best_sentence(timings, best))


def _best_sentence(timings: Sequence[Timing], best: Timing) -> str:
    """Which value gives most, and which do as well as far as can be told."""
    said = f"Most samples per second: {best.name}, {best.throughput:.{0 if best.throughput >= 100 else 2}f}"
    judged = {t.name: verdict(best.costs_s, t.costs_s, best.starts_of_rounds) for t in timings if t is not best}
    equal = [name for name, found in judged.items() if not found.is_real]
    if equal:
        return f"{said}. Not to be told from it: {', '.join(equal)}."
    nearest = min(judged.items(), key=lambda item: item[1].ratio.value, default=None)
    return f"{said}." if nearest is None else f"{said}, {nearest[1].ratio} times those of {nearest[0]}, the next best."


def _entry(contestant: Contestant, name: str, batch: int | None, feeds: str = "", callers: int = 1) -> Entry:
    return Entry(name, contestant, feeds, batch, callers)


def _compared(subject: Timing, other: Timing) -> Comparison:
    both = min(len(subject.rounds), len(other.rounds))
    found = verdict(
        subject.rounds[:both], other.rounds[:both], subject.starts_of_rounds[:both], (subject.name, other.name)
    )
    return Comparison(subject.name, other.name, found.ratio, found.is_real, found.sentence)


def _require(outcome: Outcome, subject: Contestant, inputs: Inputs) -> None:
    """The model must run in Sardonyx; else the worker's words are the error."""
    why = outcome.failed.get(subject.name) or outcome.absent.get(subject.name)
    if why is not None:
        hint = "name the sizes of symbolic dimensions, or pass feeds" if inputs.statements else None
        raise InvalidArgument("the model cannot be measured", got=why, hint=hint)


def _contestants(peers: Sequence[str | Contestant] | None) -> tuple[Contestant, ...]:
    if peers is None:
        return installed_peers()
    known = {peer.name: peer for peer in PEERS} | {peer.engine: peer for peer in reversed(PEERS)}
    found = []
    for peer in peers:
        if isinstance(peer, str) and peer not in known:
            raise InvalidArgument("no such peer", expected=sorted(known), got=peer)
        made = known[peer] if isinstance(peer, str) else peer
        if find_spec(made.engine.partition(":")[0]) is None:
            raise NotFound(f"{made.engine} is not installed", hint=f"pip install {made.engine}")
        found.append(made)
    return tuple(found)


def _check(
    rounds: int,
    seconds: float,
    starts: int,
    threads: int,
    precision: str,
    counts: Sequence[int],
    precisions: Sequence[str],
) -> None:
    if rounds < 1 or starts < 1 or threads < 0 or not seconds > 0 or any(n < 1 for n in counts):
        raise InvalidArgument("rounds, starts, seconds, batch sizes, callers and threads must be positive")
    for one in (precision, *precisions):
        if one not in PRECISIONS:
            raise InvalidArgument("no such precision", expected=PRECISIONS, got=one)


def _given(feeds: Feeds) -> Inputs:
    tensors = {
        name: value if isinstance(value, (list, Mapping)) else np.asarray(value) for name, value in feeds.items()
    }
    return Inputs(tensors, (), None)


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"map of {len(value)}"
    if isinstance(value, list):
        return f"sequence of {len(value)}" + (f": {_described(value[0])}" if value else "")
    return f"{'string' if value.dtype == object else value.dtype.name} {list(value.shape)}"


def _name_of(model: Any) -> str:
    return "model given as bytes" if isinstance(model, bytes) else Path(os.fspath(model)).name


@contextmanager
def _file_of(model: Any, folder: str) -> Iterator[Path]:
    """The file that workers open."""
    if isinstance(model, bytes):
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
    else:
        path = Path(os.fspath(model))
    yield path.resolve()
