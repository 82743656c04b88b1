"""Pointwise operators (those with a scalar program), and casts."""

from __future__ import annotations

import math

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr, Program, trace
from sardonyx.lower.expression_builder import ExpressionBuilder
from sardonyx.lower.groups import BitCast, View
from sardonyx.lower.lowering import OTHER, Lowering, rule
from sardonyx.lower.sizes import Refused
from sardonyx.ops import registry
from sardonyx.ops.pointwise import program_of

MAX_OPERANDS = 32
"""Operands of one operator: the kernel is unrolled over them."""


@rule(OTHER)
def pointwise(low: Lowering, node: Node) -> None:
    """Any operator that has a scalar program."""
    if len(node.inputs) > MAX_OPERANDS:
        _in_stretches(low, node)
        return
    program = program_for(node)
    if program is None:
        raise Refused(f"{f'{node.domain}.' * bool(node.domain)}{node.op_type} is not compiled")
    meaning = registry.find(node.domain, node.op_type)
    if meaning is None or any(key not in meaning.attributes for key in node.attrs):
        raise Refused(f"{node.op_type} has an attribute that is not known")
    small = any(low.dtype(v).bits < 8 and low.dtype(v).is_integer for v in (*node.inputs, node.output) if v is not None)
    if small and any(step.op not in ("arg", "copy", "where") for step in program.steps):
        raise Refused(f"{node.op_type} of integers of fewer than 8 bits is not compiled")
    apply(low, node, _specialized(low, node) or program)


STRETCHED = frozenset(("Sum", "Max", "Min"))
"""Operators of any number of operands whose result may be an operand again."""


def _in_stretches(low: Lowering, node: Node) -> None:
    """A loop for each stretch of at most ``MAX_OPERANDS`` operands, of which the first is the result so far."""
    out = low.make(node.output)
    if node.domain or node.op_type not in STRETCHED or out.dtype.bits < 32:
        raise Refused(f"{node.op_type} of more than {MAX_OPERANDS} operands is not compiled")
    values = [low.fit(low.view(v), out.shape) for v in node.inputs if v is not None]
    while len(values) > 1:
        taken, rest, body = values[:MAX_OPERANDS], values[MAX_OPERANDS:], ExpressionBuilder()
        program = program_of(node.op_type, len(taken))
        assert program is not None
        result = low.temporary(out.dtype, out.shape) if rest else out
        value = body.apply(program, *(body.operand(v) for v in taken), dtype=out.dtype)
        low.loop(out.shape, body, [(value, result)])
        values = [result, *rest] if rest else []


def program_for(node: Node) -> Program | None:
    """The scalar program of a node, if it has one."""
    meaning = registry.find(node.domain, node.op_type)
    known = {} if meaning is None else {k: v for k, v in node.attrs.items() if k in meaning.attributes}
    return program_of(node.op_type, [v is not None for v in node.inputs], domain=node.domain, **known)


def apply(low: Lowering, node: Node, program: Program) -> None:
    """A loop that applies a program to the node's first inputs."""
    present = [v for v in node.inputs if v is not None][: program.arity]
    out, body = low.make(node.output), ExpressionBuilder()
    args = [body.operand(low.fit(low.view(v), out.shape)) for v in present]
    low.loop(out.shape, body, [(body.apply(program, *args, dtype=out.dtype), out)])


def square(e: Emitter, x: Expr) -> Expr:
    return x * x


def cube(e: Emitter, x: Expr) -> Expr:
    return x * x * x


_POWERS = {2: square, 3: cube}


def _between(e: Emitter, x: Expr, *, low: float | None, high: float | None) -> Expr:
    x = x if low is None else e.maximum(x, low)
    return x if high is None else e.minimum(x, high)


