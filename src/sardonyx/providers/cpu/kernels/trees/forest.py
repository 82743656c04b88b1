"""Decision forests: a row descends several trees at a time, so that their dependent loads overlap."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Forest
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i32, i64, u8
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step

UNROLL = 8
"""Trees that a row descends together."""
START = {"sum": 0.0, "mean": 0.0, "min": math.inf, "max": -math.inf}

COMPARE: dict[str, Callable[[Val, Val], Val]] = {
    "le": Val.__le__, "lt": Val.__lt__, "ge": Val.__ge__, "gt": Val.__gt__, "eq": Val.eq, "ne": Val.ne,
}  # fmt: skip


@dataclass(frozen=True)
class ForestConfig:
    """The compile-time configuration of ``forest``."""

    x: DType
    split: DType
    out: DType
    mode: str
    combine: str
    has_tracks: bool


def steps(group: Forest, analysis: Analysis) -> list[Step]:
    is_tracked = group.tracks is not None
    config = ForestConfig(group.x.dtype, group.splits.dtype, group.out.dtype, group.mode, group.combine, is_tracked)
    memory = {name: getattr(group, name) for name in ("x", "roots", "features", "splits", "children", "weights", "out")}
    if is_tracked:
        memory["tracks"] = group.tracks
    trees, (leaves, targets) = group.roots.shape[0], group.weights.shape
    numbers = {
        "rows": group.x.shape[0], "trees": trees, "leaves": leaves, "targets": targets,
        "x_row": group.x.strides[0], "x_col": group.x.strides[1], "out_row": group.out.strides[0],
    }  # fmt: skip
    work = expressible(dims.product((100, trees, group.x.shape[0])))
    args: dict[str, Ref | Known | float] = {**{name: Ref.of(view) for name, view in memory.items()}, **numbers}
    return [Step(forest(config=config), args, frozenset(("out",)), group.nodes, 0, work)]


def _params(config: ForestConfig) -> Params:
    tables = {"roots": (i32,), "features": (i32,), "splits": (config.split,), "children": (i32,)}
    numbers = ("rows", "trees", "leaves", "targets", "x_row", "x_col", "out_row")
    tracks = {"tracks": (u8,)} if config.has_tracks else {}
    return {
        "x": (config.x,), **tables, **tracks, "weights": (config.out,), "out": (config.out,),
        **dict.fromkeys(numbers, i64),
    }  # fmt: skip


@kernel(_params)
def forest(
    k: Kernel, x: Buf, roots: Buf, features: Buf, splits: Buf, children: Buf, weights: Buf, out: Buf,
    rows: Val, trees: Val, leaves: Val, targets: Val, x_row: Val, x_col: Val, out_row: Val,
    *, config: ForestConfig, tracks: Buf | None = None,
) -> None:  # fmt: skip
    reached = k.local(i64, UNROLL)

    def next_node(at: Val, row: Buf) -> Val:
        """The next node on the path; a leaf is its own child."""
        value = row.load(k.cast(features.load(at), i64) * x_col)
        value = value if value.dtype.is_float else k.cast(value, f32)
        split = k.cast(splits.load(at), value.dtype)
        holds = COMPARE[config.mode](value, split)
        if tracks is not None:
            holds = holds | (value.ne(value) & tracks.load(at).ne(0))
        return k.cast(children.load(at * 2 + k.cast(holds, i64)), i64)

    def combined(total: Val, weight: Val) -> Val:
        if config.combine in ("sum", "mean"):
            return total + weight
        return k.min(weight, total) if config.combine == "min" else k.max(weight, total)

    with k.share(rows) as n:
        row, result = x.at(n * x_row), out.at(n * out_row)
        for t in k.tiles(targets):
            result.store(t, k.const(START[config.combine], config.out))
        with k.loop(0, trees, UNROLL) as first:
            at = [k.var(k.cast(roots.load(k.min(first + i, trees - 1)), i64)) for i in range(UNROLL)]
            going = k.var(1)
            with k.loop_while(lambda: going.get().ne(0)):
                top = k.const(0)
                for node in at:
                    node.set(next_node(node.get(), row))
                    top = k.max(top, node.get())
                going.set(k.cast(top >= leaves, i64))
            for i, node in enumerate(at):
                reached.store(i, node.get())
            with k.loop(0, k.min(trees - first, UNROLL)) as tree:
                weight = weights.at(reached.load(tree) * targets)
                for t in k.tiles(targets):
                    result.store(t, combined(result.load(t), weight.load(t)))
        if config.combine == "mean":
            count = k.cast(trees, config.out)
            for t in k.tiles(targets):
                result.store(t, result.load(t) / count)
