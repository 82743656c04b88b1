"""A contestant's process that runs a net in many shapes, besides what every worker does.

extra   {net, shape}    seconds that a first run of a shape takes longer than those behind it
every   {net, count}    run random shapes; MB when the session was there, and at most
"""

from __future__ import annotations

import statistics

from benchmarks.shapes.nets import feeds_of, shapes_of
from sardonyx.bench.worker import Reply, Worker, main

SETTLED = 6


class ShapesWorker(Worker):
    def extra(self, net: str, shape: list[int]) -> Reply:
        self.feeds = feeds_of(net, tuple(shape))
        first, *settled = self.times(1 + SETTLED)
        return {"seconds": first - statistics.median(settled)}

    def every(self, net: str, count: int) -> Reply:
        before = self.memory("VmRSS")["mb"]
        for shape in shapes_of(net, count):
            self.runner.run(feeds_of(net, shape))
        return {"before_mb": before, "peak_mb": self.memory("VmHWM")["mb"]}


if __name__ == "__main__":
    main(ShapesWorker())
