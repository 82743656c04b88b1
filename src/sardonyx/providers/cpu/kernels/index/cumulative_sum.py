"""Cumulative sums and products: in order along one axis, adjacent elements of another axis in the lanes."""

from __future__ import annotations

from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import CumulativeSum, View
from sardonyx.providers.cpu.kernels.common.loop_nest import Axis, Nest, NestArgs, load, nest_loop, store, stride_class
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64, register_dtype
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import product
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.records import Record, replace

CHUNK = 64
"""Adjacent elements whose sums are in registers together, so that whole cache lines are read once."""


class CumulativeSumConfig(Record):
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
    count, along = group.x.shape[group.axis], (group.x.strides[group.axis], group.out.strides[group.axis])
    args = CumulativeSumArgs[Ref, Known](Ref.of(group.x), Ref.of(group.out), count, *along, NestArgs.over(2, axes))
    moved = product((2 * group.x.dtype.bits // 8, *group.x.shape))
    return [Step(cumulative_sum(config=config), flat(args=args), frozenset(("out",)), group.nodes, nbytes=moved)]


def _without(view: View, axis: int) -> View:
    shape, strides = list(view.shape), list(view.strides)
    del shape[axis], strides[axis]
    return replace(view, shape=tuple(shape), strides=tuple(strides))


class CumulativeSumArgs(Arguments[M, N]):
    """The parameters of ``cumulative_sum``; the nest has the axes other than the summed one."""

    is_inline: ClassVar[bool] = True
    x: M
    out: M
    count: N
    along_x: N
    along_out: N
    nest: NestArgs[M, N]


def _params(config: CumulativeSumConfig) -> Params:
    x, nest = Memory(config.dtype), NestArgs.declared((), config.axes, views=2)
    return {"args": CumulativeSumArgs[Memory, DType](x, x, i64, i64, i64, nest)}


@kernel(_params)
def cumulative_sum(k: Kernel, args: CumulativeSumArgs[Buf, Val], *, config: CumulativeSumConfig) -> None:
    last, extents, strides = config.axes - 1, args.nest.extents, args.nest.strides
    chunks = (extents[last] + (CHUNK - 1)) // CHUNK
    dtype = register_dtype(config.dtype)
    with nest_loop(k, [*extents[:last], chunks], [[*s[:last], s[last] * CHUNK] for s in strides]) as (index, moved):
        x, out = (buf.at(at) for buf, at in zip((args.x, args.out), moved, strict=True))
        lanes = k.lanes * 32 // max(dtype.bits, 32)
        unroll = CHUNK // lanes if config.kinds == ("1", "1") else 1
        for block in k.blocks(k.min(extents[last] - index[-1] * CHUNK, CHUNK), lanes, unroll=unroll):
            totals = [k.var(k.const(config.kind == "prod", dtype, tile.lanes)) for tile in block]
            with k.loop(0, args.count) as i:
                for tile, total in zip(block, totals, strict=True):
                    before = total.get()
                    value = load(x.at(i * args.along_x), tile, config.kinds[0], strides[0][last])
                    v = k.value(value, dtype, tile.lanes)
                    after = before + v if config.kind == "sum" else before * v
                    total.set(after)
                    result = before if config.exclusive else after
                    store(out.at(i * args.along_out), tile, config.kinds[1], strides[1][last], result)
