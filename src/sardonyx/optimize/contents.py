"""Contents of small integer tensors, propagated through the operators that compute shapes.

A content is an object array of int (bools are 0 and 1), ``Expr``, and None for an unknown element. Operators that move
elements are run by their numpy implementations, which move expressions too; arithmetic is that of ``ir.dims``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.ir.dims import Dim, Expr
from sardonyx.ir.graph import Node
from sardonyx.ir.shape import Shape
from sardonyx.ops import registry
from sardonyx.ops.infer import MAX_CONTENT

Array: TypeAlias = "np.ndarray[Any, Any]"
Known: TypeAlias = "Sequence[Array | None]"
"""Contents of a node's inputs; None for absent or unknown ones."""

Rule: TypeAlias = "Callable[[Node, Known], Sequence[Array | None]]"

MAX_INTEGER = 1 << 31
"""Larger numbers could overflow the element types of shapes, and are not propagated through arithmetic."""


def objects(values: Any, shape: tuple[int, ...]) -> Array:
    """An object array of these elements and shape."""
    array = np.empty(math.prod(shape), object)
    array[:] = values
    return array.reshape(shape)


def _array(result: Any) -> Array:
    """The result of numpy on object arrays as an array: without axes it returns the bare element."""
    return result if isinstance(result, np.ndarray) else objects([result], ())


def _moved(node: Node, ins: Known) -> Sequence[Array | None]:
    """Run the operator on object arrays; all inputs but the first must be numbers."""
    meaning = registry.find(node.domain, node.op_type)
    if ins[0] is None or meaning is None:
        return ()
    args: list[Array | None] = [ins[0]]
    for v, array in zip(node.inputs[1:], ins[1:], strict=True):
        if v is not None and (array is None or not is_number(array)):
            return ()
        args.append(None if array is None else array.astype(np.int64))
    supplied = {"outputs": len(node.outputs)} if "outputs" in meaning.supplied else {}
    result = meaning.numpy(*args, **node.attrs, **supplied)
    return result if isinstance(result, tuple) else (result,)


def _gather(node: Node, ins: Known) -> Sequence[Array | None]:
    x, indices = ins
    if x is None or indices is None or not is_number(indices):
        return ()
    return (_array(np.take(x, indices.astype(np.int64), axis=node.attrs.get("axis", 0))),)


def _concat(node: Node, ins: Known) -> Sequence[Array | None]:
    """Unknown operands give unknown elements if their lengths are known."""
    parts = []
    for v, array in zip(node.inputs, ins, strict=True):
        if array is None:
            if v is None or v.shape is None or len(v.shape) != 1 or not isinstance(v.shape[0], int):
                return ()
            if v.shape[0] > MAX_CONTENT:
                return ()
            array = objects(None, (v.shape[0],))
        parts.append(array)
    return (np.concatenate(parts, axis=node.attrs["axis"]),)


def _each(fn: Callable[[Dim], Dim]) -> Rule:
    ufunc = np.frompyfunc(fn, 1, 1)
    return lambda node, ins: () if ins[0] is None else (_array(ufunc(ins[0])),)


def _all(fn: Callable[[Dim, Dim], Dim]) -> Rule:
    """A binary function applied to any number of broadcasting operands."""
    ufunc: Any = np.frompyfunc(fn, 2, 1)

    def apply(node: Node, ins: Known) -> Sequence[Array | None]:
        if any(a is None for a in ins):
            return ()
        return (_array(reduce(ufunc, ins)),)

    return apply


def _small(d: Dim) -> Dim:
    return None if type(d) is int and abs(d) >= MAX_INTEGER else d


def _arithmetic(fn: Callable[[Dim, Dim], Dim]) -> Rule:
    """Arithmetic that gives up if the element type could overflow."""
    return _all(lambda a, b: _small(fn(_small(a), _small(b))))


def _absolute(a: Dim) -> Dim:
    return a if dims.at_least(a, 0) else dims.neg(a) if dims.at_least(dims.neg(a), 0) else None


def _divide(node: Node, ins: Known) -> Sequence[Array | None]:
    """Integer division truncates towards 0; floats are propagated only if the quotient is exact."""
    dtype = node.outputs[0].dtype
    return () if dtype is None else (_EXACT if dtype.is_float else _TRUNCATED)(node, ins)


def _quotient(a: Dim, b: Dim) -> Dim:
    if type(a) is int and type(b) is int and b:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return dims.floordiv(a, b) if dims.at_least(a, 0) and dims.at_least(b, 1) else dims.exact_div(a, b)


def _remainder(a: Dim, b: Dim) -> Dim:
    return dims.mod(a, b) if dims.at_least(a, 0) and dims.at_least(b, 1) else None


_EXACT, _TRUNCATED = _arithmetic(dims.exact_div), _arithmetic(_quotient)


def _flag(yes: bool, no: bool) -> Dim:
    return 1 if yes else 0 if no else None


def _equal(a: Dim, b: Dim) -> Dim:
    return None if a is None or b is None else _flag(a == b, dims.differ(a, b))


def _less(a: Dim, b: Dim) -> Dim:
    return _flag(dims.at_least(dims.sub(b, a), 1), dims.at_least(dims.sub(a, b), 0))


def _less_or_equal(a: Dim, b: Dim) -> Dim:
    return _flag(dims.at_least(dims.sub(b, a), 0), dims.at_least(dims.sub(a, b), 1))


def _not(a: Dim) -> Dim:
    return None if a is None else int(not a)


def _and(a: Dim, b: Dim) -> Dim:
    return _flag(a == 1 and b == 1, a == 0 or b == 0)


