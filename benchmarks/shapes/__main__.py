"""What does a shape cost that a session has not seen, and how much memory do thousands of shapes take?

    python -m benchmarks.shapes [--shapes 2000] [--nets transformer detector] [--threads 1] [--markdown FILE]

Each engine runs in a process of its own on nets with open shapes
(``benchmarks/zoo/open_shapes.py``). New shapes: a first run of a shape less the median of the settled runs behind it,
for shapes near one that was seen, and for the same shapes seen again, each after another one, which is what cold caches
alone cost; median and quartiles, engines in turns shape by shape. Memory: peaks of fresh processes; the largest shape
comes in the middle, and stands beside a process that runs it alone. Kernels have been compiled before, as after a first
start.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import page
from benchmarks.compare.report import table
from benchmarks.shapes.nets import NEAR, NETS, SEEN
from sardonyx.bench.engines import Contestant
from sardonyx.bench.process import Process

CONTESTANTS = (Contestant("sardonyx"), Contestant("onnxruntime"))
WORKER = "benchmarks.shapes.worker"


def extras(net: str, path: Path, threads: int, cache: str) -> list[list[str]]:
    """What first runs of new shapes cost, in microseconds."""
    found: dict[tuple[str, str], list[float]] = {}
    order = [NEAR[net][i] for i in np.random.default_rng(0).permutation(len(NEAR[net]))]
    with ExitStack() as stack:
        processes = {c.name: stack.enter_context(Process(threads, "", cache, worker=WORKER)) for c in CONTESTANTS}
        for contestant in CONTESTANTS:
            processes[contestant.name].open(contestant, path)
            for shape in SEEN[net]:
                processes[contestant.name].ask("extra", net=net, shape=shape)
        for kind in ("new", "seen, after another"):
            for shape in order:
                for name, process in processes.items():
                    seconds = process.ask("extra", net=net, shape=shape)["seconds"]
                    found.setdefault((name, kind), []).append(1e6 * seconds)
    return [
        [f"{net}, {name}", kind, *(f"{v:.0f}" for v in np.percentile(micros, (50, 25, 75)))]
        for (name, kind), micros in found.items()
    ]


def memory(net: str, path: Path, counts: Sequence[int], threads: int, cache: str) -> list[list[str]]:
    """Peaks of processes that run the largest shape alone, and many."""
    rows = []
    for contestant in CONTESTANTS:
        peaks: list[dict[str, Any]] = []
        for count in (1, *counts):  # the first compiles
            with Process(threads, "", cache, worker=WORKER) as process:
                process.open(contestant, path)
                peaks.append(process.ask("every", net=net, count=count))
        for count, found in zip(counts, peaks[1:], strict=True):
            sizes = found["before_mb"], found["peak_mb"], found["peak_mb"] - found["before_mb"]
            by_largest = found["peak_mb"] / peaks[1]["peak_mb"]
            rows.append([f"{net}, {contestant.name}", str(count), *(f"{n:.1f}" for n in sizes), f"{by_largest:.2f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shapes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", type=int, default=2000)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--markdown", type=Path, help="write the page there")
    args = parser.parse_args()
    slow: list[list[str]] = []
    large: list[list[str]] = []
    with tempfile.TemporaryDirectory() as made:
        folder, cache = Path(made), str(Path(made) / "cache")
        Path(cache).mkdir(0o700)  # others must not write there, else it is not used
        for net in args.nets:
            path = folder / f"{net}.onnx"
            path.write_bytes(NETS[net]())
            slow += extras(net, path, args.threads, cache)
            large += memory(net, path, (1, args.shapes), args.threads, cache)
    header = ("", "shapes", "MB when opened", "peak MB", "beyond", "by the largest alone")
    text = [
        page.head("Shapes that are new, and many of them", ("onnxruntime",), f"{args.threads} threads"),
        "## Microseconds that a first run takes longer\n",
        table(("", "shapes", "median", "25 %", "75 %"), slow),
        "\n## Memory over many shapes\n",
        table(header, large),
    ]
    print("\n".join(text))
    page.write(args.markdown, "\n".join(text))


if __name__ == "__main__":
    main()
