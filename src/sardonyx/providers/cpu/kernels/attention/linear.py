"""Linear attention: every column of the state is an independent recurrence; a work item is a vector of columns.

The state's columns stay in scratch memory, one vector for each element of a key, while all tokens are processed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import LinearAttention, View
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, Var, f32, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible, product
from sardonyx.providers.cpu.program.steps import Ref, Step


class Operands(Arguments[M, N]):
    """The memory of each operand, None where it is absent."""

    is_inline: ClassVar[bool] = True
    q: M
    k: M
    v: M
    out: M
    present: M
    past: M | None
    decay: M | None
    beta: M | None


class Strides(Arguments[M, N]):
    """The strides of each operand; a contiguous last axis has none."""

    q: tuple[N, ...]
    k: tuple[N, ...]
    v: tuple[N, ...]
    out: tuple[N, ...]
    present: tuple[N, ...]
    past: tuple[N, ...]
    decay: tuple[N, ...]
    beta: tuple[N, ...]


_AXES = (3, 3, 3, 3, 3, 3, 4, 3)
"""The number of strides of each operand."""


class LinearAttentionArgs(Arguments[M, N]):
    """The parameters of ``linear_attention``."""

    is_inline: ClassVar[bool] = True
    memory: Operands[M, N]
    batch: N
    heads: N
    shared: N
    """Heads of q that share one of k and v."""
    tokens: N
    width: N
    columns: N
    strides: Strides[M, N]
    scale: N


def _params(*, dtypes: tuple[DType | None, ...]) -> Params:
    """``dtypes`` are those of the operands, None for absent ones."""
    q, k, v, out, present, past, decay, beta = (None if dtype is None else Memory(dtype) for dtype in dtypes)
    assert q and k and v and out and present
    memory = Operands[Memory, DType](q, k, v, out, present, past, decay, beta)
    strides = [() if dtype is None else (i64,) * axes for dtype, axes in zip(dtypes, _AXES, strict=True)]
    return {"args": LinearAttentionArgs(memory, i64, i64, i64, i64, i64, i64, Strides(*strides), f32)}


def steps(group: LinearAttention, analysis: Analysis) -> list[Step]:
    views = group.q, group.k, group.v, group.out, group.present, group.past, group.decay, group.beta
    batch, heads, tokens, width = group.q.shape
    key_heads, columns = group.k.shape[1], group.v.shape[3]
    args: LinearAttentionArgs[Ref, Known | float] = LinearAttentionArgs(
        Operands(
            Ref.of(group.q), Ref.of(group.k), Ref.of(group.v), Ref.of(group.out), Ref.of(group.present),
            _ref(group.past), _ref(group.decay), _ref(group.beta),
        ), batch, key_heads,
        expressible(dims.floordiv(heads, key_heads)), tokens, width, columns,
        Strides(*(() if view is None else view.strides[:axes] for view, axes in zip(views, _AXES, strict=True))),
        group.scale,
    )  # fmt: skip
    spec = linear_attention(dtypes=tuple(None if view is None else view.dtype for view in views))
    scratch = expressible(dims.mul(width, analysis.isa.lanes * 4))
    flops = expressible(dims.mul(4, product((batch, heads, tokens, width, columns))))
    return [Step(spec, flat(args=args), frozenset(("out", "present")), group.nodes, scratch, flops)]


def _ref(view: View | None) -> Ref | None:
    return None if view is None else Ref.of(view)


@kernel(_params)
def linear_attention(k: Kernel, args: LinearAttentionArgs[Buf, Val], *, dtypes: tuple[DType | None, ...]) -> None:
    blocks = (args.columns + (k.lanes - 1)) // k.lanes
    with k.share(args.batch * args.heads * blocks) as tile:
        b, h, first = tile // (args.heads * blocks), tile // blocks % args.heads, tile % blocks * k.lanes
        columns = _Columns(k, args, b, h, first)
        for t in k.tiles(k.min(args.columns - first, k.lanes)):
            columns.begin(t)
            with k.loop(0, args.tokens) as i:
                columns.update(i, t)
                with k.loop(0, args.shared) as r:
                    columns.read(i, r, t)
            columns.end(t)


class _Columns:
    """The recurrence of a vector of columns; their state is in scratch memory."""

    def __init__(self, k: Kernel, args: LinearAttentionArgs[Buf, Val], b: Val, h: Val, first: Val) -> None:
        self.k, self.args, self.b, self.h, self.first = k, args, b, h, first
        self.lanes, self.state = k.lanes, k.scratch(f32)

    def _at(self, memory: Buf, strides: Sequence[Val], *index: Val) -> Buf:
        offset = self.k.const(0)
        for i, stride in zip(index, strides, strict=False):
            offset = offset + i * stride
        return memory.at(offset)

    def begin(self, t: Tile) -> None:
        """The state before the first token."""
        k, lanes, past, strides = self.k, self.lanes, self.args.memory.past, self.args.strides.past
        with k.loop(0, self.args.width) as d:
            if past is None:
                state = k.zeros(f32, lanes)
            else:
                state = self._at(past, strides, self.b, self.h, d).at(self.first).load(t)
            self.state.store(d * lanes, state)

    def update(self, i: Val, t: Tile) -> None:
        """The state after token ``i``: decayed, and with what the token writes."""
        k, lanes, state, memory, strides = self.k, self.lanes, self.state, self.args.memory, self.args.strides
        keys = self._at(memory.k, strides.k, self.b, self.h, i)
        retrieved = self._decay(keys, i)
        write = self._at(memory.v, strides.v, self.b, self.h, i).at(self.first).load(t)
        if memory.beta is not None:
            beta = self._at(memory.beta, strides.beta, self.b, self.h, i)
            write = (write - retrieved.get()) * k.splat(beta.load(), lanes)
        with k.loop(0, self.args.width) as d:
            state.store(d * lanes, k.fma(k.splat(keys.load(d), lanes), write, state.load(d * lanes, lanes)))

    def _decay(self, keys: Buf, i: Val) -> Var:
        """Decay the state; returns what the token's key retrieves from it (k S) if there is a ``beta``, else zeros."""
        k, lanes, state, memory = self.k, self.lanes, self.state, self.args.memory
        retrieved = k.var(k.zeros(f32, lanes))
        if memory.decay is None and memory.beta is None:
            return retrieved
        with k.loop(0, self.args.width) as d:
            row = state.load(d * lanes, lanes)
            if memory.decay is not None:
                decay = self._at(memory.decay, self.args.strides.decay, self.b, self.h, i, d)
                row = row * k.splat(decay.load(), lanes)
                state.store(d * lanes, row)
            if memory.beta is not None:
                retrieved.set(k.fma(k.splat(keys.load(d), lanes), row, retrieved.get()))
        return retrieved

    def read(self, i: Val, r: Val, t: Tile) -> None:
        """The result of one of the heads that share this state."""
        k, lanes, memory, strides, head = (
            self.k,
            self.lanes,
            self.args.memory,
            self.args.strides,
            self.h * self.args.shared + r,
        )
        query = self._at(memory.q, strides.q, self.b, head, i)
        out = self._at(memory.out, strides.out, self.b, head, i).at(self.first)
        total = k.var(k.zeros(f32, lanes))
        with k.loop(0, self.args.width) as d:
            total.set(k.fma(k.splat(query.load(d), lanes), self.state.load(d * lanes, lanes), total.get()))
        out.store(t, total.get() * self.args.scale)

    def end(self, t: Tile) -> None:
        """Store the state after the last token."""
        k, present, strides = self.k, self.args.memory.present, self.args.strides.present
        with k.loop(0, self.args.width) as d:
            self._at(present, strides, self.b, self.h, d).at(self.first).store(
                t, self.state.load(d * self.lanes, self.lanes)
            )
