"""Attention kernels alone, one thread: time, rate, and error against float64, for each kernel and precision.

    python benchmarks/attention.py           half a minute
    python benchmarks/attention.py --json F  and the figures in a file

The rate is that of the two products, 4 rows keys width heads over the time, which includes masks, softmax and the
splitting of operands. ``vectors`` is the f32 kernel of machines without tiles. Where tiles are not there they are
emulated: ``--emulate`` then shows errors; times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.dtypes import f32
from sardonyx.lower.groups import Attention, Storage, View
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.kernels.attention import vector
from sardonyx.providers.cpu.machine import isa as isas
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

Array = np.ndarray[Any, Any]
BUDGET_S = 0.5
"""Of one kernel and shape."""


@dataclass(frozen=True)
class Shape:
    name: str
    tokens: int
    heads: int = 12
    width: int = 64
    mask: str = "none"
    """``none``, ``keys`` (one row for all) or ``rows``; causal in the latter."""
    rows: int = 0
    """As many as tokens if 0."""


SHAPES = (
    Shape("BERT", 128, mask="keys"), Shape("MiniLM", 128, width=32, mask="keys"), Shape("ViT", 197),
    Shape("GPT-2", 256, mask="rows"), Shape("GPT-2, one row", 256, mask="rows", rows=1), Shape("long", 1024, width=128),
)  # fmt: skip


class Case:
    """Random operands, heads side by side in a row, and the exact result."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.scale = shape, 1 / math.sqrt(shape.width)
        rng, rows = np.random.default_rng(0), shape.rows or shape.tokens
        sizes = ((n, shape.heads, shape.width) for n in (rows, shape.tokens, shape.tokens))
        self.q, self.k, self.v = (rng.standard_normal(s, dtype=np.float32) for s in sizes)
        self.out = np.zeros_like(self.q)
        lowest = np.finfo(np.float32).min
        hidden = np.triu(np.ones((rows, shape.tokens)), 1 + shape.tokens - rows)
        self.mask = {
            "none": None, "keys": np.zeros((1, shape.tokens), np.float32), "rows": (hidden * lowest).astype(np.float32)
        }[shape.mask]  # fmt: skip
        q, k, v = (x.astype(np.float64).swapaxes(0, 1) for x in (self.q, self.k, self.v))
        scores = q @ k.swapaxes(1, 2) * self.scale + (0 if self.mask is None else self.mask)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        self.exact = (p / p.sum(-1, keepdims=True) @ v).swapaxes(0, 1)

    @property
    def flops(self) -> int:
        return 4 * len(self.q) * self.shape.tokens * self.shape.heads * self.shape.width

    def step(self, target: Target) -> tuple[Step, dict[int, Array]]:
        arrays: dict[int, Array] = {}

        def view(x: Array, shape: tuple[int, ...], strides: tuple[int, ...], kind: str = "input") -> View:
            storage = Storage(kind, f32, x.size)
            arrays[storage.number] = x.ravel()
            return View(storage, shape, strides)

        def heads(x: Array, kind: str = "input") -> View:
            length, count, width = x.shape
            return view(x, (1, count, length, width), (0, width, count * width, 1), kind)

        mask = None
        if self.mask is not None:
            tokens = self.shape.tokens
            full = (1, self.shape.heads, len(self.q), tokens)
            mask = view(self.mask, full, (0, 0, tokens if self.shape.mask == "rows" else 0, 1))
        q, k, v = (heads(x) for x in (self.q, self.k, self.v))
        group = Attention((), q, k, v, mask, heads(self.out, "output"), self.scale)
        (step,) = vector.steps(group, target)
        return step, arrays

    def measure(self, target: Target, budget_s: float) -> dict[str, Any]:
        step, arrays = self.step(target)
        given = {n: arrays[x.storage.number] if isinstance(x, Ref) else x for n, x in step.args.items()}
        launch = Launch(step.spec, given, scratch_nbytes=int(step.scratch_nbytes), isa=target.isa)
        self.out[:] = np.nan
        launch()
        error = float(np.linalg.norm(self.out - self.exact) / np.linalg.norm(self.exact))
        best, end = math.inf, time.perf_counter() + budget_s
        while time.perf_counter() < end:
            start = time.perf_counter()
            launch()
            best = min(best, time.perf_counter() - start)
        return {
            "shape": self.shape.name, "us": best * 1e6, "gflops": self.flops / best / 1e9, "error": error,
            "variant": step.variant,
        }  # fmt: skip


def contestants(isa: Isa) -> dict[str, Target]:
    found = {"vectors": Target(replace(isa, amx=False))}
    return found | ({p: Target(isa, p) for p in ("highest", "high", "medium")} if isa.amx else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulate", action="store_true", help="show the errors of kernels on tiles anywhere")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    isa = isas.named("sapphirerapids") if given.emulate else isas.current()
    print(f"{isa.cpu} as {isa.name}, one thread{'; times mean nothing' if isa.is_emulated else ''}")
    rows = []
    for shape in SHAPES:
        case = Case(shape)
        for name, target in contestants(isa).items():
            row = {"kernel": name, **case.measure(target, 0.0 if given.emulate else BUDGET_S)}
            rows.append(row)
            print(
                f"{shape.name:16}{name:9}{row['us']:10.1f} us{row['gflops']:8.0f} GFLOP/s   error {row['error']:.1e}   "
                f"{row['variant']}",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
