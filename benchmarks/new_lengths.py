"""What a sequence length costs that a session has not seen: microseconds beside settled runs of the same length.

python benchmarks/new_lengths.py MODEL [--precision highest] [--threads 2]

The model takes (batch, length) integers, as `benchmarks/models.py minilm` makes them; of an input whose name has `mask`
in it all are 1, of one with `type` in it 0. New lengths come in random order out of a bucket that has been planned.
Beside them: lengths that were seen before, each after another one, for what cold caches alone cost; and new buckets.
Where runs of kernels differ by more than planning takes, what is outside of them still tells.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

import sardonyx

PLANNED = (16, 40, 64, 100, 128)
LENGTHS = range(66, 128)
"""All in the bucket of 128."""
BUCKETS = (150, 200, 300, 400, 7, 3)
SETTLED = 6


class Timed:
    """A session, and how much longer a first run takes than those that follow it."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.names = [given.name for given in session.get_inputs()]
        self.rng = np.random.default_rng(0)
        self._team = session._sess.engine.quick._team
        self._execute, self._team.execute = self._team.execute, self._timed_execute
        self._inside = 0

    def _timed_execute(self, context: int) -> None:
        start = time.perf_counter_ns()
        self._execute(context)
        self._inside += time.perf_counter_ns() - start

    def feeds(self, length: int) -> dict[str, Any]:
        shape = (1, length)
        fixed = {name: int("mask" in name) for name in self.names if "mask" in name or "type" in name}
        return {
            name: np.full(shape, fixed[name], np.int64) if name in fixed else self.rng.integers(0, 1000, shape)
            for name in self.names
        }

    def run(self, feeds: dict[str, Any]) -> tuple[float, float]:
        """How long it takes, and how long of it is outside of kernels."""
        self._inside = 0
        start = time.perf_counter_ns()
        self.session.run(None, feeds)
        took = time.perf_counter_ns() - start
        return took / 1e3, (took - self._inside) / 1e3

    def extra(self, length: int) -> tuple[float, ...]:
        feeds = self.feeds(length)
        first, *settled = (self.run(feeds) for _ in range(1 + SETTLED))
        return tuple(a - statistics.median(others) for a, others in zip(first, zip(*settled, strict=True), strict=True))


def told(what: str, micros: Iterable[tuple[float, ...]]) -> None:
    for label, column in zip((what, "  of it outside of kernels"), zip(*micros, strict=True), strict=True):
        low, middle, high = np.percentile(column, [25, 50, 75])
        print(f"{label:34} median {middle:7.0f}   quartiles {low:7.0f} {high:7.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--precision", default="highest")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = args.threads
    timed = Timed(sardonyx.InferenceSession(args.model, options, precision=args.precision))
    for length in PLANNED:
        timed.extra(length)
    order = [int(length) for length in timed.rng.permutation(LENGTHS)]
    print(f"extra microseconds at `{args.precision}`, {args.threads} threads")
    told("a new length of a known bucket", map(timed.extra, order))
    told("a known length after another", map(timed.extra, order))
    told("a new bucket", map(timed.extra, BUCKETS))


if __name__ == "__main__":
    main()
