"""How long does it take to normalize and optimize a graph, and does the cost of a node stay the same as graphs grow?

Graphs are those of benchmarks/zoo/growing.py, once, three and five times, and models of your own as they are. Seconds
are the best of the rounds, without reading the file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.compare.report import table
from benchmarks.optimizer.answers import models_in
from benchmarks.zoo.growing import GRAPHS
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize
from sardonyx.optimize.pipelines import optimize

TIMES = (1, 3, 5)


def measure(name: str, source: Any, rounds: int) -> dict[str, Any]:
    """The best of the rounds, each on a graph of its own."""
    best: tuple[float, float] | None = None
    for _ in range(rounds):
        model = load(source)
        nodes = sum(1 for _ in model.graph.all_nodes())
        start = time.perf_counter()
        normalize(model)
        middle = time.perf_counter()
        optimize(model.graph, "extended")
        end = time.perf_counter()
        if best is None or end - start < sum(best):
            best = middle - start, end - middle
    assert best is not None
    left = sum(1 for _ in model.graph.all_nodes())
    row = {"graph": name, "nodes": nodes, "left": left, "normalize": best[0], "optimize": best[1]}
    return {**row, "microseconds_per_node": 1e6 * sum(best) / nodes}


def rows(models: list[Path], rounds: int) -> Iterator[list[str]]:
    sources: list[tuple[str, Any]] = [(f"{name} x{n}", build(n)) for name, build in GRAPHS.items() for n in TIMES]
    for name, source in (*sources, *((path.stem, path) for path in models)):
        row = measure(name, source, rounds)
        both = row["normalize"] + row["optimize"]
        seconds = (f"{s:.3f}" for s in (row["normalize"], row["optimize"], both))
        yield [name, str(row["nodes"]), str(row["left"]), *seconds, f"{row['microseconds_per_node']:.0f}"]
        print(name, row, flush=True)


def run(args: argparse.Namespace) -> bool:
    header = ("", "nodes", "left", "normalize s", "optimize s", "together s", "us per node")
    found = list(rows(models_in(args.paths, args.only), args.rounds))
    text = page.head("How long the optimizer takes as graphs grow") + "\n" + table(header, found)
    print(text)
    page.write(args.markdown, text)
    return True
