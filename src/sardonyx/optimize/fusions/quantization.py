"""Prepares quantized graphs for products of integers, and reports the products that stay real.

Quantization-aware training leaves weights as reals that are quantized and dequantized in the graph, and values that are
joined before they are quantized.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType
from sardonyx.ops import registry
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.integers import OF_INTEGERS
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import Match, attribute

PRODUCTS = frozenset({"Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
ARRANGED = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
REDUCTIONS = frozenset({"GlobalAveragePool", "GlobalMaxPool", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"})


@optimization("FoldQuantize")
def fold_quantize(graph: Graph, log: Log) -> None:
    """QuantizeLinear of constants, computed on first use."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            fold_quantize(sub, log)
        out = node.outputs[0] if node.outputs else None
        if node.op_type != "QuantizeLinear" or node.domain or out is None or out.dtype is None:
            continue
        x = node.inputs[0]
        if x is None or x.const is None or any(v is not None and not v.is_const for v in node.inputs):
            continue
        folded = graph.add_const(_quantized(node, x.const, out), out.name)
        log.replace(graph, [node], [out], [folded], [], "computed once")


def _quantized(node: Node, x: Tensor, out: Value) -> Tensor:
    meaning = registry.find("", "QuantizeLinear")
    assert meaning is not None and out.dtype is not None
    inputs, attrs, dtype = [None if v is None else v.const for v in node.inputs], dict(node.attrs), out.dtype

    def compute() -> Any:
        found = meaning.numpy(*(None if t is None else t.peek() for t in inputs), **attrs)
        return np.asarray(found, dtype.numpy, order="C")

    return Tensor(dtype, x.shape, compute, name=out.name, view=compute)


