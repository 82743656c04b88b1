"""GridSample and AffineGrid."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, work_type
from sardonyx.lower.groups import GridSample, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.reduce import apply
from sardonyx.lower.rules.resize_axes import keys
from sardonyx.lower.rules.tables import table
from sardonyx.lower.sizes import Refused, product

_OFFSETS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
MAX_AXES = 3


@rule("GridSample")
def grid_sample(low: Lowering, node: Node) -> None:
    x, grid = low.view(low.input(0)), low.view(low.input(1))
    rank, padding = len(x.shape) - 2, node.attrs.get("padding_mode", "zeros")
    mode = str(node.attrs.get("mode", "linear")).removeprefix("bi")
    if mode not in _OFFSETS or padding not in ("zeros", "border", "reflection"):
        raise Refused(f"GridSample of mode {mode!r} and padding {padding!r} is not known")
    if not 1 <= rank <= MAX_AXES or len(grid.shape) != len(x.shape) or not grid.dtype.is_float:
        raise Refused("GridSample: the grid does not fit the image")
    is_exact = mode == "nearest"
    if not x.dtype.is_float and not is_exact:
        raise Refused(f"GridSample of {x.dtype} by weights is not compiled")
    low.require("GridSample: the grid has another batch than the image", grid.shape[0], x.shape[0])
    low.require("GridSample: the grid does not have one coordinate per axis", grid.shape[-1], rank)
    for size in x.shape[2:]:
        low.require_least("GridSample: an empty image cannot be sampled", size, 1)
    work, points = work_type(x.dtype), product(grid.shape[1:-1])
    places = low.reshaped(grid, (grid.shape[0], points, rank))
    indices: list[View] = []
    weights: list[View] = []
    for axis in range(rank):
        place = views.selected(places, 2, rank - 1 - axis)
        body, box, stores = ExpressionBuilder(), place.shape, []
        args = [body.operand(low.fit(v, box)) for v in (place, low.number(x.shape[2 + axis]))]
        given = {"mode": mode, "padding": padding, "align": bool(node.attrs.get("align_corners", 0)),
                 "work": work_type(grid.dtype)}  # fmt: skip
        indices.append(low.temporary(dtypes.i64, (len(_OFFSETS[mode]), *box)))
        if not is_exact:
            weights.append(low.temporary(work, (len(_OFFSETS[mode]), *box)))
        for tap, offset in enumerate(_OFFSETS[mode]):
            found = apply(body, _index, *args, dtype=dtypes.i64, offset=offset, **given)
            stores.append((found, views.selected(indices[-1], 0, tap)))
            if not is_exact:
                weight = apply(body, _weight, *args, dtype=work, offset=offset, to=work, **given)
                stores.append((weight, views.selected(weights[-1], 0, tap)))
        low.loop(box, body, stores)
    out = low.make(node.output)
    target = low.reshaped(out, (*out.shape[:2], points))
    body = ExpressionBuilder([work if x.dtype.is_float else x.dtype])
    expression = body.expression([~0])
    low.groups.append(GridSample((node,), expression, (), (target,), x, tuple(indices), tuple(weights)))


def _reflected(e: Emitter, x: Expr, low: Expr | float, high: Expr) -> Expr:
    """A coordinate reflected at both borders until it lies between them."""
    span = high - low
    far = e.abs(x - low)
    turns = e.floor(far / span)
    rest = far - turns * span
    is_even = e.eq(turns - 2 * e.floor(turns / 2), 0)
    return e.where(span > 0, e.where(is_even, low + rest, high - rest), low)


def _at(e: Emitter, place: Expr, size: Expr, *, mode: str, padding: str, align: bool, work: DType) -> tuple[Expr, Expr]:
    """The coordinate on an axis of a grid position between -1 and 1, and the axis' size."""
    n, place = e.cast(size, work), e.cast(place, work)
    at = (place + 1) / 2 * (n - 1) if align else ((place + 1) * n - 1) / 2
    at = e.where(e.isnan(at), -1, e.round(at) if mode == "nearest" else at)
    low, high = (0, n - 1) if align else (-0.5, n - 0.5)
    is_outside = (at < low) | (at > high)
    if padding == "border" and mode != "cubic":
        at = e.where(is_outside, e.clamp(at, 0, n - 1), at)
    elif padding == "reflection":
        at = e.where(is_outside, _reflected(e, at, low, high), at)
    return e.clamp(at, -4, n + 4), n


def _index(
    e: Emitter, place: Expr, size: Expr, *, offset: int, mode: str, padding: str, align: bool, work: DType
) -> Expr:
    """The index of a tap; -1 for zero padding."""
    at, n = _at(e, place, size, mode=mode, padding=padding, align=align, work=work)
    index = e.floor(at) + offset
    if padding == "zeros":
        return e.cast(e.where((index >= 0) & (index < n), index, -1), dtypes.i64)
    if padding == "reflection":
        low, high = (0, n - 1) if align else (-0.5, n - 0.5)
        index = _reflected(e, index, low, high)
    return e.cast(e.clamp(index, 0, n - 1), dtypes.i64)


def _weight(
    e: Emitter, place: Expr, size: Expr, *, offset: int, to: DType, mode: str, padding: str, align: bool, work: DType
) -> Expr:  # fmt: skip
    at, _ = _at(e, place, size, mode=mode, padding=padding, align=align, work=work)
    far = e.abs(at - e.floor(at) - offset)
    return e.cast(1 - far if mode == "linear" else keys(e, far, -0.75), to)


def _centre(e: Emitter, position: Expr, size: Expr, *, align: bool, to: DType) -> Expr:
    i, n = e.cast(position, dtypes.f64), e.cast(size, dtypes.f64)
    at = e.where(n > 1, 2 * i / (n - 1) - 1, 0) if align else (2 * i + 1) / n - 1
    return e.cast(at, to)


def _moved(e: Emitter, shift: Expr, *pairs: Expr) -> Expr:
    for factor, centre in zip(pairs[::2], pairs[1::2], strict=True):
        shift = shift + factor * centre
    return shift


@rule("AffineGrid")
def affine_grid(low: Lowering, node: Node) -> None:
    """An affine map of the centres of the output pixels."""
    theta, sizes, out = low.view(low.input(0)), low.sizes(low.input(1)), low.make(node.output)
    if len(sizes) not in (4, 5):
        raise Refused("AffineGrid: the size is not that of images")
    low.require_shape("AffineGrid: the result has the wrong shape", out.shape[:-1], (sizes[0], *sizes[2:]))
    rank, work = len(out.shape) - 2, work_type(theta.dtype)
    low.require_shape("AffineGrid: theta has the wrong shape", theta.shape, (out.shape[0], rank, rank + 1))
    columns = [views.selected(theta, 2, i) for i in range(rank + 1)]
    for axis in range(rank):
        columns = [views.inserted(v, 1 + axis) for v in columns]
    operands = [columns[rank]]
    for axis, size in enumerate(out.shape[1:-1]):
        align = bool(node.attrs.get("align_corners", 0))
        centre = table(low, (size,), _centre, size, dtype=work, align=align, to=work)
        for _ in range(rank - axis):
            centre = views.inserted(centre, len(centre.shape))
        operands += [columns[rank - 1 - axis], centre]
    body = ExpressionBuilder()
    args = [body.operand(low.fit(v, out.shape)) for v in operands]
    low.loop(out.shape, body, [(apply(body, _moved, *args, dtype=out.dtype), out)])
