"""Reserves a range of a random stream by one atomic addition; every thread reads the result."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.lower.groups import RandomStream
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step


def steps(group: RandomStream, analysis: Analysis) -> list[Step]:
    args: dict[str, Ref | Known | float] = {
        "stream": Ref.of(group.stream),
        "out": Ref.of(group.out),
        "count": group.count,
    }
    return [Step(advance_random_stream(), args, frozenset(("out",)), group.nodes)]


@kernel(stream=(i64,), out=(i64,), count=i64)
def advance_random_stream(k: Kernel, stream: Buf, out: Buf, count: Val) -> None:
    with k.when(k.thread.eq(0)):
        out.store(0, stream.load(0))
        out.store(1, stream.add_atomic(1, count))