@optimization("SinkConstantDequantize")
def sink_constant_dequantize(graph: Graph, log: Log) -> None:
    """arrange(DequantizeLinear(q))  ->  DequantizeLinear(arrange(q)) of constants, where each scale keeps an axis."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            sink_constant_dequantize(sub, log)
        inner = node.inputs[0].producer if node.onnx_op in ARRANGED and node.inputs and node.inputs[0] else None
        if node.domain or inner is None or inner.op_type != "DequantizeLinear" or inner.domain:
            continue
        q, scale = inner.inputs[0], inner.input(1)
        shape = node.output.shape
        if q is None or q.const is None or scale is None or scale.shape is None or shape is None:
            continue
        sizes = tuple(d for d in shape if isinstance(d, int))
        if len(sizes) < len(shape) or math.prod(sizes) != q.const.size or attribute(inner, "block_size"):
            continue
        axis = 0 if scale.shape in ((), (1,)) else _axis_after(node, q.const.shape, attribute(inner, "axis"))
        if axis is None:
            log.declined(node, "no axis of the result has the scales")
            continue
        op = Builder(graph, node, prefix=node.name or node.output.name, origin=node.origin)
        perm = attribute(node, "perm") if node.onnx_op == "Transpose" else None
        moved = op.const(_arranged(q.const, node.onnx_op == "Transpose", perm, sizes))
        made = op.call("", "DequantizeLinear", moved, *inner.inputs[1:], **{**inner.attrs, "axis": axis})
        log.replace(graph, [node, inner], [node.output], [made], op.made, f"{node.op_type} of the integers")


def _arranged(q: Tensor, is_transposed: bool, perm: Any, shape: tuple[int, ...]) -> Tensor:
    def compute() -> Any:
        x = q.peek()
        return np.ascontiguousarray(x.transpose(perm) if is_transposed else x).reshape(shape)

    return Tensor(q.dtype, shape, compute, name=q.name, view=compute)


def _axis_after(node: Node, before: tuple[int, ...], axis: int) -> int | None:
    """The axis of the result that an axis of the operand becomes; None if it is none."""
    if not -len(before) <= axis < len(before):
        return None
    axis %= len(before)
    if node.onnx_op == "Transpose":
        perm = attribute(node, "perm")
        order = list(perm) if perm is not None else list(reversed(range(len(before))))
        return order.index(axis)
    after = [int(d) for d in node.output.shape or () if isinstance(d, int)]
    ahead = int(np.prod(before[:axis], dtype=np.int64))
    for i, size in enumerate(after):
        if size == before[axis] and int(np.prod(after[:i], dtype=np.int64)) == ahead:
            return i
    return None


@fusion
class RectifyIntegers(Fusion):
    """Relu(DequantizeLinear(q, s, z))  ->  DequantizeLinear(Max(q, z), s, z), so that a product may read integers."""

    shares = True

    def pattern(self, op: Any, q: Any, s: Any) -> Any:
        return op.Relu(op.DequantizeLinear(q, s, op.optional("z"), name="real"), name="relu")

    def rewrite(self, op: Builder, m: Match) -> Any:
        real, zero = m.node("real"), m.values.get("z")
        dtype = m.q.dtype
        require(dtype is not None and dtype.is_integer and dtype.bits == 8, "the integers are no bytes", m.q)
        require(m.s.is_scalar_const and 0 < m.s.item() < np.inf, "there is no positive scale for all elements", m.s)
        require(zero is None or zero.is_scalar_const, "the zero point is not a constant", zero or m.q)
        least = np.zeros((), dtype.numpy) if zero is None else zero.numpy().reshape(())
        rectified = op.Max(m.q, op.const(least))
        rectified.type = m.q.type
        return op.DequantizeLinear(rectified, m.s, zero, **real.attrs)


@fusion
class ClipIntegers(Fusion):
    """QuantizeLinear(Relu(x)), QuantizeLinear(Clip(x))  ->  the integers of x, clipped, which are the same:
    quantization is monotone. What follows the sums of a product is one multiply-add then.
    """

    def pattern(self, op: Any, x: Any, s: Any, z: Any) -> Any:
        clipped = op.either(op.Relu(x), op.Clip(x, op.optional("low"), op.optional("high")))
        return op.QuantizeLinear(clipped, s, z, name="quantize")

    def rewrite(self, op: Builder, m: Match) -> Any:
        node, dtype = m.node("quantize"), m.z.dtype
        require(dtype is not None and dtype.is_integer and dtype.bits == 8, "the integers are no bytes", m.z)
        require(m.x.dtype is dtypes.f32 and m.s.dtype is dtypes.f32, "the reals are not known to be f32", m.x)
        require(m.s.is_scalar_const and 0 < m.s.item() < np.inf, "there is no positive scale for all elements", m.s)
        require(m.z.is_scalar_const, "the zero point is not a constant", m.z)
        bounds = (m.values.get("low"), m.values.get("high")) if "low" in m.values or "high" in m.values else ()
        for v in bounds:
            require(v is None or v.is_scalar_const, "a bound is not a constant", v)
        low, high = (None if v is None else v.item() for v in bounds) if bounds else (0.0, None)
        require(low is None or high is None or low <= high, "the bounds are in reverse order", m.x)
        require(all(v is None or not np.isnan(v) for v in (low, high)), "a bound is not a number", m.x)
        made = op.QuantizeLinear(m.x, m.s, m.z, **node.attrs)
        made.type = node.output.type
        for bound, clip in ((low, op.Max), (high, op.Min)):
            if bound is not None:
                made = clip(made, op.const(self._quantized(bound, m)))
                made.type = node.output.type
        return made

    @staticmethod
    def _quantized(bound: float, m: Match) -> Any:
        meaning = registry.find("", "QuantizeLinear")
        assert meaning is not None
        return meaning.numpy(np.asarray(bound, np.float32), *(v.numpy().reshape(()) for v in (m.s, m.z)))


@fusion
class MultiplyUnits(Fusion):
    """QuantizeLinear(DequantizeLinear(a) * DequantizeLinear(b))  ->  the product of integers, which is exact, times one
    factor. An even zero point is added before rounding, which changes no exact tie; others go as in onnxruntime's
    QLinearMul then.
    """

    shares = True

    def pattern(self, op: Any, a: Any, s: Any, b: Any, t: Any, u: Any, z: Any) -> Any:
        left = op.DequantizeLinear(a, s, op.optional("y"))
        right = op.DequantizeLinear(b, t, op.optional("x"))
        return op.QuantizeLinear(op.Mul(left, right, name="product"), u, z, name="quantize")

    def rewrite(self, op: Builder, m: Match) -> Any:
        for v in (m.a, m.b, m.z):
            require(v.dtype is not None and v.dtype.is_integer and v.dtype.bits == 8, "the integers are no bytes", v)
        for v in (m.s, m.t, m.u):
            require(v.is_scalar_const and v.dtype is dtypes.f32, "there is no constant scale for all elements", v)
            require(0 < v.item() < np.inf, "a scale is not positive", v)
        require(len(m.node("product").output.uses) == 1, "the product has other readers", m.node("product").output)
        require(m.z.is_scalar_const, "the zero point is not a constant", m.z)
        a, b, y = (np.float32(v.item()) for v in (m.s, m.t, m.u))
        one, zero = op.const(np.float32(1)), op.const(np.zeros((), m.z.dtype.numpy))
        left, right = (op.DequantizeLinear(m.values[v], one, m.values.get(z)) for v, z in (("a", "y"), ("b", "x")))
        for real, v in ((left, m.a), (right, m.b)):
            real.type = TensorType(dtypes.f32, v.shape)
        units = op.Mul(op.Mul(left, right), op.const(a * b / y))
        if int(m.z.item()) % 2:
            return op.QuantizeLinear(units, one, m.z)
        return op.QuantizeLinear(op.Add(units, op.const(np.float32(m.z.item()))), one, zero)


@optimization("QuantizeConcatenated")
def quantize_concatenated(graph: Graph, log: Log) -> None:
    """QuantizeLinear(Concat(x, ...), s, z)  ->  Concat(QuantizeLinear(x, s, z), ...): what is joined is smaller."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            quantize_concatenated(sub, log)
        x = node.inputs[0] if node.op_type == "QuantizeLinear" and not node.domain and node.inputs else None
        join = None if x is None else x.producer
        scale = node.input(1)
        if x is None or join is None or join.op_type != "Concat" or join.domain or scale is None:
            continue
        if scale.shape not in ((), (1,)):
            log.declined(node, "the joined values have several scales")
        elif len(x.uses) > 1 or x.is_output:
            log.declined(node, f"{x.name!r}, which is quantized, has other readers")
        else:
            op = Builder(graph, node, prefix=node.name or node.output.name, origin=node.origin)
            parts = [op.call("", "QuantizeLinear", v, *node.inputs[1:], **node.attrs) for v in join.inputs]
            for part, v in zip(parts, join.inputs, strict=True):
                if node.output.dtype is not None and v is not None:
                    part.type = TensorType(node.output.dtype, v.shape)
            joined = op.Concat(*parts, axis=join.attrs["axis"])
            joined.type = node.output.type
            log.replace(graph, [node, join], [node.output], [joined], op.made, "Concat of the integers")


