"""Normalizations: (x - mean) / deviation over rows."""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.scalar import Emitter, Expr, trace
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle, work_type
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.rules.pointwise import square
from sardonyx.lower.rules.reduce import Rows, apply, mean, minus, times
from sardonyx.lower.sizes import Refused


def _reciprocal_root(e: Emitter, x: Expr, *, epsilon: float) -> Expr:
    return 1 / e.sqrt(x + epsilon)


def _scaled(e: Emitter, x: Expr, inverse: Expr, scale: Expr | None, bias: Expr | None) -> Expr:
    y = x * inverse if scale is None else x * inverse * scale
    return y if bias is None else y + bias


def _is_everywhere(view: View, number: int) -> bool:
    """Whether a view is of a constant all of whose elements are ``number``."""
    tensor = view.storage.tensor
    return tensor is not None and view.storage.stream is None and bool((tensor.numpy() == number).all())


def _affine(rows: Rows, x: Handle, inverse: Handle, scale: View, bias: View | None, dtype: DType) -> Handle:
    """x * inverse * scale + bias, without a constant scale of ones or bias of zeros.

    Where groups of channels are normalized as if they were channels, such a constant has other axes than the image, and
    a loop that reads it cannot follow the image's memory.
    """
    given = (None if _is_everywhere(scale, 1) else scale, None if bias is None or _is_everywhere(bias, 0) else bias)
    program = trace(_scaled, (True, True, *(v is not None for v in given)))
    return rows.body.apply(program, x, inverse, *(rows.operand(v) for v in given if v is not None), dtype=dtype)


def _standardize(
    body: ExpressionBuilder, x: Handle, work: DType, epsilon: float
) -> tuple[Handle, Handle, Handle, Handle]:
    """x - mean, the mean, 1 / sqrt(variance + epsilon), and the variance of each row."""
    average = mean(body, x, work)
    centered = apply(body, minus, x, average, dtype=work)
    variance = mean(body, apply(body, square, centered, dtype=work), work)
    return centered, average, apply(body, _reciprocal_root, variance, dtype=work, epsilon=epsilon), variance


