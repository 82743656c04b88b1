"""Fuses written-out normalizations: layer, RMS, instance and group norm.

The standardized core is first replaced by an operator with a scale of ones; a following factor and addend are folded in
later, and casts around it last, so that each form needs one pattern only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.axes import Perm, perm_of, permuted_const
from sardonyx.optimize.fusions.axes import inverse as inverse_perm
from sardonyx.optimize.fusions.checks import (
    fits_trailing,
    number,
    per_channel,
    require_float,
    result,
    same_shape,
    sizes,
)
from sardonyx.optimize.fusions.masks import typed
from sardonyx.optimize.fusions.norm_forms import (
    axes_of,
    inverse_root,
    keeps_axes,
    mean,
    moments,
    one_pass,
    require_axes_back,
    require_mean,
    square,
    standardized,
)
from sardonyx.optimize.pattern import Match, attribute

MAX_ONES = 1 << 20
"""Largest scale of ones that is created."""

NORMS = ("LayerNormalization", "RMSNormalization")


def trailing(node: Node) -> int:
    """The number of last axes that a reduction is over, if it is over these only."""
    x, axes = node.inputs[0], axes_of(node)
    assert x is not None and x.rank is not None
    require(axes == list(range(x.rank - len(axes), x.rank)) and axes, f"axes {axes} are not the last ones", x)
    return len(axes)


def ones(op: Builder, x: Value, count: int) -> Value:
    """A scale of ones for the last axes of ``x``."""
    shape = sizes(x, -count)
    require(shape is not None, "the normalized dimensions are not known numbers", x)
    require(np.prod(shape or ()) <= MAX_ONES, "the normalized dimensions are too large for a scale of ones", x)
    assert x.dtype is not None
    return op.const(np.ones(shape or (), x.dtype.numpy))


def is_ones(v: Value | None) -> bool:
    return v is not None and v.is_const and bool((v.numpy() == 1).all())


@fusion
class FuseLayerNorm(Fusion):
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps)  ->  LayerNormalization(x, 1), InstanceNormalization(x, 1, 0).

    Also with scale and bias multiplied out: x * (scale / root) + (bias - mean(x) * (scale / root)). Axes other than the
    last ones are transposed to the end and back. A variance written as mean(x^2) - mean(x)^2 is not fused: it loses
    precision if the mean is large, so the fused result would differ from the model's.
    """

    def pattern(
        self, op: Any, x: Any, eps: Any, scale: Any, bias: Any, share: Any, count: Any, shape: Any, shape2: Any
    ) -> Any:
        average = mean(op, x, "mean")
        centred = x - average
        root, inverse = inverse_root(op, mean(op, square(op, centred), "variance"), eps)
        factor = op.either(inverse * scale, scale / root, inverse)
        return (
            *standardized(op, centred, root, inverse, scale),
            x * factor + (bias - average * factor),
            (x * factor - average * factor) + bias,
            x * factor - average * factor,
            *one_pass(op, x, eps, scale, moments(op, x, share, count, keepdims=1)),
            *one_pass(op, x, eps, scale, moments(op, x, share, count, keepdims=0), shape, shape2),
        )

    def rewrite(self, op: Builder, m: Match) -> Any:
        eps = number(m.eps, "epsilon")
        scale, bias = m.values.get("scale"), m.values.get("bias")
        require_float(m.x)
        axes = axes_of(m.node("mean"))
        require(axes == axes_of(m.node("variance")), "mean and variance are over different axes", m.x)
        for name in ("mean", "variance"):
            require_mean(m.node(name), m)
        if not keeps_axes(m.node("mean")):
            for v in (m.node("centred").inputs[1], m.node("power").output):
                require_axes_back(v, m.x, axes)
        squared = m.node("variance").inputs[0]
        is_difference = squared is not None and squared.producer is not None and m.x in squared.producer.inputs
        why = "its variance is a difference of squares, which LayerNormalization rounds otherwise"
        require(not is_difference, why, m.x)
        if scale is None and bias is None and m.x.rank >= 4 and axes == list(range(2, m.x.rank)):
            channels = sizes(m.x, 1, 2)
            require(channels is not None, "the number of channels is not known", m.x)
            one, zero = (op.const(np.full(channels or (), n, m.x.dtype.numpy)) for n in (1, 0))
            return op.InstanceNormalization(m.x, one, zero, epsilon=eps)
        return _layer_norm(op, m.x, axes, scale, bias, eps)


def _layer_norm(op: Builder, x: Value, axes: list[int], scale: Value | None, bias: Value | None, eps: float) -> Value:
    """LayerNormalization over any axes of ``x``, between two Transposes unless they are the last ones."""
    require(axes, "it normalizes no axis", x)
    order = [axis for axis in range(x.rank or 0) if axis not in axes] + axes
    back = None if order == list(range(len(order))) else inverse_perm(order)
    moved = x if back is None else typed(op.Transpose(x, perm=order))
    if scale is None:
        scale = ones(op, moved, len(axes))
    else:
        scale = _trailing(op, _before(op, scale, back), moved, len(axes), "scale")
    if bias is not None:
        bias = _trailing(op, _before(op, bias, back), moved, len(axes), "bias")
    return _transposed(op, op.LayerNormalization(moved, scale, bias, axis=-len(axes), epsilon=eps), back)


