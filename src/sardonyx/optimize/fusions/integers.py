"""Rewrites products of dequantized values to products of integers, for providers with integer kernels.

Both operands are an integer (q - z) times a scale, so their product is an exact integer product times the product of
the scales. Remaining DequantizeLinear of constants are computed on first use; what they are computed from stays known
(``Tensor.quantized``), so that products read weights in their quantized form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.quantized import Quantized
from sardonyx.ir.tensor import Tensor
from sardonyx.ops import registry
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import Match, attribute
from sardonyx.records import Record

BYTES = (dtypes.i8, dtypes.u8)
NIBBLES = tuple(map(dtypes.of_name, ("i4", "u4", "i2", "u2")))
"""Types whose constants are widened to bytes."""
UNIT_TOLERANCE = 1e-6
"""Relative rounding error of a product of two scales, compared with the scale that a quantizer stored for a bias."""
OF_INTEGERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Products with a form for integers."""
MAX_TERMS = (1 << 31) // 255**2
"""Longest sum of products of bytes minus zero points that cannot overflow i32."""


class Factor(Record):
    """(q - zero) * scale, in f32."""

    q: Value
    scale: Value
    zero: Value | None

    @property
    def is_single(self) -> bool:
        """Whether there is one scale for the tensor."""
        return _count(self.scale) == 1


def factor(node: Node, axis: int | None = None) -> Factor:
    """The result of a DequantizeLinear; ``axis`` may have a scale for each index."""
    q, scale, zero = node.inputs[0], node.inputs[1], node.input(2)
    assert q is not None and scale is not None
    is_widened = q.dtype in NIBBLES and q.is_const and (zero is None or zero.is_const)
    require(q.dtype in BYTES or is_widened, f"products of {q.dtype} are not integer products", q)
    require(node.output.dtype is dtypes.f32 and scale.dtype is dtypes.f32, "the reals are not f32", node.output)
    require(q.rank is not None, "the rank is not known", q)
    found = Factor(q, scale, zero)
    if not found.is_single:
        assert q.rank is not None
        given = attribute(node, "axis")
        along = axis is not None and -q.rank <= given < q.rank and given % q.rank == axis % q.rank
        require(along and scale.rank == 1 and not attribute(node, "block_size"), "there is more than one scale", scale)
    return found


def factors(op: Builder, *found: Factor) -> list[Factor]:
    """Factors with integers of 8 bits: constants of fewer are widened."""
    return [_widened(op, f) if f.q.dtype in NIBBLES else f for f in found]


def _widened(op: Builder, f: Factor) -> Factor:
    q, zero = f.q.const, None if f.zero is None else f.zero.const
    assert q is not None
    to = dtypes.i8 if q.dtype.kind == "int" else dtypes.u8

    def compute() -> Any:
        return q.peek().astype(to.numpy)

    wide = op.const(Tensor(to, q.shape, compute, name=q.name, view=compute))
    return Factor(wide, f.scale, None if zero is None else op.const(zero.numpy().astype(to.numpy)))


def _count(v: Value) -> int | None:
    shape = v.shape
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return int(np.prod([int(d) for d in shape if isinstance(d, int)], dtype=np.int64))


def _bound(depth: Any, value: Value) -> dict[str, int]:
    """The attribute of a product whose sums may not fit i32: those of a depth that only the run tells."""
    if not isinstance(depth, int):
        return {"max_terms": MAX_TERMS}
    _require_terms((depth,), value)
    return {}


def _require_terms(sizes: Any, value: Value) -> None:
    known = all(isinstance(d, int) for d in sizes)
    require(known and np.prod(sizes, dtype=np.int64) <= MAX_TERMS, "sums may not fit i32", value)


def units(op: Builder, a: Factor, b: Factor, after: int = 0) -> Value:
    """The product of the scales; ``after`` counts axes after that of the second operand's scales."""
    if a.scale.is_const and b.scale.is_const:
        left, right = a.scale.numpy().reshape(()), b.scale.numpy()
        scale = left * (right.reshape(()) if b.is_single else right.reshape(-1, *[1] * after))
        found: Value = op.const(np.asarray(scale, np.float32))
        return found
    right = _reshaped(op, b.scale, () if b.is_single else (-1, *[1] * after))
    product: Value = op.Mul(_reshaped(op, a.scale, ()), right)
    return product