@rule("LayerNormalization")
def layer_normalization(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    rows = _trailing(low, node, x)
    body, work = rows.body, work_type(x.dtype)
    out = low.make(node.outputs[0])
    centered, average, inverse, _ = _standardize(body, body.operand(rows.x), work, node.attrs.get("epsilon", 1e-5))
    bias = node.input(2)
    y = _affine(rows, centered, inverse, low.view(low.input(1)), None if bias is None else low.view(bias), out.dtype)
    stores = [(y, rows.full(out))]
    for value, handle in zip(node.outputs[1:], (average, inverse), strict=False):
        if not value.is_dead:
            stores.append((handle, rows.row(low.make(value), keepdims=True)))
    rows.store(*stores)


@rule("RMSNormalization")
def rms_normalization(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    rows = _trailing(low, node, x)
    body, work = rows.body, work_type(x.dtype)
    out, value = low.make(node.output), body.operand(rows.x)
    squares = mean(body, apply(body, square, value, dtype=work), work)
    inverse = apply(body, _reciprocal_root, squares, dtype=work, epsilon=node.attrs.get("epsilon", 1e-5))
    y = _affine(rows, value, inverse, low.view(low.input(1)), None, out.dtype)
    rows.store((y, rows.full(out)))


def _trailing(low: Lowering, node: Node, x: View) -> Rows:
    rank = len(x.shape)
    return Rows(low, x, range(axis_of(node.attrs.get("axis", -1), rank), rank))


@rule("InstanceNormalization")
def instance_normalization(low: Lowering, node: Node) -> None:
    x, out = low.view(low.input(0)), low.make(node.output)
    scale, bias = (_per_channel(low, low.input(i), x) for i in (1, 2))
    _affine_rows(low, node, x, out, scale, bias, 2)


@rule("GroupNormalization")
def group_normalization(low: Lowering, node: Node) -> None:
    x, out = low.view(low.input(0)), low.make(node.output)
    if len(x.shape) < 2:
        raise Refused("GroupNormalization: the input has no axis of channels")
    groups, channels = node.attrs["num_groups"], x.shape[1]
    if not isinstance(channels, int) or groups < 1 or channels % groups:
        raise Refused("the channels are not a known multiple of num_groups")
    scale, bias = (_per_channel(low, low.input(i), x) for i in (1, 2))
    sizes = (groups, channels // groups)
    x, out, scale, bias = (views.split(v, 1 - lead, sizes) for v, lead in ((x, 0), (out, 0), (scale, 1), (bias, 1)))
    _affine_rows(low, node, x, out, scale, bias, 2)


def _affine_rows(low: Lowering, node: Node, x: View, out: View, scale: View, bias: View, lead: int) -> None:
    """Normalize over all axes but the first ``lead``, then scale and shift."""
    rows, work = Rows(low, x, range(lead, len(x.shape))), work_type(x.dtype)
    value = rows.body.operand(rows.x)
    centered, _, inverse, _ = _standardize(rows.body, value, work, node.attrs.get("epsilon", 1e-5))
    rows.store((_affine(rows, centered, inverse, scale, bias, out.dtype), rows.full(out)))


def _per_channel(low: Lowering, value: Value, x: View) -> View:
    """One value per channel, with axes for those after the channels."""
    view = low.view(value)
    if len(x.shape) < 2 or len(view.shape) != 1:
        raise Refused("a vector of one value per channel is needed")
    low.require("one value per channel", view.shape[0], x.shape[1])
    for _ in x.shape[2:]:
        view = views.inserted(view, len(view.shape))
    return view


def _factor(e: Emitter, scale: Expr, variance: Expr, *, epsilon: float) -> Expr:
    return scale / e.sqrt(variance + epsilon)


def _shifted_and_scaled(e: Emitter, x: Expr, average: Expr, factor: Expr, bias: Expr) -> Expr:
    return (x - average) * factor + bias


@rule("BatchNormalization")
def batch_normalization(low: Lowering, node: Node) -> None:
    """A loop over channels for scale / sqrt(variance + epsilon), then one over all elements."""
    if node.attrs.get("training_mode", 0):
        _batch_statistics(low, node)
        return
    x, out = low.view(low.input(0)), low.make(node.outputs[0])
    scale, bias, average, variance = (_per_channel(low, low.input(i), x) for i in range(1, 5))
    work = work_type(x.dtype, scale.dtype, average.dtype)
    factor, body = low.temporary(work, scale.shape), ExpressionBuilder()
    args = (body.operand(scale), body.operand(variance))
    value = apply(body, _factor, *args, dtype=work, epsilon=node.attrs.get("epsilon", 1e-5))
    low.loop(factor.shape, body, [(value, factor)])
    body = ExpressionBuilder()
    operands = [body.operand(low.fit(v, x.shape)) for v in (x, average, factor, bias)]
    low.loop(x.shape, body, [(apply(body, _shifted_and_scaled, *operands, dtype=out.dtype), out)])


def _running(e: Emitter, before: Expr, now: Expr, *, momentum: float) -> Expr:
    return before * momentum + now * (1 - momentum)


def _batch_statistics(low: Lowering, node: Node) -> None:
    """Training mode: each channel is normalized by its own mean and variance, which update the running ones."""
    x, out = low.view(low.input(0)), low.make(node.outputs[0])
    given = [_per_channel(low, low.input(i), x) for i in range(1, 5)]
    rows = Rows(low, x, [i for i in range(len(x.shape)) if i != 1])
    body, work = rows.body, work_type(x.dtype, *(v.dtype for v in given))
    centered, average, inverse, variance = _standardize(
        body, body.operand(rows.x), work, node.attrs.get("epsilon", 1e-5)
    )
    scale, bias, *before = given
    stores = [(_affine(rows, centered, inverse, scale, bias, out.dtype), rows.full(out))]
    for value, old, now in zip(node.outputs[1:], map(rows.operand, before), (average, variance), strict=False):
        if not value.is_dead:
            moved = apply(body, _running, old, now, dtype=low.dtype(value), momentum=node.attrs.get("momentum", 0.9))
            stores.append((moved, rows.row(low.make(value), keepdims=False)))
    rows.store(*stores)


def _divided_unless_zero(e: Emitter, x: Expr, norm: Expr) -> Expr:
    return e.where(e.ne(norm, 0), x / norm, 0)


@rule("LpNormalization")
def lp_normalization(low: Lowering, node: Node) -> None:
    x, out = low.view(low.input(0)), low.make(node.output)
    rows, work = Rows(low, x, [node.attrs.get("axis", -1)]), work_type(x.dtype)
    body, value = rows.body, rows.body.operand(rows.x)
    if node.attrs.get("p", 2) == 1:
        norm = body.reduce("sum", apply(body, Emitter.abs, value, dtype=work), work)
    else:
        total = body.reduce("sum", apply(body, square, value, dtype=work), work)
        norm = apply(body, Emitter.sqrt, total, dtype=work)
    rows.store((apply(body, _divided_unless_zero, value, norm, dtype=out.dtype), rows.full(out)))


def _reciprocal_deviation(e: Emitter, variance: Expr) -> Expr:
    return 1 / (e.sqrt(variance) + 1e-9)


@rule("MeanVarianceNormalization")
def mean_variance_normalization(low: Lowering, node: Node) -> None:
    x, out = low.view(low.input(0)), low.make(node.output)
    rows = Rows(low, x, node.attrs.get("axes", (0, 2, 3)) or range(len(x.shape)))
    work = work_type(x.dtype)
    body, value = rows.body, rows.body.operand(rows.x)
    centered = apply(body, minus, value, mean(body, value, work), dtype=work)
    variance = mean(body, apply(body, square, centered, dtype=work), work)
    inverse = apply(body, _reciprocal_deviation, variance, dtype=work)
    rows.store((apply(body, times, centered, inverse, dtype=out.dtype), rows.full(out)))
