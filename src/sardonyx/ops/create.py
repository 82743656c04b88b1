"""Operators that create tensors from shapes and constants: Constant, ConstantOfShape, EyeLike, Range, Shape, Size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidArgument
from sardonyx.ir.tensor import Tensor
from sardonyx.ops.axes import Array, ints, scalar
from sardonyx.ops.limits import check_elements
from sardonyx.ops.registry import op


@op("Constant")
def constant(
    *,
    value: Tensor | None = None,
    sparse_value: Tensor | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Array:
    """The only given attribute; a sparse value arrives as a dense one."""
    if value is not None:
        return value.numpy()
    if sparse_value is not None:
        return sparse_value.numpy()
    for given, dtype in (
        (value_float, np.float32), (value_floats, np.float32), (value_int, np.int64), (value_ints, np.int64),
        (value_string, object), (value_strings, object),
    ):  # fmt: skip
        if given is not None:
            return np.array(given, dtype)
    raise InvalidArgument("Constant has no value")


@op("ConstantOfShape")
def constant_of_shape(shape: Array, *, value: Tensor | None = None) -> Array:
    sizes = ints(shape)
    if any(d < 0 for d in sizes):
        raise InvalidArgument("ConstantOfShape: a dimension is negative", got=sizes)
    fill = np.zeros(1, np.float32) if value is None else value.numpy().reshape(-1)
    check_elements(math.prod(sizes), fill.dtype, "the result of ConstantOfShape")
    return np.full(sizes, fill[0], fill.dtype)


@op("EyeLike")
def eye_like(x: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    if x.ndim != 2:
        raise InvalidArgument("EyeLike needs a matrix", got=f"shape {list(x.shape)}")
    rows, columns = x.shape
    k = max(-rows, min(columns, k))
    return np.eye(rows, columns, k).astype(x.dtype if dtype is None else dtypes.of_onnx(dtype).numpy)


@op("Range")
def range_(start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Array:
    """start + i * delta, computed in ``stash_type`` if the tensors are f16 or bf16."""
    dtype = start.dtype
    low, high, step = (scalar(v, "Range: start, limit and delta") for v in (start, limit, delta))
    if step == 0 or not all(map(math.isfinite, (low, high, step))):
        raise InvalidArgument("Range needs finite bounds and a delta other than 0", got=f"({low}, {high}, {step})")
    from fractions import Fraction

    count = max(math.ceil((Fraction(high) - Fraction(low)) / Fraction(step)), 0)
    check_elements(count, dtype, "the result of Range")
    narrow = dtypes.of_numpy(dtype).is_float and dtype.itemsize < 4
    compute = dtypes.of_onnx(stash_type).numpy if narrow else dtype
    steps: Array = np.arange(count).astype(compute) * compute.type(step) + compute.type(low)
    return steps.astype(dtype, copy=False)


@op("Shape")
def shape(x: Array, *, start: int = 0, end: int | None = None) -> Array:
    return np.array(x.shape[start:end], np.int64)


@op("Size")
def size(x: Array) -> Array:
    return np.array(x.size, np.int64)
