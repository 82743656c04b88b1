"""Matrix products on tiles, one thread: how near do they come to what the tile unit can do, and how exact are they?

Prints, for each shape and precision, the time of splitting A and of the product, the effective rate (2 m n k over the
time of the product), its share of the peak that a loop of products in registers reaches right before and after it, and
the error against float64. One row is a matter of reading: its weights are rotated through more memory than the caches
hold, and the share is that of the bandwidth which a loop of loads reaches over as many bytes.

Rounds go from core to core, to the one that others leave alone most (``quiet``). Shares are medians of the rounds
before and after which it was quiet, and of the others.

    python benchmarks/amx.py                 a minute and a half
    python benchmarks/amx.py --sweep         schedules and blockings, one parameter after the other; the best at the end
    python benchmarks/amx.py --gelu          the same with a Gelu after each product, which should cost next to nothing

On a machine without tiles the kernels are emulated: ``--small`` then shows that everything runs; times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from quiet import Probe, seconds_of

from sardonyx.dtypes import f32
from sardonyx.ir.scalar import Program
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Apply, Contraction, Expression, Storage, View
from sardonyx.ops import activation  # noqa: F401 (registers the program of Gelu)
from sardonyx.ops.pointwise import program_of
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.codegen.machine_limits import read_bandwidth
from sardonyx.providers.cpu.kernels.common.matrices import problem
from sardonyx.providers.cpu.kernels.gemm import amx, split_ahead
from sardonyx.providers.cpu.kernels.gemm.amx import KC_STEPS
from sardonyx.providers.cpu.kernels.gemm.macro_tile import Blocking
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import PRODUCTS, SCHEDULES, Schedule
from sardonyx.providers.cpu.machine import isa as isas
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.memory.allocator import allocate
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step, Target

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int]

NAMES = {1: "bf16", 2: "bf16x3", 3: "bf16x6"}
SHAPES: tuple[Shape, ...] = tuple(
    (m, n, k)
    for m in (128, 1024, 1)
    for n, k in ((768, 768), (3072, 768), (768, 3072), (3072, 3072))
    if m * n * k < 4e9
)
SWEPT: tuple[Shape, ...] = ((128, 768, 768), (128, 768, 3072), (1024, 768, 768))
STAY = 20
"""Rounds on one core, before the quietest is looked for again."""
COLD_NBYTES = 256 << 20
"""Memory through which the weights of one row are rotated."""


# -- what the machine can do


def fastest(call: Callable[[], Any], budget_s: float) -> float:
    """The shortest of the calls that fit into the time, in seconds."""
    call()
    best, end = float("inf"), time.perf_counter() + budget_s
    while True:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return best


@dataclass(frozen=True)
class Round:
    seconds: float
    peak: float
    is_quiet: bool


def rounds_of(call: Callable[[], Any], probe: Probe, budget_s: float) -> list[Round]:
    """Calls between looks at what the core can do, some on each core that was the quietest."""
    allowed = sorted(os.sched_getaffinity(0))
    found: list[Round] = []
    end = time.perf_counter() + budget_s
    try:
        while not found or time.perf_counter() < end:
            if len(found) % STAY == 0:
                os.sched_setaffinity(0, probe.quietest(allowed)[:1])
            before = probe.peak_flops()
            for _ in range(2):
                call()
            was_quiet, seconds, is_quiet = probe.is_quiet(), seconds_of(call), probe.is_quiet()
            found.append(Round(seconds, max(before, probe.peak_flops()), was_quiet and is_quiet))
    finally:
        os.sched_setaffinity(0, allowed)
    return found


def median_share(rounds: list[Round], flops: float) -> float | None:
    """Of the peak; None if there was no round."""
    return statistics.median(flops / r.seconds / r.peak for r in rounds) if rounds else None


# -- one product


def gelu() -> Program:
    found = program_of("Gelu", 1, approximate="none")
    assert found is not None
    return found


@dataclass
class Case:
    """A product of random matrices: its steps, and memory for them."""

    shape: Shape
    terms: int
    isa: Isa
    has_gelu: bool = False

    def __post_init__(self) -> None:
        m, n, k = self.shape
        rng = np.random.default_rng(0)
        self.a, self.b = (rng.standard_normal(s, dtype=np.float32) for s in ((m, k), (k, n)))
        self.y = allocate(4 * m * n).view(np.float32).reshape(m, n)  # on lines, as in a session
        a, b, y = (
            Storage(kind, f32, x.size) for kind, x in (("input", self.a), ("constant", self.b), ("output", self.y))
        )
        b.tensor = Tensor.of(self.b)
        steps = (Apply(gelu(), (0,), f32),) if self.has_gelu else ()
        follows = Expression((f32,), steps, (len(steps),))
        views = [View(s, x.shape, (x.shape[1], 1)) for s, x in ((a, self.a), (b, self.b), (y, self.y))]
        group = Contraction((), follows, (), (views[2],), (), m, n, k, views[0], views[1])
        self.steps = amx.steps(problem(group), self.terms, Target(self.isa))
        self.memory: dict[int, Array] = {a.number: self.a.ravel(), y.number: self.y.ravel()}

    def launch(self, step: Step, copy: int = 0) -> Launch:
        """A step on the case's memory; each further copy has weights of its own."""
        arguments: dict[str, Any] = {}
        for name, given in step.args.items():
            arguments[name] = self._content(given.storage, copy) if isinstance(given, Ref) else given
        return Launch(step.spec, arguments, scratch_nbytes=int(step.scratch_nbytes), isa=self.isa)

    def _content(self, storage: Storage, copy: int) -> Array:
        found = self.memory.get(storage.number)
        if found is None:
            nbytes = int(storage.elements) * storage.dtype.bits // 8
            fresh = storage.make if isinstance(storage, Packed) else lambda: allocate(nbytes).view(storage.dtype.numpy)
            found = self.memory[storage.number] = np.asarray(fresh())
        if copy and isinstance(storage, Packed):
            other = allocate(found.nbytes).view(found.dtype)
            other[:] = found
            return other
        return found

    def tuned(self, choice: Choice) -> Step:
        """The product with another schedule and blocking."""
        step, blocking = self.steps[-1], choice.blocking
        spec = amx.gemm_amx(**{**dict(step.spec.statics), "schedule": choice.schedule})
        args = {**step.args, "macro_rows": blocking.rows, "macro_columns": blocking.columns, "k_block": choice.run}
        split = split_ahead.scratch_nbytes(choice.run) if self.terms == split_ahead.TERMS else 0
        return replace(step, spec=spec, args=args, scratch_nbytes=blocking.scratch_nbytes(1) + split)

    @property
    def flops(self) -> int:
        m, n, k = self.shape
        return 2 * m * n * k

    def error(self) -> float:
        """Of the sums; not known once a Gelu has followed."""
        if self.has_gelu:
            return float("nan")
        exact = self.a.astype(np.float64) @ self.b.astype(np.float64)
        return float(np.linalg.norm(self.y - exact) / np.linalg.norm(exact))


