"""Reductions in kernels: accumulators for each lane, merged in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from sardonyx.dtypes import DType
from sardonyx.lower.groups import Reduce
from sardonyx.providers.cpu.kernels.math.exponentials import CURRENT_ROUNDING
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val, bool_, f32, i32, i64, register_dtype
from sardonyx.records import Record

State: TypeAlias = "tuple[Val, ...]"
"""An accumulator, and for ``argmax`` and ``argmin`` its index."""


def lowest(dtype: DType) -> float:
    """A lower bound of all values of the type."""
    if dtype.is_float:
        return float("-inf")
    return -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0


def highest(dtype: DType) -> float:
    """An upper bound of all values of the type."""
    if dtype.is_float:
        return float("inf")
    if dtype is bool_:
        return 1
    return (1 << (dtype.bits - (dtype.kind == "int"))) - 1


def extreme(k: Kernel, a: Val, b: Val, *, largest: bool, is_loose: bool = False) -> Val:
    """The maximum or minimum; NaN if either is NaN, unless ``is_loose``."""
    if a.dtype.is_float and k.isa.name == "neon":
        return k.intrinsic("llvm.maximum" if largest else "llvm.minimum", [a, b], a.dtype, a.lanes, over=[a])
    if not a.dtype.is_float:
        return k.max(a, b) if largest else k.min(a, b)
    found = _extreme_or_first(k, a, b, largest=largest)
    return found if is_loose else k.select(b.ne(b), b, found)


def _extreme_or_first(k: Kernel, a: Val, b: Val, *, largest: bool) -> Val:
    """The maximum or minimum; ``a`` if either is NaN.

    This is x86's instruction. It is emitted as an intrinsic because LLVM would merge a compare and select with others
    around it into more instructions.
    """
    bits = a.lanes * a.dtype.bits
    width = {512: "avx512", 256: "avx", 128: "sse" if a.dtype is f32 else "sse2"}.get(bits)
    is_there = k.isa.name in ("amx", "avx512", "avx2") and not k.isa.is_emulated and bits <= k.isa.lanes * f32.bits
    if not is_there or width is None:
        return k.max(b, a) if largest else k.min(b, a)
    suffix = ("ps" if a.dtype is f32 else "pd") + (f".{bits}" if width.startswith("avx") else "")
    rounding = [k.const(CURRENT_ROUNDING, i32)] if width == "avx512" else []
    name = f"llvm.x86.{width}.{'max' if largest else 'min'}.{suffix}"
    return k.intrinsic(name, [b, a, *rounding], a.dtype, a.lanes)


class Reducer(Record):
    """One reduction. NaN propagates, as in numpy."""

    k: Kernel
    kind: str
    dtype: DType
    """The register type of the values."""
    is_last: bool = False
    is_loose: bool = False
    """NaN may be ignored."""

    @staticmethod
    def of(k: Kernel, step: Reduce, arg: DType) -> Reducer:
        return Reducer(k, step.kind, register_dtype(arg), step.is_last, step.is_loose)

    @property
    def has_index(self) -> bool:
        return self.kind.startswith("arg")

    @property
    def neutral(self) -> float:
        if self.kind in ("sum", "prod"):
            return float(self.kind == "prod") if self.dtype.is_float else int(self.kind == "prod")
        return lowest(self.dtype) if self.kind.endswith("max") else highest(self.dtype)

    def start(self, lanes: int) -> State:
        value = self.k.const(self.neutral, self.dtype, lanes)
        return (value, self.k.zeros(i64, lanes)) if self.has_index else (value,)

    def add(self, state: State, value: Val, index: Val, mask: Val | None) -> State:
        """Adds a value in each lane that the mask enables."""
        k, lanes = self.k, state[0].lanes
        v = k.value(value, self.dtype, lanes)
        if not self.has_index:
            return self.merge(state, (v if mask is None else k.select(mask, v, self.neutral),))
        best, where = state
        better = (v >= best if self.kind == "argmax" else v <= best) if self.is_last else self._beats(v, best)
        if self.dtype.is_float:
            better = better | (v.ne(v) if self.is_last else v.ne(v) & best.eq(best))
        better = better if mask is None else better & mask
        return k.select(better, v, best), k.select(better, k.value(index, i64, lanes), where)

    def merge(self, a: State, b: State) -> State:
        k = self.k
        if self.kind == "sum":
            return (a[0] + b[0],)
        if self.kind == "prod":
            return (a[0] * b[0],)
        if not self.has_index:
            return (extreme(k, a[0], b[0], largest=self.kind == "max", is_loose=self.is_loose),)
        (x, i), (y, j) = a, b
        wins, ties = self._beats(y, x), y.eq(x)
        if self.dtype.is_float:
            wins, ties = wins | (y.ne(y) & x.eq(x)), ties | (y.ne(y) & x.ne(x))
        wins = wins | (ties & (j > i if self.is_last else j < i))
        return k.select(wins, y, x), k.select(wins, j, i)

    def _beats(self, a: Val, b: Val) -> Val:
        return a > b if self.kind == "argmax" else a < b

    def merge_all(self, states: Sequence[State]) -> State:
        """Merges several accumulators as a binary tree."""
        rest = list(states)
        while len(rest) > 1:
            pairs = [self.merge(a, b) for a, b in zip(rest[::2], rest[1::2], strict=False)]
            rest = pairs + rest[len(pairs) * 2 :]
        return rest[0]

    def reduce_lanes(self, state: State) -> State:
        """Horizontal reduction: repeatedly merges the upper half of the lanes into the lower half."""
        while state[0].lanes > 1:
            half = state[0].lanes // 2
            low, high = range(half), range(half, 2 * half)
            if half == 1:
                return self.merge(tuple(v[0] for v in state), tuple(v[1] for v in state))
            state = self.merge(tuple(v.shuffle(low) for v in state), tuple(v.shuffle(high) for v in state))
        return state
