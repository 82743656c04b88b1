"""Softcap, mask and causality of the scores of a block (``attention.amx``)."""

from __future__ import annotations

import math
from typing import Any

from sardonyx.providers.cpu.kernels.attention.amx_block import QueryBlock
from sardonyx.providers.cpu.kernels.attention.amx_head import KEYS
from sardonyx.providers.cpu.kernels.attention.config import MaskArgs, softmax_exp
from sardonyx.providers.cpu.kernels.math import functions
from sardonyx.providers.cpu.kernels.split.bf16 import (
    HALF,
    STEP,
)
from sardonyx.providers.cpu.language.values import Buf, Val, bool_, f32, i32

MASKED = -1e36
"""Mask values up to this hide a key."""


class MaskScores:
    """The pass over a block's scores that applies softcap, mask and causality, and updates the row maxima."""

    def __init__(
        self, block: QueryBlock, mask: str, args: MaskArgs[Buf, Val] | None, causal: bool, softcap: float
    ) -> None:
        self.block, self.k, self.mask, self.args = block, block.k, mask, args
        self.memory = None if args is None else args.memory.at(block.b * args.b + block.h * args.h)
        self.causal, self.softcap = causal, softcap

    def visible(self, keys: Val) -> Val:
        """How many of the first ``keys`` keys to multiply: trailing keys that the mask hides from all rows have p = 0.

        All keys count if the mask hides every key from some row: the softmax of such a row ignores the mask.
        """
        if self.memory is None:
            return keys
        k, left = self.k, self.k.var(keys)
        is_open = k.var(k.cast(self.block.is_small & (keys > STEP), i32))
        with k.loop_while(lambda: is_open.get().ne(0)):
            start = (left.get() - 1) // STEP * STEP
            with k.loop(0, self.block.high) as r:
                bias = self._bias_of(self.block.first + r, start)
                for t in k.tiles(left.get() - start, HALF):
                    is_seen = ~(t.keep(self._bias(bias, t), -math.inf) <= MASKED)
                    is_open.set(is_open.get() & k.cast(~is_seen.any(), i32))
            left.set(k.select(is_open.get().ne(0), start, left.get()))
            is_open.set(is_open.get() & k.cast(left.get() > 0, i32))
        with k.when(left.get() < keys), k.loop(0, self.block.high) as r:
            bias, any_ = self._bias_of(self.block.first + r, k.const(0)), k.var(k.zeros(i32, HALF))
            for t in k.tiles(left.get(), HALF):
                any_.set(any_.get() | k.cast(t.keep(self._bias(bias, t), -math.inf) > MASKED / 2, i32))
            left.set(k.select(any_.get().ne(0).any(), left.get(), keys))
        return left.get()

    def _bias_of(self, row: Val, start: Val) -> Buf:
        assert self.memory is not None and self.args is not None
        return self.memory.at(row * self.args.q + start * self.args.k)

    def emit(self, start: Val, count: Val, past: Val) -> None:
        k, head = self.k, self.block.head
        rest = count % STEP
        is_half = (rest > 0) & (rest <= HALF)
        with k.loop(0, self.block.high) as r:
            line, row = head.scores.at(r * KEYS), self.block.first + r
            bias = None if self.memory is None else self._bias_of(row, start)
            tops = [k.var(k.const(-math.inf, f32, HALF)) for _ in range(2)]
            for vectors in k.blocks(count, HALF, unroll=2):
                for row_max, t in zip(tops, vectors, strict=False):
                    s = line.load(t.index, HALF)
                    adjusted = t.keep(self._adjusted(s, bias, t, row + past - start), -math.inf)
                    if adjusted is not s:
                        line.store(t.index, adjusted)
                    row_max.set(k.max(row_max, adjusted))
            with k.when(is_half):  # the second half of the last K-step has no keys
                line.store(count - rest + HALF, k.const(-math.inf, f32, HALF))
            largest = k.max(tops[0], tops[1].get()).max()
            head.safe_max.store(r, k.max(head.row_max.load(r), largest))
        for half in range(2):
            old, new = (at.load(half * HALF, HALF) for at in (head.row_max, head.safe_max))
            safe_max = k.select(new.eq(-math.inf), 0.0, new)
            head.correction.store(half * HALF, softmax_exp(k, old - safe_max))
            head.safe_max.store(half * HALF, safe_max)
            head.row_max.store(half * HALF, new)

    def _adjusted(self, s: Val, bias: Buf | None, t: Any, last: Val) -> Val:
        """Scores after softcap, mask and causality.

        ``last`` is the last key that causality lets the row see, relative to the block's first key.
        """
        k = self.k
        if self.softcap:
            s = functions.tanh(k, s / self.softcap) * self.softcap
        if bias is not None:
            s = s + self._bias(bias, t)
        if self.causal:
            s = k.select(k.iota(i32, HALF) > k.cast(last - t.index, i32), k.const(-math.inf, f32, HALF), s)
        return s

    def _bias(self, memory: Buf, t: Any) -> Val:
        k = self.k
        if self.mask == "rows":
            v = memory.load(t)
        else:
            assert self.args is not None
            v = memory.gather((k.iota(lanes=HALF) + t.index) * self.args.k, t.mask)
        return k.select(v, k.const(0.0, f32, HALF), -math.inf) if v.dtype is bool_ else v
