"""Exporters' ways of writing means, variances and roots."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.ir.graph import Node, Value
from sardonyx.optimize.fusion import require
from sardonyx.optimize.fusions.checks import number, sizes
from sardonyx.optimize.pattern import Match, attribute


def any_axes(axes: list[int]) -> bool:
    return True


def mean(op: Any, x: Any, name: str) -> Any:
    """The mean over constant axes with keepdims; tf2onnx writes the one over the last of three axes as pooling."""
    reduced = op.ReduceMean(x, axes=any_axes, keepdims=1, name=name)
    return op.either(reduced, op.GlobalAveragePool(x, name=name))


def square(op: Any, x: Any) -> Any:
    return op.either(op.Pow(x, 2.0), x * x)


def inverse_root(op: Any, variance: Any, eps: Any) -> tuple[Any, Any]:
    """1 / sqrt(variance + eps) in exporters' forms."""
    power = op.Add(variance, eps, name="power")
    root = op.either(op.Sqrt(power), op.Pow(power, 0.5))
    return root, op.either(op.Reciprocal(root), 1.0 / root, op.Pow(power, -0.5))


def moments(op: Any, x: Any, share: Any, count: Any, keepdims: int) -> tuple[Any, Any]:
    """Mean and variance as flax computes them: max(mean(x^2) - mean(x)^2, 0), with means often written as sums."""

    def average(of: Any, name: str) -> Any:
        over: Any = {"axes": any_axes, "keepdims": keepdims, "name": name}
        total = op.ReduceSum(of, **over)
        return op.either(op.ReduceMean(of, **over), total * share, total / count)

    centre = average(x, "mean")
    spread = average(square(op, x), "variance") - square(op, centre)
    clipped = (op.Max(spread, 0.0), op.Relu(spread), op.Clip(spread, 0.0, None), op.Clip(spread, 0.0))
    return centre, op.either(*clipped, spread)


def with_axes_restored(op: Any, x: Any, shape: Any) -> Any:
    """A reduced value with its axes restored; ``require_axes_back`` verifies that they are."""
    return op.either(op.Reshape(x, shape), op.Unsqueeze(x, shape))


def one_pass(op: Any, x: Any, eps: Any, scale: Any, parts: tuple[Any, Any], *shapes: Any) -> tuple[Any, ...]:
    """A value standardized by its mean and variance, whose axes are restored by the given shapes, if any."""
    centre, spread = (
        (with_axes_restored(op, part, shape) for part, shape in zip(parts, shapes, strict=True)) if shapes else parts
    )
    root, inverse = inverse_root(op, spread, eps)
    return standardized(op, op.Sub(x, centre, name="centred"), root, inverse, scale)


def standardized(op: Any, centred: Any, root: Any, inverse: Any, scale: Any) -> tuple[Any, ...]:
    """A centred value divided by a root, with or without a scale."""
    return centred / root, centred * inverse, centred * op.either(inverse * scale, scale / root)


def axes_of(node: Node) -> list[int]:
    """The constant axes of a reduction, sorted and non-negative."""
    x, axes = node.inputs[0], node.input(1)
    assert x is not None
    require(x.rank, "the rank is not known, or 0", x)
    assert x.rank is not None
    if axes is None:
        return list(range(2, x.rank))
    return sorted({int(a) % x.rank for a in axes.numpy().reshape(-1)})


def require_axes_back(v: Value | None, x: Value, axes: list[int]) -> None:
    """Refuse unless ``v`` has the shape of ``x`` with size 1 along ``axes``, as if reduced with keepdims."""
    assert v is not None and x.shape is not None
    want = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
    require(None not in want and v.shape == want, "the reduced axes are not known to be back in their places", v)


def require_mean(node: Node, m: Match) -> None:
    """Refuse unless a sum is divided by the number of its terms."""
    if node.onnx_op != "ReduceSum":
        return
    (x, *_), axes = node.inputs, axes_of(node)
    assert x is not None
    known = [sizes(x, axis, axis + 1) for axis in axes]
    require(None not in known, "the number of terms is not known", x)
    wanted = float(np.prod([size for size in known if size is not None]))
    share, count = m.values.get("share"), m.values.get("count")
    if count is not None:
        divisor = number(count, "the divisor")
    else:
        assert share is not None
        divisor = 1 / (number(share, "the factor") or np.inf)
    require(abs(divisor - wanted) <= 1e-6 * wanted, f"a sum is not divided by its {wanted:.0f} terms", count or share)


def keeps_axes(node: Node) -> bool:
    return bool(attribute(node, "keepdims") != 0)
