"""Small tables computed from their indices: constants if the sizes are known, else filled by a loop in each run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.ir.scalar import Expr, Program, run_numpy, trace
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering

Number: TypeAlias = "Known | float | View"
"""A size, a real constant, or a single element in memory."""
Array = np.ndarray[Any, Any]
MAX_ELEMENTS = 1 << 20
"""The largest table that is stored as a constant."""


def table(
    low: Lowering, shape: Sequence[Known], fn: Callable[..., Expr], *numbers: Number, dtype: DType, **attributes: object
) -> View:
    """A table of ``shape`` with ``fn(emitter, *index, *numbers, **attributes)`` at every index.

    It is a constant if ``shape`` and ``numbers`` are known, else filled by a loop in each run.
    """
    program = trace(fn, (True,) * (len(shape) + len(numbers)), **attributes)
    sizes = tuple(d for d in shape if isinstance(d, int))
    known = tuple(x for x in numbers if isinstance(x, (int, float)))
    if len(sizes) == len(shape) and len(known) == len(numbers) and math.prod(sizes) <= MAX_ELEMENTS:
        return low.constant(_constant(program, sizes, known, dtype))
    out, body = low.temporary(dtype, shape), ExpressionBuilder()
    operands = [_column(low.indices(size), len(shape) - 1 - axis) for axis, size in enumerate(shape)]
    operands += [_operand(low, x) for x in numbers]
    args = [body.operand(low.fit(v, shape)) for v in operands]
    low.loop(shape, body, [(body.apply(program, *args, dtype=dtype), out)])
    return out


def tabulated(program: Program, shape: Sequence[int], numbers: Sequence[float], dtype: DType) -> Array:
    """The table of a program, computed by numpy."""
    index = np.meshgrid(*map(np.arange, shape), indexing="ij", sparse=True)
    given = (np.asarray(x, np.int64 if isinstance(x, int) else np.float64) for x in numbers)
    return np.broadcast_to(run_numpy(program, *index, *given), shape).astype(dtype.numpy)


@lru_cache(maxsize=256)
def _constant(program: Program, shape: tuple[int, ...], numbers: tuple[float, ...], dtype: DType) -> Tensor:
    return Tensor.of(tabulated(program, shape, numbers, dtype))


def _column(view: View, after: int) -> View:
    for _ in range(after):
        view = views.inserted(view, len(view.shape))
    return view


def _operand(low: Lowering, x: Number) -> View:
    if isinstance(x, View):
        return x
    return low.scalar(x, dtypes.f64) if isinstance(x, float) else low.number(x)