def _specialized(low: Lowering, node: Node) -> Program | None:
    """A cheaper program: Pow with exponent 2 or 3 as a product, Clip with its constant bounds as immediates."""
    if not low.dtype(low.input(0)).is_float:
        return None
    if node.op_type == "Pow":
        exponent = low.input(1)
        fn = _POWERS.get(exponent.item()) if exponent.is_scalar_const and not low.shape(exponent) else None
        return None if fn is None else trace(fn, (True,))
    if node.op_type == "Clip":
        given = [v for v in node.inputs[1:] if v is not None]
        if given and all(v.is_scalar_const and math.isfinite(v.item()) for v in given):
            bounds = [None if v is None else float(v.item()) for v in (*node.inputs[1:], None, None)[:2]]
            return trace(_between, (True,), low=bounds[0], high=bounds[1])
    return None


LARGEST = {"f8e4m3fn": 448.0, "f8e4m3fnuz": 240.0, "f8e5m2": 57344.0, "f8e5m2fnuz": 57344.0, "f4e2m1": 6.0}


def saturated(e: Emitter, x: Expr, *, to: DType) -> Expr:
    """A cast to a narrow float type that saturates at its largest number."""
    top = LARGEST[to.name]
    return e.cast(e.clamp(x, -top, top), to)


def as_type(e: Emitter, x: Expr, *, source: DType, to: DType, saturate: bool = True) -> Expr:
    """ONNX's Cast: floats go to narrow integers by way of i32, wide integers to narrow floats by way of f64.

    The input is rounded to its own narrow float type first, although fused operators do not round between them: a Cast
    in the model asks for the rounding.
    """
    if source.is_float and source.bits < 32 and source.name != "f8e8m0":
        x = e.cast(x, source)
    if source is to:
        return x
    if to is dtypes.bool_:
        return e.ne(x, 0)
    if source.is_float and to.is_integer and to.bits < 32:
        x = e.cast(x, dtypes.i32)
    elif source.is_integer and to.is_float and to.bits < 32:
        x = e.cast(x, dtypes.f32 if source.bits < 32 else dtypes.f64)
    if to.name == "f8e8m0":
        return e.cast(e.cast(x, dtypes.f32), to)
    if saturate and to.is_float and to.bits == 8:
        return saturated(e, e.cast(x, dtypes.f32) if source is dtypes.bool_ else x, to=to)
    return e.cast(x, to)


def converted(low: Lowering, source: View, target: View) -> None:
    """Append a copy in another type."""
    body = ExpressionBuilder()
    program = trace(as_type, (True,), source=source.dtype, to=target.dtype)
    value = body.operand(low.fit(source, target.shape))
    low.loop(target.shape, body, [(body.apply(program, value, dtype=target.dtype), target)])


@rule("Cast", "CastLike")
def cast(low: Lowering, node: Node) -> None:
    source, to = low.dtype(low.input(0)), low.dtype(node.output)
    if source is to and not (to.is_float and to.bits < 32):
        low.alias(node.output, low.view(low.input(0)))
    else:
        saturate = bool(node.attrs.get("saturate", 1))
        if to.name == "f8e8m0" and (source.bits > 32 or not saturate or node.attrs.get("round_mode", "up") != "up"):
            raise Refused("this cast to f8e8m0 is not compiled")
        apply(low, node, trace(as_type, (True,), source=source, to=to, saturate=saturate))


def _as_bits(e: Emitter, x: Expr, *, source: DType, to: DType) -> Expr:
    return e.cast(x, to) if source is dtypes.bool_ else e.bits(x, to)


@rule("BitCast")
def bit_cast(low: Lowering, node: Node) -> None:
    """Narrow floats have a group of their own: a loop would widen them to f32, which changes signalling NaNs."""
    source, to = low.dtype(low.input(0)), low.dtype(node.output)
    if source.bits != to.bits or to is dtypes.bool_ or min(source.bits, to.bits) < 8:
        raise Refused(f"BitCast of {source} to {to} is not compiled")
    if any(t.is_float and t.bits < 32 for t in (source, to)):
        low.groups.append(BitCast((node,), low.view(low.input(0)), low.make(node.output)))
    else:
        apply(low, node, trace(_as_bits, (True,), source=source, to=to))
