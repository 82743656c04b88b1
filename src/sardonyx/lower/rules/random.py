"""Random numbers: a range of a counter-based stream, and the scalar program that computes number i of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sardonyx import dtypes
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Expr
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle
from sardonyx.lower.groups import RandomStream, Storage
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.pointwise import as_type
from sardonyx.lower.rules.reduce import apply
from sardonyx.lower.sizes import Refused, product
from sardonyx.ops import random


def _stream_operands(low: Lowering, node: Node, body: ExpressionBuilder, box: Sequence[Known]) -> list[Handle]:
    """For each element of a box: its index, the stream position of the first, and the seed."""
    count = product(box)
    stream, place = random.stream(node.attrs.get("seed")), low.temporary(dtypes.i64, (2,))
    state = Storage("constant", dtypes.i64, 2, None, Tensor.of(stream.words), stream)
    low.groups.append(RandomStream((node,), views.dense(state, (2,)), count, place))
    index = low.reshaped(low.indices(count), box)
    first, seed = (low.fit(views.selected(place, 0, i), box) for i in (1, 0))
    return [body.operand(v) for v in (index, first, seed)]


def _draw(low: Lowering, node: Node, fn: Callable[..., Expr], /, **attributes: Any) -> None:
    out, body = low.make(node.output), ExpressionBuilder()
    args = _stream_operands(low, node, body, out.shape)
    work = random.work_of(out.dtype)
    low.loop(out.shape, body, [(apply(body, fn, *args, dtype=out.dtype, work=work, **attributes), out)])


@rule("RandomNormal", "RandomNormalLike")
def random_normal(low: Lowering, node: Node) -> None:
    _draw(low, node, random.normal, mean=node.attrs.get("mean", 0.0), scale=node.attrs.get("scale", 1.0))


@rule("RandomUniform", "RandomUniformLike")
def random_uniform(low: Lowering, node: Node) -> None:
    _draw(low, node, random.uniform, low=node.attrs.get("low", 0.0), high=node.attrs.get("high", 1.0))


@rule("Bernoulli")
def bernoulli(low: Lowering, node: Node) -> None:
    p, out, body = low.view(low.input(0)), low.make(node.output), ExpressionBuilder()
    args = [*_stream_operands(low, node, body, out.shape), body.operand(p)]
    value = apply(body, random.flag, *args, dtype=out.dtype, work=random.work_of(p.dtype), to=out.dtype)
    low.loop(out.shape, body, [(value, out)])


@rule("Multinomial")
def multinomial(low: Lowering, node: Node) -> None:
    x, out, body = low.view(low.input(0)), low.make(node.output), ExpressionBuilder()
    if len(x.shape) != 2 or len(out.shape) != 2:
        raise Refused("Multinomial needs [batch, classes]")
    low.require_least("Multinomial: there are no classes", x.shape[1], 1)
    box = (*out.shape, x.shape[1])
    args = [*_stream_operands(low, node, body, box), body.operand(low.fit(views.inserted(x, 1), box))]
    found = body.reduce("argmax", apply(body, random.gumbel, *args, dtype=dtypes.f64), dtypes.i64)
    if out.dtype is not dtypes.i64:
        found = apply(body, as_type, found, dtype=out.dtype, source=dtypes.i64, to=out.dtype)
    low.loop(box, body, [(found, out)], reduced=1)
