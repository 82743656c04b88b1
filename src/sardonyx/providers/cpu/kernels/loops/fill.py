"""Small tensors whose values follow from the shapes, and ranges."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Fill
from sardonyx.providers.cpu.kernels.common.loop_nest import Nest, store, stride_class
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat, named
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64, register_dtype
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import product
from sardonyx.providers.cpu.program.steps import Ref, Step

CHUNK = 4096
"""Elements of a range that are one work item."""


def steps(group: Fill, analysis: Analysis) -> list[Step]:
    out = group.out
    axes = Nest.of(out.shape, [out]).axes
    assert len(axes) <= 1, "the elements of a fill are evenly spaced"
    stride = axes[0].strides[0] if axes else 1
    args: dict[str, Ref | Known | float] = {"out": Ref.of(out), "stride": stride}
    if group.start is not None and group.step is not None:
        spec = fill_range(dtype=out.dtype, kind=stride_class(stride), is_constant=group.step == 0)
        args |= {"start": group.start, "step": group.step, "count": product(out.shape)}
    else:
        spec = fill_values(dtype=out.dtype, count=len(group.values))
        args |= flat(values=FillValues[Ref, "Known | float"](tuple(group.values)))
    return [Step(spec, args, frozenset(("out",)), group.nodes)]


class FillValues(Arguments[M, N]):
    """The values that ``fill_values`` stores."""

    is_inline: ClassVar[bool] = True
    each: tuple[N, ...] = field(metadata=named("v"))


def _params(dtype: DType, count: int) -> Params:
    return {"out": (dtype,), "stride": i64, "values": FillValues[Memory, DType]((i64,) * count)}


@kernel(_params)
def fill_values(k: Kernel, out: Buf, stride: Val, values: FillValues[Buf, Val], *, dtype: DType, count: int) -> None:
    """Stores each value; the first thread writes all of them."""
    with k.when(k.thread.eq(0)):
        for i, value in enumerate(values.each):
            out.store(stride * i, k.cast(value, register_dtype(dtype)))


@kernel(out=("dtype",), stride=i64, start=i64, step=i64, count=i64)
def fill_range(
    k: Kernel, out: Buf, stride: Val, start: Val, step: Val, count: Val, *, dtype: DType, kind: str, is_constant: bool
) -> None:
    """start + i * step, in int64, converted to the element type; ``is_constant``: start everywhere."""
    with k.share((count + (CHUNK - 1)) // CHUNK) as chunk:
        first = chunk * CHUNK
        for tile in k.tiles(k.min(count - first, CHUNK)):
            numbers = k.splat(start, tile.lanes)
            if not is_constant:
                numbers = (k.iota(i64, tile.lanes) + (tile.index + first)) * step + start
            store(out.at(first * stride), tile, kind, stride, k.cast(numbers, register_dtype(dtype)))
