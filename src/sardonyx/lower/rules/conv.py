"""Convolutions."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle, work_type
from sardonyx.lower.groups import Convolution, View, Window
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.reduce import apply, plus
from sardonyx.lower.rules.window import require_few_taps, require_near, window_of
from sardonyx.lower.sizes import Refused, mul


@rule("Conv")
def conv(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    if not x.dtype.is_float:
        raise Refused(f"Conv of {x.dtype} is not compiled")
    w, window, groups = windowed(low, node, x, low.view(low.input(1)))
    out = low.make(node.output)
    body, bias = ExpressionBuilder([work_type(out.dtype)]), node.input(2)
    result: Handle = ~0
    if bias is not None:
        operand = body.operand(per_channel(low, low.view(bias), out.shape))
        result = apply(body, plus, result, operand, dtype=out.dtype)
    expression = body.expression([result])
    low.groups.append(Convolution((node,), expression, tuple(body.views), (out,), x, w, window, groups))


def windowed(low: Lowering, node: Node, x: View, w: View) -> tuple[View, Window, int]:
    """The dense weights, the window and the number of groups of a convolution, checked against each other."""
    what = node.op_type
    if len(x.shape) != len(w.shape) or len(x.shape) < 3:
        raise Refused(f"{what}: input and weights do not have the same spatial axes")
    if not views.is_dense(w):
        dense = low.temporary(w.dtype, w.shape)
        low.copy(w, dense)
        w = dense
    groups = node.attrs.get("group", 1)
    kernel = tuple(d for d in w.shape[2:] if isinstance(d, int))
    if len(kernel) != len(w.shape) - 2:
        raise Refused(f"{what}: the size of the kernel is not known before the run")
    if node.attrs.get("kernel_shape") and tuple(node.attrs["kernel_shape"]) != kernel:
        raise Refused(f"{what}: kernel_shape differs from the weights")
    if groups < 1 or (groups > 1 and (not isinstance(w.shape[0], int) or w.shape[0] % groups)):
        raise Refused(f"{what}: the filters are not known to be a multiple of the groups")
    low.require(f"{what}: the channels are not those of the weights", x.shape[1], mul(w.shape[1], groups))
    window, _ = window_of(low, node, x.shape[2:], low.shape(node.output)[2:], kernel)
    require_few_taps(node.op_type, window)
    require_near(node.op_type, window)
    return w, window, groups


def per_channel(low: Lowering, view: View, box: tuple[Known, ...]) -> View:
    """One element for each channel, broadcast over batch and image."""
    if len(view.shape) != 1:
        raise Refused("the bias does not have one axis")
    low.require("the bias does not have an element for each channel", view.shape[0], box[1])
    for axis in range(2, len(box)):
        view = views.inserted(view, axis - 1)
    return low.fit(view, box)