def _before(op: Builder, v: Value, perm: Perm | None) -> Value:
    """An operand of a Transpose's result as one of the Transpose's input."""
    if perm is None:
        return v
    require(v.is_const and v.rank is not None and v.rank <= len(perm), "it is not a constant of that rank", v)
    return op.const(permuted_const(v, inverse_perm(perm), len(perm)))


@fusion
class FuseRMSNorm(Fusion):
    """x / sqrt(mean(x * x) + eps)  ->  RMSNormalization(x, 1)."""

    def pattern(self, op: Any, x: Any, eps: Any, scale: Any) -> Any:
        root, inverse = inverse_root(op, mean(op, square(op, x), "mean"), eps)
        return x / root, x * inverse, x * op.either(inverse * scale, scale / root)

    def rewrite(self, op: Builder, m: Match) -> Any:
        eps, scale = number(m.eps, "epsilon"), m.values.get("scale")
        require_float(m.x)
        count = trailing(m.node("mean"))
        require(scale is None or fits_trailing(scale, m.x, count), "scale does not fit the normalized axes", scale)
        return op.RMSNormalization(m.x, ones(op, m.x, count) if scale is None else scale, axis=-count, epsilon=eps)


@fusion
class FuseNormCast(Fusion):
    """Cast(norm(Cast(x, f32), scale, bias), type of x)  ->  norm(x, scale, bias), which computes in f32 anyway."""

    def pattern(self, op: Any, x: Any, scale: Any) -> Any:
        wide = op.Cast(x, to=dtypes.f32.onnx)
        return op.Cast(op.call("", NORMS, wide, scale, op.optional("bias"), stash_type=1, name="norm"))

    def rewrite(self, op: Builder, m: Match) -> Any:
        norm = m.node("norm")
        require(m.x.dtype in (dtypes.f16, dtypes.bf16), "the narrow type is not a half", m.x)
        require(result(m).dtype is m.x.dtype, "the result is cast to another type", result(m))
        parameters = [_narrow(op, v, m.x.dtype.numpy) for v in (m.scale, m.bias)]
        return op.call("", norm.op_type, m.x, *parameters, **norm.attrs)


def _narrow(op: Builder, v: Value | None, dtype: Any) -> Value | None:
    """A constant in a narrower type that represents all its elements."""
    if v is None:
        return None
    require(v.is_const, "it is not constant", v)
    array = v.numpy()
    require((array.astype(dtype).astype(array.dtype) == array).all(), "it would be rounded", v)
    return op.const(array.astype(dtype))


def _given(m: Match, name: str) -> Any:
    """The value of a variable of one of several patterns; None if the matching pattern lacks it."""
    return m.values.get(name)


@fusion
class FuseNormScale(Fusion):
    """norm(x, 1) * scale  ->  norm(x, scale), for layer, RMS and instance norm."""

    def pattern(self, op: Any, x: Any, one: Any, zero: Any, scale: Any) -> Any:
        layer = op.call("", NORMS, x, one, None, name="norm")
        instance = op.InstanceNormalization(x, one, zero, name="norm")
        return layer * scale, instance * scale, op.Transpose(layer, name="back") * scale

    def rewrite(self, op: Builder, m: Match) -> Any:
        norm, zero = m.node("norm"), _given(m, "zero")
        require(is_ones(m.one), "the normalization has a scale already", m.one)
        if norm.onnx_op == "InstanceNormalization":
            require(zero.is_const and not zero.numpy().any(), "the normalization has a bias already", zero)
            if fits_trailing(m.scale, m.x, m.x.rank - 2):
                return op.LayerNormalization(m.x, m.scale, axis=2, **norm.attrs)
            return op.InstanceNormalization(m.x, _channels(op, m.scale, m.x), zero, **norm.attrs)
        require(m.scale.dtype is m.x.dtype, "scale is of another type", m.scale)
        perm = _perm_back(m)
        scale = _trailing(op, _before(op, m.scale, perm), m.x, _axes_count(norm), "scale")
        return _transposed(op, op.call("", norm.op_type, m.x, scale, **norm.attrs), perm)


