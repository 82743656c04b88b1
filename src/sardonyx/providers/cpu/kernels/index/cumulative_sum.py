"""Cumulative sums and products: in order along one axis, adjacent elements of another axis in the lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.lower.groups import CumulativeSum, View
from sardonyx.providers.cpu.kernels.common.loop_nest import Axis, Nest, load, nest_loop, store, stride_class
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Val, i64, register_dtype
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import product
from sardonyx.providers.cpu.program.steps import Ref, Step

CHUNK = 64
"""Adjacent elements whose sums are in registers together, so that whole cache lines are read once."""


@dataclass(frozen=True)
class CumulativeSumConfig:
    """The compile-time configuration of ``cumulative_sum``."""

    dtype: DType
    axes: int
    """Axes other than the summed one; the last is that of vectors."""
    kinds: tuple[str, str]
    """Stride classes of input and output along the vector axis."""
    kind: str
    exclusive: bool


def steps(group: CumulativeSum, analysis: Analysis) -> list[Step]:
    views = [_without(v, group.axis) for v in (group.x, group.out)]
    axes = Nest.of(views[0].shape, views).ordered(1).axes or (Axis(1, (1, 1)),)
    kinds = stride_class(axes[-1].strides[0]), stride_class(axes[-1].strides[1])
    config = CumulativeSumConfig(group.x.dtype, len(axes), kinds, group.kind, group.exclusive)
    args: dict[str, Any] = {"x": Ref.of(group.x), "out": Ref.of(group.out), "count": group.x.shape[group.axis]}
    args |= {"along_x": group.x.strides[group.axis], "along_out": group.out.strides[group.axis]}
    args |= {f"n{i}": a.extent for i, a in enumerate(axes)}
    args |= {f"s{v}_{i}": a.strides[v] for v in range(2) for i, a in enumerate(axes)}
    moved = product((2 * group.x.dtype.bits // 8, *group.x.shape))
    return [Step(cumulative_sum(config=config), args, frozenset(("out",)), group.nodes, nbytes=moved)]


def _without(view: View, axis: int) -> View:
    shape, strides = list(view.shape), list(view.strides)
    del shape[axis], strides[axis]
    return replace(view, shape=tuple(shape), strides=tuple(strides))


def _params(config: CumulativeSumConfig) -> Params:
    return {
        "x": (config.dtype,),
        "out": (config.dtype,),
        **dict.fromkeys(("count", "along_x", "along_out"), i64),
        **{f"n{i}": i64 for i in range(config.axes)},
        **{f"s{v}_{i}": i64 for v in range(2) for i in range(config.axes)},
    }


@kernel(_params)
def cumulative_sum(
    k: Kernel, *, config: CumulativeSumConfig, count: Val, along_x: Val, along_out: Val, **given: Any
) -> None:
    last = config.axes - 1
    extents = [given[f"n{i}"] for i in range(config.axes)]
    strides = [[given[f"s{v}_{i}"] for i in range(config.axes)] for v in range(2)]
    chunks = (extents[last] + (CHUNK - 1)) // CHUNK
    dtype = register_dtype(config.dtype)
    with nest_loop(k, [*extents[:last], chunks], [[*s[:last], s[last] * CHUNK] for s in strides]) as (index, moved):
        x, out = (given[name].at(at) for name, at in zip(("x", "out"), moved, strict=True))
        lanes = k.lanes * 32 // max(dtype.bits, 32)
        unroll = CHUNK // lanes if config.kinds == ("1", "1") else 1
        for block in k.blocks(k.min(extents[last] - index[-1] * CHUNK, CHUNK), lanes, unroll=unroll):
            totals = [k.var(k.const(config.kind == "prod", dtype, tile.lanes)) for tile in block]
            with k.loop(0, count) as i:
                for tile, total in zip(block, totals, strict=True):
                    before = total.get()
                    value = load(x.at(i * along_x), tile, config.kinds[0], strides[0][last])
                    v = k.value(value, dtype, tile.lanes)
                    after = before + v if config.kind == "sum" else before * v
                    total.set(after)
                    result = before if config.exclusive else after
                    store(out.at(i * along_out), tile, config.kinds[1], strides[1][last], result)
