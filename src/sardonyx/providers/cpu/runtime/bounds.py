"""Limits on a run of an untrusted model, checked before it begins: the plan's memory, and the work of its steps.

The deadline is looked at between steps; a step is not interrupted. So work that the table knows of is estimated for a
modest core, and refused where it would outlast the deadline. Operators whose work the table does not know are left to
the reference provider, which estimates each call from its operands.
"""

from __future__ import annotations

import numpy as np

from sardonyx.ir.graph import Node
from sardonyx.limits import Budget
from sardonyx.partition.provider import Memory
from sardonyx.providers.cpu.language.context import NOBODY, Row
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.runtime.plans import BYTES_PER_SECOND, FLOPS_PER_SECOND, Shape, values_of

SLOW_FLOPS_PER_SECOND = 1e9
"""The speed of loops that are no blocked products: products of integers, reductions along strides."""
BLOCKED = frozenset(("attention", "conv", "gemm", "quantized", "recurrent"))
"""The families of kernels that keep the multipliers busy."""

UNKNOWN = frozenset({"NonMaxSuppression", "RoiAlign", "TopK", "TreeEnsemble", "Unique"})
"""Operators whose work follows from their data, or grows faster than their operands."""


def check(shape: Shape, memory: Memory, budget: Budget) -> None:
    """Refuse a shape whose plan or whose work does not fit the budget."""
    taken = memory.peak_nbytes - memory.constants_nbytes  # constants are counted since the build
    budget.check_nbytes(taken, "a run of these shapes takes too much memory")
    table, is_there = shape.plan.table, shape.rows[:, Row.WHO] != NOBODY
    values = values_of(table, shape.sizes).astype(np.float64)
    rates = np.array([_rate(step) for step in table.steps])
    seconds = values[table.flops] / rates + values[table.traffic] / BYTES_PER_SECOND
    budget.check_work(float((seconds * is_there).sum()))


def _rate(step: Step) -> float:
    """Operations in a second that a step's kernel does."""
    spec = step.spec
    is_blocked = not BLOCKED.isdisjoint(spec.definition.module.split("."))
    is_narrow = all(t.bits <= 32 for kind, t in spec.params.values() if kind == "memory")
    return FLOPS_PER_SECOND / 2 if is_blocked and is_narrow else SLOW_FLOPS_PER_SECOND


def unbounded(node: Node) -> str | None:
    """Why a node of an untrusted model is not compiled."""
    if node.op_type in UNKNOWN or any(unbounded(n) for _, body in node.subgraphs() for n in body.nodes):
        return "the work of an untrusted model's operator must be known before it begins"
    return None
