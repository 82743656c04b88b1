"""Reading a trace: ours, or one that onnxruntime wrote, which tells of nodes only."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from sardonyx.errors import InvalidArgument, NoSuchFile
from sardonyx.profile.records import KernelUse, NodeUse, Profile, RunUse

Event = Mapping[str, Any]
RUN, SUFFIX = "model_run", "_kernel_time"
US = 1e-6


def read_trace(path: str | os.PathLike[str]) -> Profile:
    """The profile of a session's trace."""
    where = os.fspath(path)
    try:
        return profile_of(read_events(where), where)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"the file is no trace of a session: {error}", where=where) from None


def read_events(where: str) -> list[Event]:
    """The events of a trace."""
    try:
        with open(where, encoding="utf-8") as file:
            events = json.load(file)
    except FileNotFoundError:
        raise NoSuchFile("there is no such trace", where=where) from None
    except OSError as error:
        raise InvalidArgument(f"the trace cannot be read ({error.strerror})", where=where) from None
    except (ValueError, RecursionError):
        raise InvalidArgument("the file is no trace: it is not JSON", where=where) from None
    try:
        return _checked(events)
    except ValueError as error:
        raise InvalidArgument(f"the file is no trace of a session: {error}", where=where) from None


def profile_of(events: Sequence[Event], source: str, *, is_own_calls: bool = True, skip: int = 0) -> Profile:
    """The profile of events, without the first ``skip`` runs."""
    runs = sorted((e for e in events if e["name"] == RUN and e["cat"] == "Session"), key=lambda e: float(e["ts"]))[
        skip:
    ]
    if not runs:
        raise ValueError("it has no event of a run")
    place = _Places(runs)
    nodes = [e for e in events if e["cat"] == "Node" and e["name"].endswith(SUFFIX)]
    of_run = place.sorted_in(nodes)
    own_s = {i: _own_seconds(of_run[i]) for i in range(len(runs))}
    typical = typical_runs([float(run["dur"]) for run in runs])
    machine: Mapping[str, Any] = next((e["args"] for e in events if e["name"] == "machine"), {})
    live = [int(e["args"]["live_bytes"]) for e in events if e["ph"] == "C" and e["name"] == "arena"]
    return Profile(
        source,
        is_own_calls,
        _settings(next((e["args"] for e in events if e["name"] == "session_initialization"), {})),
        tuple(machine.get("rates", ())),
        tuple(_run(run, sum(s for _, s in own_s[i])) for i, run in enumerate(runs)),
        _nodes(own_s, typical),
        _kernels(place, events, typical),
        max(live, default=0),
        int(machine.get("left_out", 0)),
    )


def typical_runs(times: Sequence[float]) -> frozenset[int]:
    """The half of the runs whose times are nearest to the median; all of three or fewer.

    Means over the same runs add up to the time of a run, which medians of single kernels do not on a busy machine.
    """
    order, cut = sorted(range(len(times)), key=lambda i: times[i]), len(times) // 4
    return frozenset(order[cut : len(order) - cut])


def _mean(values: Mapping[int, float], typical: frozenset[int]) -> float:
    """Over the typical runs; of what happens in none of them, over all runs that have it."""
    return fmean([x for i, x in values.items() if i in typical] or values.values())


