"""A contestant's process that also generates token by token, and compares answers with a reference.

feed    {feeds, is_stepwise}                  take a case's feeds
check   {reference}                           run once; seconds, errors against the reference, digest of the answers
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare.cases import cache_of, step_feeds
from sardonyx.bench.arrays import Feeds, stored
from sardonyx.bench.statistics import relative_error
from sardonyx.bench.worker import Reply, Worker, main


class CaseWorker(Worker):
    steps = 0

    def feed(self, feeds: str, key: str = "", is_stepwise: bool = False) -> Reply:
        super().feed(feeds, key)
        self.steps = self.feeds["input_ids"].shape[1] if is_stepwise else 0
        return {}

    def times(self, runs: int) -> list[float]:
        if self.steps:
            return [s for _ in range(runs) for s, _ in self.generate()]
        return super().times(runs)

    def generate(self) -> Iterator[tuple[float, Feeds]]:
        """Token by token, each step's seconds and outputs; keys and values given are keys and values fed."""
        ids, cache = self.feeds["input_ids"], {n: v for n, v in self.feeds.items() if n.startswith("past")}
        for step in range(self.steps):
            feeds = step_feeds(ids, step, cache)
            start = time.perf_counter()
            answers = self.runner.run(feeds)
            seconds = time.perf_counter() - start
            outputs = self.named(answers)
            cache = {name: value.copy() for name, value in cache_of(outputs).items()}
            yield seconds, outputs

    def check(self, reference: str) -> Reply:
        wanted = stored(Path(reference), "out")
        seconds: Any
        if self.steps:
            seconds, told = zip(*((s, outputs["logits"].copy()) for s, outputs in self.generate()), strict=True)
            answers = {"logits": np.concatenate(told, axis=1)}
        else:
            start = time.perf_counter()
            results = self.runner.run(self.feeds)
            seconds = (time.perf_counter() - start,)
            answers = self.named(results)
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(answers[name]).tobytes() for name in wanted))
        errors = {name: relative_error(answers[name], wanted[name]) for name in wanted}
        return {"seconds": seconds, "errors": errors, "digest": digest.hexdigest()[:16]}


if __name__ == "__main__":
    main(CaseWorker())