@optimization("DequantizeForReductions")
def dequantize_for_reductions(graph: Graph, log: Log) -> None:
    """DequantizeLinear that reductions and other nodes read: once for each side, which reads bytes then, not reals.

    The pooling and the product of a squeeze-and-excite part are not one loop: between them reals would be stored.
    """
    for node in list(graph.nodes):
        for _, sub in node.subgraphs():
            dequantize_for_reductions(sub, log)
        if node.op_type != "DequantizeLinear" or node.domain or node.output.is_output:
            continue
        readers = node.output.consumers
        reductions = [r for r in readers if r.op_type in REDUCTIONS and not r.domain and r.graph is graph]
        if not reductions or len(reductions) == len(readers):
            continue
        op = Builder(graph, reductions[0], prefix=reductions[0].name or node.output.name, origin=node.origin)
        made = op.call("", "DequantizeLinear", *node.inputs, **node.attrs)
        made.type = node.output.type
        if log.judge is not None and log.judge([node.output], [made], op.made) is not None:
            graph.remove(op.made[0])
            continue
        for reader in reductions:
            for i, value in enumerate(reader.inputs):
                if value is node.output:
                    reader.set_input(i, made)
        log.did(node, "once more, for a reduction")


@optimization("ReportRealProducts")
def report_real_products(graph: Graph, log: Log) -> None:
    """Says why a product that reads dequantized values is not one of integers, where no rewrite has said so."""
    said = {miss.node for miss in log.report.declined}
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            report_real_products(sub, log)
        if node.op_type not in PRODUCTS or node.domain or node.label in said:
            continue
        operands = [v for v in node.inputs[:2] if v is not None]
        sources = [_dequantize_of(v) for v in operands]
        if any(sources):
            log.declined(node, _reason(node, operands, sources))


def _source(v: Value) -> Value:
    """The value whose elements this one has, rearranged or not."""
    while v.producer is not None and v.producer.op_type in ARRANGED and not v.producer.domain:
        x = v.producer.inputs[0]
        assert x is not None
        v = x
    return v


def _dequantize_of(v: Value) -> Node | None:
    node = _source(v).producer
    return node if node is not None and node.op_type == "DequantizeLinear" and not node.domain else None


def _reason(node: Node, operands: list[Value], sources: list[Node | None]) -> str:
    if node.onnx_op not in OF_INTEGERS:
        return f"{node.op_type} has no form for integers"
    for v, source in zip(map(_source, operands), sources, strict=True):
        if source is None:
            made_by = "an input" if v.producer is None else f"the result of {v.producer.op_type}"
            what = "a real constant" if v.is_const else made_by
            return f"{v.name!r} is not dequantized: it is {what}"
    for v, source in zip(operands, sources, strict=True):
        if source is not None and v.producer is not source:
            return f"{v.name!r} is rearranged after it is dequantized, with scales that do not follow"
    return "its integers do not fit a product of bytes"