def _reshaped(op: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    """A constant is reshaped at once, as no pass folds constants later."""
    if value.is_const:
        made: Value = op.const(value.numpy().reshape(shape))
    else:
        made = op.Reshape(value, op.const(np.array(shape, np.int64)))
    return made


def _real(op: Builder, sums: Value, unit: Value) -> Any:
    return op.Mul(op.Cast(sums, to=dtypes.f32.onnx), unit)


def _integer_bias(v: Value | None, a: Factor, b: Factor, terms: Any) -> Value | None:
    """The i32 constant of which a bias is dequantized in the units of the product, if the sums with it fit i32."""
    node = v.producer if v is not None else None
    if node is None or node.op_type != "DequantizeLinear" or node.domain or not (a.scale.is_const and b.scale.is_const):
        return None
    q, scale, zero = node.inputs[0], node.input(1), node.input(2)
    if q is None or not q.is_const or q.dtype is not dtypes.i32 or q.rank != 1 or scale is None or not scale.is_const:
        return None
    if scale.dtype is not dtypes.f32 or (zero is not None and not (zero.is_const and not zero.numpy().any())):
        return None
    unit, given = a.scale.numpy().reshape(()) * b.scale.numpy().reshape(-1), scale.numpy().reshape(-1)
    sizes = (1, q.numpy().size)
    is_same = given.size in sizes and unit.size in sizes and np.allclose(given, unit, rtol=UNIT_TOLERANCE, atol=0)
    known = all(isinstance(d, int) for d in terms)
    most = np.abs(q.numpy().astype(np.int64)).max(initial=0)
    fits = known and int(most) + int(np.prod(terms, dtype=np.int64)) * 255**2 < 1 << 31
    return q if is_same and fits else None


class _Product(Fusion):
    shares = True
    operator = ""

    def pattern(self, op: Any, p: Any, s: Any, q: Any, t: Any) -> Any:
        left = op.DequantizeLinear(p, s, op.optional("y"), name="left")
        right = op.DequantizeLinear(q, t, op.optional("z"), name="right")
        return op.call("", self.operator, left, right, *self.more(op), name="product")

    def more(self, op: Any) -> tuple[Any, ...]:
        return ()


@optimization("RestoreDequantize")
def restore_dequantize(graph: Graph, log: Log) -> None:
    """Constants that were dequantized before, as DequantizeLinear of their integers, for products with dequantized
    operands: a body's constants may have been computed in the graph around it."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            restore_dequantize(sub, log)
        if node.op_type not in OF_INTEGERS or node.domain or len(node.inputs) < 2:
            continue
        a, b = node.inputs[:2]
        known = b.const.quantized if b is not None and b.const is not None else None
        if known is None or b is None or a is None or not is_dequantized(a):
            continue
        op = Builder(graph, node, prefix=node.name or node.output.name, origin=node.origin)
        zero = None if known.zero is None else op.const(known.zero)
        made = op.DequantizeLinear(
            op.const(known.q), op.const(known.scale), zero, axis=known.axis, block_size=known.block or None
        )
        made.type = b.type
        node.set_input(1, made)


def is_dequantized(v: Value) -> bool:
    node = v.producer
    return node is not None and node.op_type == "DequantizeLinear" and not node.domain


@fusion
class MultiplyIntegers(_Product):
    """MatMul(DequantizeLinear(a), DequantizeLinear(b))  ->  MatMulInteger(a, b) * scales."""

    operator = "MatMul"

    def rewrite(self, op: Builder, m: Match) -> Any:
        a, b = factors(op, factor(m.node("left")), factor(m.node("right"), -1))
        require(a.q.rank and b.q.rank and (b.is_single or b.q.rank > 1), "an operand is no matrix", b.q)
        bound = _bound((a.q.shape or (None,))[-1], a.q)
        return _real(op, op.MatMulInteger(a.q, b.q, a.zero, b.zero, **bound), units(op, a, b))


@fusion
class MultiplyIntegersAdd(_Product):
    """Gemm(DequantizeLinear(a), DequantizeLinear(b), c)  ->  MatMulInteger(a, b) * scales + c."""

    operator = "Gemm"

    def more(self, op: Any) -> tuple[Any, ...]:
        return (op.optional("c"),)

    def rewrite(self, op: Builder, m: Match) -> Any:
        gemm = m.node("product")
        transposed = [bool(attribute(gemm, name)) for name in ("transA", "transB")]
        a, b = factors(op, factor(m.node("left")), factor(m.node("right"), 0 if transposed[1] else 1))
        bound = _bound((a.q.shape or (None, None))[not transposed[0]], a.q)
        left, right = (op.Transpose(x.q, perm=[1, 0]) if t else x.q for x, t in zip((a, b), transposed, strict=True))
        sums = op.MatMulInteger(left, right, a.zero, b.zero, **bound)
        alpha, beta = float(attribute(gemm, "alpha")), float(attribute(gemm, "beta"))
        bias = _integer_bias(m.c, a, b, (a.q.shape or (None, None))[0 if transposed[0] else 1 :][:1])
        if bias is not None and alpha == beta == 1:
            return _real(op, op.Add(sums, bias), units(op, a, b))
        y = _real(op, sums, units(op, a, b))
        if alpha != 1:
            y = op.Mul(y, op.const(np.float32(alpha)))
        if m.c is None or beta == 0:
            return y
        return op.Add(y, m.c if beta == 1 else op.Mul(m.c, op.const(np.float32(beta))))


@fusion
class ConvolveIntegers(_Product):
    """Conv(DequantizeLinear(x), DequantizeLinear(w), b)  ->  ConvInteger(x, w) * scales + b."""

    operator = "Conv"

    def more(self, op: Any) -> tuple[Any, ...]:
        return (op.optional("b"),)

    def rewrite(self, op: Builder, m: Match) -> Any:
        conv = m.node("product")
        x, w = factors(op, factor(m.node("left")), factor(m.node("right"), 0))
        _require_terms((w.q.shape or ())[1:], w.q)
        assert w.q.rank is not None
        after = w.q.rank - 2
        point = None if x.zero is None else _reshaped(op, x.zero, ())
        sums, columns = op.ConvInteger(x.q, w.q, point, w.zero, **conv.attrs), (-1, *[1] * after)
        bias = _integer_bias(m.b, x, w, (w.q.shape or ())[1:])
        if bias is not None:
            return _real(op, op.Add(sums, _reshaped(op, bias, columns)), units(op, x, w, after))
        y = _real(op, sums, units(op, x, w, after))
        return y if m.b is None else op.Add(y, _reshaped(op, m.b, columns))


@fusion
class ConvolveIntegersTransposed(_Product):
    """ConvTranspose(DequantizeLinear(x), DequantizeLinear(w), b)  ->  ConvTransposeInteger(x, w) * scales + b."""

    operator = "ConvTranspose"

    def more(self, op: Any) -> tuple[Any, ...]:
        return (op.optional("b"),)

    def rewrite(self, op: Builder, m: Match) -> Any:
        conv = m.node("product")
        x, w = factors(op, factor(m.node("left")), factor(m.node("right"), 1))
        channels, *sizes = w.q.shape or (None,)
        groups = attribute(conv, "group")
        require(isinstance(channels, int) and groups > 0 and channels % groups == 0, "no channels of groups", w.q)
        terms = (int(channels) // groups, *sizes[1:])  # type: ignore[arg-type]
        _require_terms(terms, w.q)
        after = len(sizes) - 1
        point = None if x.zero is None else _reshaped(op, x.zero, ())
        columns = (-1, *[1] * after)
        sums = op.call("sardonyx", "ConvTransposeInteger", x.q, w.q, point, w.zero, **conv.attrs)
        each = w if w.is_single or groups == 1 else Factor(w.q, _repeated(op, w.scale, groups), None)
        bias = _integer_bias(m.b, x, each, terms)
        if bias is not None:
            return _real(op, op.Add(sums, _reshaped(op, bias, columns)), units(op, x, each, after))
        y = _real(op, sums, units(op, x, each, after))
        return y if m.b is None else op.Add(y, _reshaped(op, m.b, columns))


def _repeated(op: Builder, scale: Value, times: int) -> Value:
    """The scales of a group's filters, for the filters of all groups."""
    found: Value = op.const(np.tile(scale.numpy(), times)) if scale.is_const else op.Tile(scale, op.const([times]))
    return found


@optimization("FoldDequantize")
def fold_dequantize(graph: Graph, log: Log) -> None:
    """DequantizeLinear of constants, computed on first use."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            fold_dequantize(sub, log)
        out = node.outputs[0] if node.outputs else None
        if node.op_type != "DequantizeLinear" or node.domain or out is None or out.dtype is None:
            continue
        given = [v.const for v in node.inputs if v is not None and v.is_const]
        if len(given) < sum(v is not None for v in node.inputs) or given[0] is None:
            continue
        folded = graph.add_const(_dequantized(node, given[0], out), out.name)
        log.replace(graph, [node], [out], [folded], [], "computed once")


def _dequantized(node: Node, q: Tensor, out: Value) -> Tensor:
    meaning = registry.find("", "DequantizeLinear")
    assert meaning is not None and out.dtype is not None
    inputs, attrs, dtype = [None if v is None else v.const for v in node.inputs], dict(node.attrs), out.dtype

    def compute() -> Any:
        found = meaning.numpy(*(None if t is None else t.peek() for t in inputs), **attrs)
        return np.asarray(found, dtype.numpy, order="C")

    known, scale = None, inputs[1]
    if scale is not None and q.dtype.is_integer and q.dtype.bits <= 8 and q.shape:
        zero, axis = inputs[2] if len(inputs) > 2 else None, attribute(node, "axis") % len(q.shape)
        known = Quantized(q, scale, zero, axis, attribute(node, "block_size"))
    return Tensor(dtype, q.shape, compute, name=out.name, view=compute, quantized=known)
