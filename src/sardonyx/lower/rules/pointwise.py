"""Operators that are scalar programs, and casts."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr, Program, trace
from sardonyx.lower.body import Body
from sardonyx.lower.groups import Bits, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.sizes import Refused
from sardonyx.ops import registry
from sardonyx.ops.pointwise import program_of

MAX_OPERANDS = 32
"""Operands of one operator: a kernel is written out for all of them."""


def pointwise(low: Lowering, node: Node) -> None:
    """Any operator that has a scalar program."""
    if len(node.inputs) > MAX_OPERANDS:
        raise Refused(f"{node.op_type} of more than {MAX_OPERANDS} operands is not compiled")
    program = program_for(node)
    if program is None:
        raise Refused(f"{node.op_type} is not compiled")
    meaning = registry.find(node.domain, node.op_type)
    if meaning is None or any(key not in meaning.attributes for key in node.attrs):
        raise Refused(f"{node.op_type} has an attribute that is not known")
    apply(low, node, _specialized(low, node) or program)


def program_for(node: Node) -> Program | None:
    """The scalar program of a node, if it has one."""
    meaning = registry.find(node.domain, node.op_type)
    known = {} if meaning is None else {k: v for k, v in node.attrs.items() if k in meaning.attributes}
    return program_of(node.op_type, [v is not None for v in node.inputs], domain=node.domain, **known)


def apply(low: Lowering, node: Node, program: Program) -> None:
    """A loop that applies a program to the node's first inputs."""
    present = [v for v in node.inputs if v is not None][: program.arity]
    out, body = low.make(node.output), Body()
    args = [body.operand(low.fit(low.view(v), out.shape)) for v in present]
    low.loop(out.shape, body, [(body.apply(program, *args, dtype=out.dtype), out)])


def square(e: Emitter, x: Expr) -> Expr:
    return x * x


def cube(e: Emitter, x: Expr) -> Expr:
    return x * x * x


_POWERS = {2: square, 3: cube}


def _specialized(low: Lowering, node: Node) -> Program | None:
    """x to the power of a small constant is a product."""
    if node.op_type != "Pow" or not (exponent := low.input(1)).is_scalar_const or low.shape(exponent):
        return None
    fn = _POWERS.get(exponent.item())
    return None if fn is None or not low.dtype(low.input(0)).is_float else trace(fn, (True,))


def as_type(e: Emitter, x: Expr, *, source: DType, to: DType) -> Expr:
    """ONNX's Cast: reals pass through i32 on their way to narrow integers, wide integers through f64 to halves.

    A half is rounded to one here, although values between fused operators are not: a model that casts means it.
    """
    if source.is_float and source.bits < 32:
        x = e.cast(x, source)
    if source is to:
        return x
    if to is dtypes.bool_:
        return e.ne(x, 0)
    if source.is_float and to.is_integer and to.bits < 32:
        x = e.cast(x, dtypes.i32)
    elif source.is_integer and to.is_float and to.bits < 32:
        x = e.cast(x, dtypes.f32 if source.bits < 32 else dtypes.f64)
    return e.cast(x, to)


def converted(low: Lowering, source: View, target: View) -> None:
    """A copy in another type."""
    body = Body()
    program = trace(as_type, (True,), source=source.dtype, to=target.dtype)
    value = body.operand(low.fit(source, target.shape))
    low.loop(target.shape, body, [(body.apply(program, value, dtype=target.dtype), target)])


@rule("Cast", "CastLike")
def cast(low: Lowering, node: Node) -> None:
    source, to = low.dtype(low.input(0)), low.dtype(node.output)
    if source is to and not (to.is_float and to.bits < 32):
        low.alias(node.output, low.view(low.input(0)))
    else:
        apply(low, node, trace(as_type, (True,), source=source, to=to))


def _as_bits(e: Emitter, x: Expr, *, to: DType) -> Expr:
    return e.bits(x, to)


@rule("BitCast")
def bit_cast(low: Lowering, node: Node) -> None:
    """A narrow float is widened in registers, which would lose signals of NaN: its bits are copied."""
    source, to = low.dtype(low.input(0)), low.dtype(node.output)
    if source.bits != to.bits or dtypes.bool_ in (source, to):
        raise Refused(f"BitCast of {source} to {to} is not compiled")
    if any(t.is_float and t.bits < 32 for t in (source, to)):
        low.groups.append(Bits((node,), low.view(low.input(0)), low.make(node.output)))
    else:
        apply(low, node, trace(_as_bits, (True,), to=to))