def _settings(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a session was asked for; onnxruntime tells nothing."""
    kinds = {"threads": int, "asked_threads": int, "precision": str, "optimization_level": str, "providers": list}
    if wrong := [name for name, kind in kinds.items() if name in told and type(told[name]) is not kind]:
        raise ValueError(f"the session's {wrong[0]} has the wrong type")
    return {name: told[name] for name in kinds if name in told}


def _checked(events: Any) -> list[Any]:
    """The events, each with the fields that all have; onnxruntime leaves some out that do not matter here."""
    if not isinstance(events, list) or not all(isinstance(e, dict) for e in events):
        raise ValueError("it is no list of events")
    for event in events:
        for field, kind in (("name", str), ("cat", str), ("ph", str), ("ts", (int, float)), ("args", dict)):
            if not isinstance(event.get(field), kind):
                raise ValueError(f"an event has no {field}")
        if not isinstance(event.setdefault("dur", 0), (int, float)):
            raise ValueError("the duration of an event is no number")
        event.setdefault("tid", 0)
    return events


class _Places:
    """Which run an event lies in."""

    def __init__(self, runs: Sequence[Event]) -> None:
        self.count = len(runs)
        self._spans: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
        for i, run in enumerate(runs):
            self._spans[run["tid"]].append((float(run["ts"]), float(run["ts"]) + float(run["dur"]), i))
        self._all = sorted(span for spans in self._spans.values() for span in spans)

    def sorted_in(self, events: Iterable[Event]) -> list[list[Event]]:
        """The events of each run, in order; those of no run are left out."""
        from bisect import bisect_right

        found: list[list[Event]] = [[] for _ in range(self.count)]
        for event in sorted(events, key=lambda e: (float(e["ts"]), -float(e["dur"]))):
            spans = self._spans.get(event["tid"], self._all)
            i = bisect_right(spans, (float(event["ts"]) + 0.001, float("inf"), 0)) - 1
            if i >= 0 and float(event["ts"]) <= spans[i][1]:
                found[spans[i][2]].append(event)
        return found


def _own_seconds(nodes: Sequence[Event]) -> list[tuple[Event, float]]:
    """Each node's time without that of nodes within it."""
    own: list[tuple[Event, float]] = []
    open_: list[tuple[float, int]] = []
    for event in nodes:
        start, took = float(event["ts"]), float(event["dur"])
        while open_ and start >= open_[-1][0] - 0.002:
            open_.pop()
        if open_:
            outer, seconds = own[open_[-1][1]]
            own[open_[-1][1]] = outer, max(0.0, seconds - took * US)
        own.append((event, took * US))
        open_.append((start + took, len(own) - 1))
    return own


def _run(event: Event, nodes_s: float) -> RunUse:
    args = event["args"]
    inputs = {name: _type_and_shape(told) for name, told in args.get("inputs", {}).items()}
    given, made, strided = (int(args.get(name, 0)) for name in ("input_bytes", "output_bytes", "strided_bytes"))
    return RunUse(
        float(event["ts"]) * US, float(event["dur"]) * US, int(event["tid"]), inputs, given, made, strided, nodes_s
    )


def _nodes(runs: Mapping[int, Sequence[tuple[Event, float]]], typical: frozenset[int]) -> tuple[NodeUse, ...]:
    seconds: dict[str, dict[int, float]] = defaultdict(dict)
    calls: dict[str, list[int]] = defaultdict(list)
    last: dict[str, Event] = {}
    for i, run in runs.items():
        of_run: dict[str, list[float]] = defaultdict(list)
        for event, own_s in run:
            of_run[event["name"]].append(own_s)
            last[event["name"]] = event
        for name, found in of_run.items():
            seconds[name][i] = sum(found)
            calls[name].append(len(found))
    return tuple(_node(event, _mean(seconds[name], typical), median(calls[name])) for name, event in last.items())


def _node(event: Event, seconds: float, calls: float) -> NodeUse:
    args = event["args"]
    shapes = tuple(_type_and_shape(told) for told in args.get("input_type_shape", ()))
    engine = str(args.get("engine", args.get("provider", "")))
    output_nbytes = int(args.get("output_size", 0) or 0)
    return NodeUse(
        event["name"].removesuffix(SUFFIX), str(args["op_name"]), engine, seconds, calls, shapes, output_nbytes
    )


def _kernels(place: _Places, events: Sequence[Event], typical: frozenset[int]) -> tuple[KernelUse, ...]:
    steps: dict[tuple[str, int], dict[int, _Step]] = defaultdict(dict)
    told: dict[tuple[str, int], Mapping[str, Any]] = {}
    timed = place.sorted_in(e for e in events if e["cat"] in ("Kernel", "Barrier") and "part" in e["args"])
    for i, run in enumerate(timed):
        of_run: dict[tuple[str, int], _Step] = {}
        for event in run:
            args = event["args"]
            key = str(args["part"]), int(args["step"])
            step = of_run.setdefault(key, _Step())
            step.add(event)
            if "nodes" in args:
                told[key] = {**args, "name": event["name"]}
        for key, step in of_run.items():
            steps[key][i] = step
    return tuple(_kernel(key, told[key], steps[key], typical) for key in steps if key in told)


class _Step:
    """What one run did for a step."""

    def __init__(self) -> None:
        self.begin, self.end = float("inf"), 0.0
        self.busy_s = self.waited_s = 0.0
        self.wall_s: float | None = None

    def add(self, event: Event) -> None:
        start, took = float(event["ts"]) * US, float(event["dur"]) * US
        if event["cat"] == "Barrier":
            self.waited_s += took
        else:
            self.busy_s += took
            self.begin, self.end = min(self.begin, start), max(self.end, start + took)
            if "wall_us" in event["args"]:
                self.wall_s = float(event["args"]["wall_us"]) * US

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.begin) if self.wall_s is None else self.wall_s


def _kernel(
    key: tuple[str, int], args: Mapping[str, Any], runs: Mapping[int, _Step], typical: frozenset[int]
) -> KernelUse:
    def middle(of: Callable[[_Step], float]) -> float:
        return _mean({i: of(step) for i, step in runs.items()}, typical)

    operators, nodes, origins = (tuple(map(str, args[field])) for field in ("operators", "nodes", "origins"))
    flops, nbytes, weight_nbytes = (int(args[field]) for field in ("flops", "bytes", "weight_bytes"))
    return KernelUse(
        part=key[0],
        step=key[1],
        kernel=str(args["name"]),
        variant=str(args["variant"]),
        op_type=str(args["op_name"]),
        operators=operators,
        nodes=nodes,
        origins=origins,
        threads=int(args["threads"]),
        seconds=middle(lambda s: s.seconds),
        busy_s=middle(lambda s: s.busy_s),
        waited_s=middle(lambda s: s.waited_s),
        flops=flops,
        nbytes=nbytes,
        weight_nbytes=weight_nbytes,
        arithmetic=str(args["arithmetic"]),
        bound=str(args.get("bound", "")),
        roofline_s=float(args.get("roofline_us", 0)) * US,
    )


def _type_and_shape(told: Any) -> tuple[str, tuple[int, ...]]:
    """Of onnxruntime's form: a type with its shape."""
    if isinstance(told, Mapping):
        for kind, shape in told.items():
            if isinstance(shape, list) and all(isinstance(d, int) for d in shape):
                return str(kind), tuple(shape)
            return str(kind), ()
    return "", ()