@fusion
class FuseNormBias(Fusion):
    """norm(x, scale) + bias  ->  norm(x, scale, bias), for layer and instance norm."""

    def pattern(self, op: Any, x: Any, scale: Any, zero: Any, bias: Any) -> Any:
        layer = op.LayerNormalization(x, scale, None, name="norm")
        instance = op.InstanceNormalization(x, scale, zero, name="norm")
        return layer + bias, instance + bias, op.Transpose(layer, name="back") + bias

    def rewrite(self, op: Builder, m: Match) -> Any:
        norm, zero = m.node("norm"), _given(m, "zero")
        if norm.onnx_op == "InstanceNormalization":
            require(zero.is_const and not zero.numpy().any(), "the normalization has a bias already", zero)
            return op.InstanceNormalization(m.x, m.scale, _channels(op, m.bias, m.x), **norm.attrs)
        perm = _perm_back(m)
        bias = _trailing(op, _before(op, m.bias, perm), m.x, _axes_count(norm), "bias")
        return _transposed(op, op.LayerNormalization(m.x, m.scale, bias, **norm.attrs), perm)


def _perm_back(m: Match) -> Perm | None:
    """The permutation of the Transpose after a norm whose axes were moved to the end, if there is one."""
    return next((perm_of(node) for pattern, node in m.nodes.items() if pattern.name == "back"), None)


def _transposed(op: Builder, y: Value, perm: Perm | None) -> Value:
    return y if perm is None else op.Transpose(typed(y), perm=perm)


def _axes_count(norm: Node) -> int:
    """The number of last axes that a norm is over."""
    x, axis = norm.inputs[0], attribute(norm, "axis")
    assert x is not None
    require(x.rank is not None, "the rank is not known", x)
    return int(-axis if axis < 0 else (x.rank or 0) - axis)


def _trailing(op: Builder, v: Value, x: Value, count: int, what: str) -> Value:
    """A constant or value with the shape of the normalized last axes, without leading ones."""
    if fits_trailing(v, x, count):
        return v
    shape = sizes(x, -count)
    require(v.is_const and shape is not None, f"{what} does not fit the normalized axes", v)
    array = v.numpy()
    fits = array.ndim <= (x.rank or 0) and _broadcasts(array.shape, shape or ())
    require(fits, f"{what} does not fit the normalized axes", v)
    return op.const(np.broadcast_to(array, shape or ()) if array.ndim <= count else array.reshape(shape or ()))


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether a shape, without its leading ones, broadcasts to another."""
    while len(shape) > len(to) and shape[0] == 1:
        shape = shape[1:]
    if len(shape) > len(to):
        return False
    return all(d in (1, e) for d, e in zip(shape, to[len(to) - len(shape) :], strict=True))


def _channels(op: Builder, v: Value, x: Value) -> Value:
    """A constant that broadcasts along the channels of ``x``, as a vector."""
    channels = sizes(x, 1, 2)
    require(v.is_const, "it is not constant", v)
    require(channels and per_channel(v, x.rank or 0, channels[0]), "it is not one number per channel", v)
    return op.const(v.numpy().reshape(-1))


@fusion
class FuseGroupNorm(Fusion):
    """A norm of x as [N, groups, ...], back in x's shape, * scale + bias  ->  GroupNormalization(x, scale, bias).

    The norm is InstanceNormalization, or LayerNormalization over all axes but the first two.
    """

    def pattern(self, op: Any, x: Any, one: Any, zero: Any, scale: Any, bias: Any, split: Any, shape: Any) -> Any:
        groups = op.Reshape(x, split, name="split")
        instance = op.InstanceNormalization(groups, one, zero, name="norm")
        layer = op.call("", ("LayerNormalization",), groups, one, None, name="norm")
        return tuple(op.Reshape(norm, shape, name="joined") * scale + bias for norm in (instance, layer))

    def rewrite(self, op: Builder, m: Match) -> Any:
        norm, groups, joined = m.node("norm"), m.node("split").output, m.node("joined").output
        count, zero = sizes(groups, 1, 2), _given(m, "zero")
        require(groups.rank is not None and groups.rank >= 3 and count, "the number of groups is not known", groups)
        require(m.x.rank is not None and m.x.rank >= 3, "there are no axes besides the channels", m.x)
        require(_keeps_batch(m.split, groups, m.x), "the groups mix examples", groups)
        require(same_shape(joined, m.x), "the shape is not known to be that of the input", joined)
        is_plain = is_ones(m.one) and (zero is None or (zero.is_const and not zero.numpy().any()))
        require(is_plain, "the groups are scaled", m.one)
        if norm.onnx_op == "LayerNormalization":
            require(
                _axes_count(norm) == (groups.rank or 0) - 2, "it normalizes other axes than those of a group", groups
            )
        assert count is not None
        require(count[0] and m.x.shape[1] % count[0] == 0, "the channels are no multiple of the groups", m.x)
        scale, bias = _channels(op, m.scale, m.x), _channels(op, m.bias, m.x)
        epsilon = attribute(norm, "epsilon")
        return op.GroupNormalization(m.x, scale, bias, num_groups=count[0], epsilon=epsilon)


def _keeps_batch(split: Value, groups: Value, x: Value) -> bool:
    """Whether a reshape keeps the first axis."""
    if split.is_const and split.numpy().reshape(-1)[0] == 0:
        return True
    assert groups.shape is not None and x.shape is not None
    return groups.shape[0] is not None and groups.shape[0] == x.shape[0]
