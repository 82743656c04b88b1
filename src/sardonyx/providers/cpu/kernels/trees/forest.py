"""Decision forests: a row descends several trees at a time, so that their dependent loads overlap.

Rows without NaN need not look up where NaN goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Forest
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bool_, f32, i32, i64, u8
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.records import Record

UNROLL = 8
"""Trees that a row descends together."""
START = {"sum": 0.0, "mean": 0.0, "min": math.inf, "max": -math.inf}

COMPARE: dict[str, Callable[[Val, Val], Val]] = {
    "le": Val.__le__, "lt": Val.__lt__, "ge": Val.__ge__, "gt": Val.__gt__, "eq": Val.eq, "ne": Val.ne,
}  # fmt: skip


class ForestConfig(Record):
    """The compile-time configuration of ``forest``."""

    x: DType
    split: DType
    out: DType
    mode: str
    combine: str
    has_tracks: bool
    is_contiguous: bool
    """The elements of a row are adjacent."""


def steps(group: Forest, analysis: Analysis) -> list[Step]:
    is_tracked = group.tracks is not None
    config = ForestConfig(
        group.x.dtype,
        group.splits.dtype,
        group.out.dtype,
        group.mode,
        group.combine,
        is_tracked,
        group.x.strides[1] == 1,
    )
    trees, (leaves, targets) = group.roots.shape[0], group.weights.shape
    args = ForestArgs[Ref, Known](
        x=Ref.of(group.x), roots=Ref.of(group.roots), features=Ref.of(group.features), splits=Ref.of(group.splits),
        children=Ref.of(group.children), tracks=None if group.tracks is None else Ref.of(group.tracks),
        weights=Ref.of(group.weights), out=Ref.of(group.out), rows=group.x.shape[0], trees=trees, leaves=leaves,
        targets=targets, x_row=group.x.strides[0], x_col=group.x.strides[1], out_row=group.out.strides[0],
        columns=group.x.shape[1],
    )  # fmt: skip
    work = expressible(dims.product((100, trees, group.x.shape[0])))
    return [Step(forest(config=config), flat(args=args), frozenset(("out",)), group.nodes, 0, work)]


class ForestArgs(Arguments[M, N]):
    """The parameters of ``forest``."""

    is_inline: ClassVar[bool] = True
    x: M
    roots: M
    features: M
    splits: M
    children: M
    tracks: M | None
    """Which nodes take NaN for true, if any does."""
    weights: M
    out: M
    rows: N
    trees: N
    leaves: N
    """The number of the first node that is a leaf."""
    targets: N
    x_row: N
    x_col: N
    out_row: N
    columns: N


def _params(config: ForestConfig) -> Params:
    x, split, out = Memory(config.x), Memory(config.split), Memory(config.out)
    tables, tracks = (Memory(i32), Memory(i32), split, Memory(i32)), Memory(u8) if config.has_tracks else None
    return {"args": ForestArgs[Memory, DType](x, *tables, tracks, out, out, *[i64] * 8)}


@kernel(_params)
def forest(k: Kernel, args: ForestArgs[Buf, Val], *, config: ForestConfig) -> None:
    trees, targets = args.trees, args.targets
    reached = k.local(i64, UNROLL)

    def next_node(at: Val, row: Buf, tracks: Buf | None) -> Val:
        """The next node on the path; a leaf is its own child."""
        column = k.cast(args.features.load(at), i64)
        value = row.load(column if config.is_contiguous else column * args.x_col)
        value = value if value.dtype.is_float else k.cast(value, f32)
        split = k.cast(args.splits.load(at), value.dtype)
        holds = COMPARE[config.mode](value, split)
        if tracks is not None:
            holds = holds | (value.ne(value) & tracks.load(at).ne(0))
        return k.cast(args.children.load(at * 2 + k.cast(holds, i64)), i64)

    def combined(total: Val, weight: Val) -> Val:
        if config.combine in ("sum", "mean"):
            return total + weight
        return k.min(weight, total) if config.combine == "min" else k.max(weight, total)

    def holds_nan(row: Buf) -> Val:
        found = k.var(k.const(False, bool_))
        for t in k.tiles(args.columns):
            value = row.load(t)
            found.set(found.get() | value.ne(value).any())
        return found.get()

    def descend(row: Buf, result: Buf, tracks: Buf | None) -> None:
        with k.loop(0, trees, UNROLL) as first:
            at = [k.var(k.cast(args.roots.load(k.min(first + i, trees - 1)), i64)) for i in range(UNROLL)]
            going = k.var(1)
            with k.loop_while(lambda: going.get().ne(0)):
                top = k.const(0)
                for node in at:
                    node.set(next_node(node.get(), row, tracks))
                    top = k.max(top, node.get())
                going.set(k.cast(top >= args.leaves, i64))
            for i, node in enumerate(at):
                reached.store(i, node.get())
            with k.loop(0, k.min(trees - first, UNROLL)) as tree:
                weight = args.weights.at(reached.load(tree) * targets)
                for t in k.tiles(targets):
                    result.store(t, combined(result.load(t), weight.load(t)))

    with k.share(args.rows) as n:
        row, result = args.x.at(n * args.x_row), args.out.at(n * args.out_row)
        for t in k.tiles(targets):
            result.store(t, k.const(START[config.combine], config.out))
        if args.tracks is None or not config.is_contiguous:
            descend(row, result, args.tracks)
        else:
            has_nan = holds_nan(row)
            with k.when(has_nan, likely=False):
                descend(row, result, args.tracks)
            with k.when(~has_nan):
                descend(row, result, None)
        if config.combine == "mean":
            count = k.cast(trees, config.out)
            for t in k.tiles(targets):
                result.store(t, result.load(t) / count)