def _or(a: Dim, b: Dim) -> Dim:
    return _flag(a == 1 or b == 1, a == 0 and b == 0)


def _choose(c: Dim, a: Dim, b: Dim) -> Dim:
    return b if c == 0 else a if c is not None or a == b else None


_CHOOSE = np.frompyfunc(_choose, 3, 1)


def _where(node: Node, ins: Known) -> Sequence[Array | None]:
    """One operand may be unknown, if its shape is a number of elements."""
    if sum(a is None for a in ins) > 1:
        return ()
    operands = [_unknown(v.shape) if a is None and v is not None else a for v, a in zip(node.inputs, ins, strict=True)]
    known = [a for a in operands if a is not None]
    return (_array(_CHOOSE(*known)),) if len(known) == len(operands) else ()


def _unknown(shape: Shape | None) -> Array | None:
    """Unknown elements of a known number."""
    known = [d for d in shape or () if isinstance(d, int)]
    if shape is None or len(known) < len(shape) or math.prod(known) > MAX_CONTENT:
        return None
    return objects(None, tuple(known))


EXACT_BITS = {"f32": 24, "f64": 53, "i32": 31, "i64": 63}
"""Bits of an integer that an element type represents exactly."""

_TRUTH = _each(lambda d: _not(_equal(d, 0)))


def _cast(node: Node, ins: Known) -> Sequence[Array | None]:
    to = dtypes.of_onnx(node.attrs["to"])
    if to is dtypes.bool_:
        return _TRUTH(node, ins)
    bound = 1 << EXACT_BITS[to.name] if to.name in EXACT_BITS else 0
    return _each(lambda d: None if type(d) is int and abs(d) >= bound else d)(node, ins) if bound else ()


def _clip(node: Node, ins: Known) -> Sequence[Array | None]:
    """At least the second operand and at most the third, if they are given."""
    found = ins[0]
    for fn, v, bound in zip((dims.maximum, dims.minimum), node.inputs[1:], ins[1:], strict=False):
        if v is not None:
            found = None if found is None or bound is None else _array(np.frompyfunc(fn, 2, 1)(found, bound))
    return (found,)


def _same(node: Node, ins: Known) -> Sequence[Array | None]:
    return ins[:1]


def _shape(node: Node, ins: Known) -> Sequence[Array | None]:
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if shape is None:
        return ()
    part = shape[node.attrs.get("start", 0) : node.attrs.get("end")]
    return (objects([dims.known(d) for d in part], (len(part),)),)


def _size(node: Node, ins: Known) -> Sequence[Array | None]:
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    return () if shape is None else (objects([dims.product(shape)], ()),)


def _constant_of_shape(node: Node, ins: Known) -> Sequence[Array | None]:
    (wanted,), fill = ins, node.attrs.get("value")
    if wanted is None or fill is None or not fill.dtype.is_integer or not is_number(wanted):
        return ()
    shape = tuple(wanted.reshape(-1))
    if math.prod(shape) > MAX_CONTENT or any(d < 0 for d in shape):
        return ()
    return (objects([int(fill.numpy().reshape(-1)[0])] * math.prod(shape), shape),)


def _range(node: Node, ins: Known) -> Sequence[Array | None]:
    if any(a is None or not is_number(a) for a in ins):
        return ()
    start, limit, step = (int(a.reshape(-1)[0]) for a in ins if a is not None)
    found = range(start, limit, step) if step else ()
    return (objects(list(found), (len(found),)),) if 0 < len(found) <= MAX_CONTENT else ()


def _reduce(fn: Callable[[Dim, Dim], Dim]) -> Rule:
    """A reduction over all elements of a vector."""

    def apply(node: Node, ins: Known) -> Sequence[Array | None]:
        x = ins[0]
        if x is None or x.ndim != 1 or not x.size or node.attrs.get("noop_with_empty_axes"):
            return ()
        result = x[0]
        for d in x[1:]:
            result = fn(result, d)
        return (objects([result], (1,) if node.attrs.get("keepdims", 1) else ()),)

    return apply


MOVES = ("Slice", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Split", "Tile", "Expand", "Flatten")

RULES: dict[str, Rule] = {
    **dict.fromkeys(MOVES, _moved),
    "Gather": _gather,
    "Concat": _concat,
    "Identity": _same,
    "Floor": _same,
    "Ceil": _same,
    "Round": _same,
    "Add": _arithmetic(dims.add),
    "Sub": _arithmetic(dims.sub),
    "Mul": _arithmetic(dims.mul),
    "Div": _divide,
    "Mod": _arithmetic(_remainder),
    "Neg": _each(dims.neg),
    "Abs": _each(_absolute),
    "Min": _arithmetic(dims.minimum),
    "Max": _arithmetic(dims.maximum),
    "Clip": _clip,
    "Equal": _all(_equal),
    "Less": _all(_less),
    "LessOrEqual": _all(_less_or_equal),
    "Greater": _all(lambda a, b: _less(b, a)),
    "GreaterOrEqual": _all(lambda a, b: _less_or_equal(b, a)),
    "Not": _each(_not),
    "And": _all(_and),
    "Or": _all(_or),
    "Where": _where,
    "Cast": _cast,
    "Shape": _shape,
    "Size": _size,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "ReduceProd": _reduce(dims.mul),
    "ReduceSum": _reduce(dims.add),
    "ReduceMax": _reduce(dims.maximum),
    "ReduceMin": _reduce(dims.minimum),
}


def is_number(content: Array) -> bool:
    return all(type(d) is int for d in content.flat)


def is_complete(content: Array) -> bool:
    return all(d is not None for d in content.flat)


def expressions(content: Array) -> list[Expr]:
    return [d for d in content.flat if isinstance(d, Expr)]
