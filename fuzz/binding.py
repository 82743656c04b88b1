"""Feeds that lie oddly in memory, feeds of the wrong type, rank or size, and outputs bound to memory of the caller's.

A case is a graph of the fuzzer ``graphs`` or one operator; its layouts and its binding are drawn here. What each layout
means is in ``execute``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fuzz import graphs, operators
from fuzz.cases import Case, Run
from fuzz.draws import Draw

LAYOUTS = ("fortran", "reversed", "strided", "misaligned", "readonly", "broadcast", "big_endian", "shared")
WRONG = ("dtype", "rank", "size", "list", "scalar", "missing", "extra", "none", "text")
OUTPUTS = ("device", "exact", "larger", "smaller", "dtype", "input", "strided", "readonly", "same", "ortvalue")
"""Where outputs are put: wherever the engine likes, memory of the right or a wrong size, an input's own memory, ..."""


def case(seed: int, index: int, mutation: int | None = None) -> Case:
    name = f"binding/{seed}/{index}" + ("" if mutation is None else f"+{mutation}")
    draw = Draw(name)
    base = graphs.case(seed, index) if draw.maybe(0.6) else operators.case(seed, draw.int(0, 9999))
    entry = draw.one(("run", "values", "binding", "preallocated", "preallocated"))
    runs = tuple(odd(draw, run) for run in base.runs[:2] for _ in range(2))
    made = Case(name, base.model, runs, base.options, base.operator)
    return made.with_options(entry=entry)


def odd(draw: Draw, run: Run) -> Run:
    layouts: dict[str, str] = {}
    feeds: dict[str, Any] = dict(run.feeds)
    for name, value in run.feeds.items():
        if draw.maybe(0.6):
            layouts[name] = draw.one(LAYOUTS)
        if layouts.get(name) == "broadcast" and isinstance(value, np.ndarray) and value.size:
            feeds[name] = np.broadcast_to(value.reshape(-1)[0], value.shape).copy()
    share(feeds, [name for name, how in layouts.items() if how == "shared"])
    if draw.maybe(0.25) and feeds:
        name = draw.one(sorted(feeds))
        kind = draw.one(WRONG)
        if kind in ("missing", "extra"):
            feeds = (
                {k: v for k, v in feeds.items() if k != name} if kind == "missing" else {**feeds, "nobody": feeds[name]}
            )
        else:
            feeds[name] = wrong(draw, feeds[name], kind)
            if layouts.get(name) == "shared":
                del layouts[name]
        return Run(feeds, "wrong", layouts)
    layouts["*outputs"] = draw.one(OUTPUTS)
    return replace(run, feeds=feeds, layouts=layouts)


def share(feeds: dict[str, Any], names: list[str]) -> None:
    """Give feeds that are to share memory the values that they then have: those of the largest."""
    kept = [n for n in names if isinstance(feeds[n], np.ndarray) and feeds[n].dtype.kind in "iuf" and feeds[n].size]
    if len(kept) > 1:
        block = max((feeds[n] for n in kept), key=lambda v: v.nbytes).tobytes()
        for n in kept:
            feeds[n] = np.frombuffer(block[: feeds[n].nbytes], feeds[n].dtype).reshape(feeds[n].shape).copy()


def wrong(draw: Draw, value: Any, kind: str) -> Any:
    """The value with one thing about it that the model does not expect."""
    if not isinstance(value, np.ndarray):
        return value
    if kind == "dtype":
        with np.errstate(all="ignore"):
            return (
                value.astype(draw.one((np.float64, np.int8, np.int32, np.float16, np.bool_)))
                if value.dtype != object
                else value
            )
    if kind == "rank":
        return value[None] if draw.maybe(0.5) or not value.ndim else value.reshape(-1)
    if kind == "size":
        return np.resize(value, [n + draw.int(0, 2) for n in value.shape]) if value.size else value
    if kind == "list":
        return [np.asarray(v) for v in value] if value.ndim else [value]
    if kind == "text":
        return np.array(["a"] * 3, object)
    return None if kind == "none" else np.zeros([], value.dtype if value.dtype != object else np.float32)
