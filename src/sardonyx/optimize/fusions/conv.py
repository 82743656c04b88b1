"""Folds operators around a convolution into its weights, bias or padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.affine import (
    Affine,
    Array,
    Constant,
    batch_norm,
    constant,
    factor,
    lazy,
    normalized,
    per_channel,
    term,
    wide,
)
from sardonyx.optimize.pattern import Match, attribute


def convolved(op: Any, x: Any, w: Any) -> Any:
    return op.call("", ("Conv", "ConvTranspose"), x, w, op.optional("b"), name="conv")


def weights(w: Value) -> Tensor:
    found = constant(w, "the weight")
    require(len(found.shape) >= 3, "the weight has no axes for a window", w)
    return found


class FoldIntoConv(Fusion):
    """affine(Conv(x, w, b))  ->  Conv(x, w', b'); also for ConvTranspose."""

    def affine(self, m: Match, y: Value, channels: int, rank: int) -> Affine:
        raise NotImplementedError

    def rewrite(self, op: Builder, m: Match) -> Any:
        conv, weight = m.node("conv"), weights(m.w)
        bias = None if m.b is None else constant(m.b, "the bias")
        groups = int(attribute(conv, "group"))
        channels = weight.shape[0] if conv.onnx_op == "Conv" else weight.shape[1] * groups
        affine = self.affine(m, conv.output, channels, len(weight.shape))
        w = m.w if affine.scale is None else op.const(_scaled_outputs(conv, weight, groups, affine))
        return op.call("", conv.op_type, m.x, w, _new_bias(weight, bias, channels, affine), **conv.attrs)


@fusion
class FoldConvBatchNorm(FoldIntoConv):
    """BatchNormalization(Conv(x, w, b))  ->  Conv(x, w', b')."""

    def pattern(self, op: Any, x: Any, w: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        return normalized(op, convolved(op, x, w), scale, bias, mean, var)

    def affine(self, m: Match, y: Value, channels: int, rank: int) -> Affine:
        return batch_norm(m, channels)


@fusion
class FoldConvMul(FoldIntoConv):
    """Conv(x, w, b) * c  ->  Conv(x, w * c, b * c); also for a division."""

    def pattern(self, op: Any, x: Any, w: Any) -> Any:
        y, c = convolved(op, x, w), Constant("c")
        return op.call("", ("Mul", "Div"), y, c, name="tail")

    def affine(self, m: Match, y: Value, channels: int, rank: int) -> Affine:
        return factor(per_channel(m.c, channels, rank, 1), m.node("tail").op_type)


@fusion
class FoldConvAdd(FoldIntoConv):
    """Conv(x, w, b) + c  ->  Conv(x, w, b + c); also for subtractions."""

    def pattern(self, op: Any, x: Any, w: Any) -> Any:
        y, c = convolved(op, x, w), Constant("c")
        return op.call("", ("Add", "Sum", "Sub"), y, c, name="tail"), op.call("", "Sub", c, y, name="tail")

    def affine(self, m: Match, y: Value, channels: int, rank: int) -> Affine:
        return term(per_channel(m.c, channels, rank, 1), m.node("tail"), y)


class FoldBeforeConv(Fusion):
    """Conv(affine(x), w, b)  ->  Conv(x, w', b')."""

    def affine(self, m: Match, channels: int, rank: int) -> Affine:
        raise NotImplementedError

    def rewrite(self, op: Builder, m: Match) -> Any:
        conv, weight = m.node("conv"), weights(m.w)
        bias = None if m.b is None else constant(m.b, "the bias")
        groups = int(attribute(conv, "group"))
        affine = self.affine(m, weight.shape[1] * groups, len(weight.shape))
        if affine.shift is not None:
            require(_is_unpadded(conv), "padding would be shifted with the input")
        w = m.w if affine.scale is None else op.const(_scaled_inputs(weight, groups, affine))
        b = m.b if affine.shift is None else op.const(_shifted_bias(weight, bias, groups, affine))
        return op.Conv(m.x, w, b, **conv.attrs)


@fusion
class FoldBatchNormConv(FoldBeforeConv):
    """Conv(BatchNormalization(x), w, b)  ->  Conv(x, w', b'), without padding."""

    def pattern(self, op: Any, x: Any, w: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        return op.Conv(normalized(op, x, scale, bias, mean, var), w, op.optional("b"), name="conv")

    def affine(self, m: Match, channels: int, rank: int) -> Affine:
        return batch_norm(m, channels)


@fusion
class FoldMulConv(FoldBeforeConv):
    """Conv(x * c, w, b)  ->  Conv(x, w * c, b)."""

    def pattern(self, op: Any, x: Any, w: Any) -> Any:
        c = Constant("c")
        return op.Conv(op.call("", ("Mul", "Div"), x, c, name="head"), w, op.optional("b"), name="conv")

    def affine(self, m: Match, channels: int, rank: int) -> Affine:
        return factor(per_channel(m.c, channels, rank, 1), m.node("head").op_type)


@fusion
class FoldGatherConv(Fusion):
    """Conv(permuted channels of x, w)  ->  Conv(x, w'), with the weight's channels permuted instead."""

    def pattern(self, op: Any, x: Any, w: Any) -> Any:
        return op.Conv(op.Gather(x, Constant("order"), axis=1), w, op.optional("b"), name="conv", group=1)

    def rewrite(self, op: Builder, m: Match) -> Any:
        weight, order = weights(m.w), m.order.numpy()
        every = order.ndim == 1 and np.array_equal(np.sort(order), np.arange(weight.shape[1]))
        require(every, "channels are left out or repeated", m.order)
        require(m.x.shape is not None and m.x.shape[1:2] == (len(order),), "channels are left out", m.x)
        back = np.argsort(order)
        w = lazy(weight.dtype, weight.shape, lambda: weight.numpy()[:, back], weight.name)
        return op.Conv(m.x, w, m.b, **m.node("conv").attrs)


def _scaled_outputs(conv: Node, weight: Tensor, groups: int, affine: Affine) -> Tensor:
    scale = affine.scale
    assert scale is not None
    shape = weight.shape
    space = (1,) * (len(shape) - 2)

    def compute() -> Array:
        along: Array = scale().reshape(-1, 1, *space)
        if conv.onnx_op == "ConvTranspose":
            by_group = np.broadcast_to(scale(), (groups * shape[1],)).reshape(groups, shape[1])
            along = np.repeat(by_group, shape[0] // groups, axis=0).reshape(*shape[:2], *space)
        return np.multiply(wide(weight), along)

    return lazy(weight.dtype, shape, compute, weight.name)


def _new_bias(weight: Tensor, bias: Tensor | None, channels: int, affine: Affine) -> Tensor | None:
    scale, shift = affine.scale, affine.shift
    if bias is None and shift is None:
        return None

    def compute() -> Array:
        b = np.zeros(channels, np.float32) if bias is None else wide(bias)
        b = b if scale is None else b * scale()
        return b if shift is None else b + shift()

    return lazy(weight.dtype, (channels,), compute, f"{weight.name}/bias")


def _over_inputs(weight: Tensor, groups: int, vector: Array) -> Array:
    """One number per input channel, broadcastable to a Conv's weight."""
    out, inner, *space = weight.shape
    by_group = vector.reshape(groups, inner)
    return np.repeat(by_group, out // groups, axis=0).reshape(out, inner, *[1] * len(space))


def _scaled_inputs(weight: Tensor, groups: int, affine: Affine) -> Tensor:
    scale = affine.scale
    assert scale is not None
    return lazy(weight.dtype, weight.shape, lambda: wide(weight) * _over_inputs(weight, groups, scale()), weight.name)


def _shifted_bias(weight: Tensor, bias: Tensor | None, groups: int, affine: Affine) -> Tensor:
    shift = affine.shift
    assert shift is not None

    def compute() -> Array:
        moved: Array = (wide(weight) * _over_inputs(weight, groups, shift())).reshape(weight.shape[0], -1).sum(axis=1)
        return moved if bias is None else np.add(moved, wide(bias))

    return lazy(weight.dtype, weight.shape[:1], compute, f"{weight.name}/bias")


def _is_unpadded(conv: Node) -> bool:
    return attribute(conv, "auto_pad") in ("NOTSET", "VALID") and not any(conv.attrs.get("pads", ()))