def measure(case: Case, probe: Probe, read_rate: Callable[[], float], budget_s: float) -> dict[str, Any]:
    """Times and shares of one case."""
    splitting = case.launch(case.steps[0])
    split_s = fastest(splitting, budget_s / 4)
    step = case.steps[-1]
    launches = [case.launch(step)]
    weights = int(step.nbytes)
    is_cold = case.shape[0] == 1
    if is_cold:
        copies = min(COLD_NBYTES // weights, 64) if budget_s > 0.05 else 2
        launches += [case.launch(step, i) for i in range(1, copies)]

    def once() -> None:
        for launch in launches:
            launch()

    rounds = rounds_of(once, probe, budget_s)
    seconds = min(r.seconds for r in rounds) / len(launches)
    products = len(PRODUCTS[case.terms]) * case.flops * len(launches)
    shares = {
        name: median_share([r for r in rounds if r.is_quiet == is_quiet], products)
        for name, is_quiet in (("quiet", True), ("other", False))
    }
    return {
        "shape": case.shape, "kernel": NAMES[case.terms], "split_us": split_s * 1e6, "product_us": seconds * 1e6,
        "gflops": case.flops / seconds / 1e9, "peak_share": shares, "rounds": len(rounds),
        "quiet_rounds": sum(r.is_quiet for r in rounds),
        "read_share": weights / seconds / read_rate() if is_cold else None, "error": case.error(),
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    if row["read_share"] is None:
        shares = [f"{share:4.0%} {name}" for name, share in row["peak_share"].items() if share is not None]
        told = f"of peak {', '.join(shares)} ({row['quiet_rounds']} of {row['rounds']} rounds quiet)"
    else:
        told = f"of bandwidth {row['read_share']:4.0%}"
    print(
        f"{row['shape']!s:18} {row['kernel']:7} split {row['split_us']:7.1f} us  product {row['product_us']:9.1f} us"
        f"  {row['gflops']:7.0f} GFLOP/s effective  {told}  error {row['error']:.1e}",
        flush=True,
    )


# -- the search

SEARCHED: dict[str, tuple[Any, ...]] = {
    "unroll": (1, 2, 4), "run": (2, 4, 6, 8, 12, 24, 1000), "rows": (1, 2, 4, 8),
    "columns": (1, 2, 4, 8), "ahead_a": (0, 1, 2, 4), "ahead_b": (0, 1, 2, 4),
    "is_pipelined": (True, False),
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    schedule: Schedule
    blocking: Blocking
    run: int

    def having(self, name: str, value: Any) -> Choice:
        """The choice with another value of one parameter."""
        if name == "run":
            return replace(self, run=value)
        if name in ("rows", "columns"):
            return replace(self, blocking=replace(self.blocking, **{name: value}))
        return replace(self, schedule=replace(self.schedule, **{name: value}))

    def __str__(self) -> str:
        flat = {**asdict(self.schedule), **asdict(self.blocking), "run": self.run}
        return " ".join(f"{name} {value!s:7}" for name, value in flat.items())


def sweep(cases: list[Case], peak: float, budget_s: float) -> dict[str, Any]:
    """The best choice over a few shapes, one parameter after the other: the highest mean of the shares of the peak."""
    for case in cases:
        case.launch(case.steps[0])()
    terms, deepest = cases[0].terms, max(case.shape[2] for case in cases)
    best = Choice(SCHEDULES[terms], Blocking.of(terms * 2, deepest, cases[0].isa), KC_STEPS[terms])
    reached: dict[Choice, float] = {}
    for name, values in SEARCHED.items():
        for value in values:
            choice = best.having(name, value)
            if choice in reached:
                continue
            launches = [case.launch(case.tuned(choice)) for case in cases]
            seconds = [fastest(launch, budget_s) for launch in launches]
            shares = [len(PRODUCTS[terms]) * c.flops / s / peak for c, s in zip(cases, seconds, strict=True)]
            reached[choice] = float(np.prod(shares) ** (1 / len(shares)))
            each = " ".join(f"{share:4.0%}" for share in shares)
            print(f"{NAMES[terms]:7} {each}  mean {reached[choice]:4.0%}  {choice}", flush=True)
        best = max(reached, key=lambda c: reached[c])
    print(f"{NAMES[terms]:7} best {reached[best]:4.0%} of peak: {best}\n", flush=True)
    return {"kernel": NAMES[terms], "peak_share": reached[best], **asdict(best)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true", help="search for the best schedule and blocking")
    parser.add_argument("--terms", type=int, nargs="*", default=[1, 2, 3], help="1: bf16, 2: bf16x3, 3: bf16x6")
    parser.add_argument("--gelu", action="store_true", help="a Gelu follows each product")
    parser.add_argument("--small", action="store_true", help="small shapes, for machines that emulate tiles")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    isa = isas.current()
    if not isa.amx:
        isa = isas.named("sapphirerapids")
    print(f"{isa.cpu}, tiles {'emulated: times mean nothing' if isa.is_emulated else 'there'}; one thread", flush=True)
    budget_s = 0.002 if given.small else 0.05 if given.sweep else 1.5
    probe = Probe(isa, is_small=given.small)
    read_rate = cache(lambda: read_bandwidth(1 << 20 if given.small else COLD_NBYTES, isa=isa))
    peak = max(probe.peak_flops() for _ in range(50))
    print(f"products in registers {peak / 1e9:.0f} GFLOP/s\n", flush=True)
    rows: list[dict[str, Any]] = []
    for terms in given.terms:
        if given.sweep:
            swept = ((64, 64, 96),) if given.small else SWEPT
            rows.append(sweep([Case(shape, terms, isa, given.gelu) for shape in swept], peak, budget_s))
            continue
        for shape in ((64, 64, 96), (1, 64, 96)) if given.small else SHAPES:
            rows.append(measure(Case(shape, terms, isa, given.gelu), probe, read_rate, budget_s))
            show(rows[-1])
    if given.json:
        given.json.write_text(json.dumps({"peak": peak, "bandwidth": read_rate(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
