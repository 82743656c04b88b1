"""Small tensors of numbers that follow from the shapes, and ranges."""

from __future__ import annotations

from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Fill
from sardonyx.providers.cpu.kernels.common.loop_nest import Nest, product, store, stride_class
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64, register_dtype
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

PIECE = 4096
"""Elements of a range that a thread writes at a time."""


def steps(group: Fill, target: Target) -> list[Step]:
    out = group.out
    axes = Nest.of(out.shape, [out]).axes
    assert len(axes) <= 1, "the elements of a fill lie in even steps"
    stride = axes[0].strides[0] if axes else 1
    args: dict[str, Ref | Known | float] = {"out": Ref.of(out), "stride": stride}
    if group.start is not None and group.step is not None:
        spec = count_up(dtype=out.dtype, kind=stride_class(stride), is_same=group.step == 0)
        args |= {"start": group.start, "step": group.step, "count": product(out.shape)}
    else:
        spec = write(dtype=out.dtype, count=len(group.values))
        args |= {f"v{i}": v for i, v in enumerate(group.values)}
    return [Step(spec, args, frozenset(("out",)), group.nodes)]


def _params(dtype: DType, count: int) -> Params:
    return {"out": (dtype,), "stride": i64, **{f"v{i}": i64 for i in range(count)}}


@kernel(_params)
def write(k: Kernel, out: Buf, stride: Val, *, dtype: DType, count: int, **values: Any) -> None:
    """The numbers one after the other; the first thread writes all of them."""
    with k.when(k.thread.eq(0)):
        for i in range(count):
            out.store(stride * i, k.cast(values[f"v{i}"], register_dtype(dtype)))


@kernel(out=("dtype",), stride=i64, start=i64, step=i64, count=i64)
def count_up(
    k: Kernel, out: Buf, stride: Val, start: Val, step: Val, count: Val, *, dtype: DType, kind: str, is_same: bool
) -> None:
    """start + i * step, in int64, converted to the type of the result; or start everywhere."""
    with k.share((count + (PIECE - 1)) // PIECE) as piece:
        first = piece * PIECE
        for tile in k.tiles(k.min(count - first, PIECE)):
            numbers = k.splat(start, tile.lanes)
            if not is_same:
                numbers = (k.iota(i64, tile.lanes) + (tile.index + first)) * step + start
            store(out.at(first * stride), tile, kind, stride, k.cast(numbers, register_dtype(dtype)))
