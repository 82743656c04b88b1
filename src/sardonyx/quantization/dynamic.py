"""Dynamic quantization: weights are integers, activations become integers while the model runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.graph import Graph, Model, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.quantization import arguments, names
from sardonyx.quantization.kinds import QuantType
from sardonyx.quantization.lookups import embed_layer_normalization, gather
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.options import ExtraOptions
from sardonyx.quantization.overrides import Overrides
from sardonyx.quantization.parameters import Parameters, quantize_array
from sardonyx.quantization.qoperator import column_axis, movement, wants_product
from sardonyx.quantization.registry import IntegerOpsRegistry
from sardonyx.quantization.rewriter import Rewriter, Rule, Stored, quantized_name
from sardonyx.quantization.settings import Settings
from sardonyx.quantization.source import (
    MICROSOFT,
    assume_types,
    is_real,
    is_weight,
    lift_constants,
    raise_opset,
    warn_of_unknown_nodes,
)
from sardonyx.quantization.static import finish, warn_unless_wanted
from sardonyx.quantization.weights import constant_parameters

MINIMUM_OPSET = 11
"""DynamicQuantizeLinear is new in it."""


def quantize_dynamically(
    model: Model,
    *,
    weight_type: QuantType = QuantType.QInt8,
    per_channel: bool = False,
    reduce_range: bool = False,
    op_types: Iterable[str] | None = None,
    nodes_to_quantize: Collection[str] | None = None,
    nodes_to_exclude: Collection[str] | None = None,
    options: ExtraOptions | None = None,
) -> None:
    """Quantize a model in place."""
    if weight_type not in (QuantType.QInt8, QuantType.QUInt8):
        raise Misuse(
            "weights of dynamic quantization are int8 or uint8",
            got=weight_type,
            hint="MatMulNBitsQuantizer makes weights of 4 bits",
        )
    options = ExtraOptions() if options is None else options
    if options.matmul_const_b_only is None:
        options = replace(options, matmul_const_b_only=True)
    chosen = arguments.names(op_types, "op_types_to_quantize")
    arguments.check_operators(model, chosen)
    included = arguments.names(nodes_to_quantize, "nodes_to_quantize")
    excluded = arguments.names(nodes_to_exclude, "nodes_to_exclude")
    warn_of_unknown_nodes(model, included, "nodes_to_quantize")
    warn_of_unknown_nodes(model, excluded, "nodes_to_exclude")
    raise_opset(model, MINIMUM_OPSET)
    settings = Settings(
        op_types=frozenset(chosen or IntegerOpsRegistry),
        weight_type=weight_type,
        per_channel=bool(per_channel),
        reduce_range=bool(reduce_range),
        nodes_to_quantize=frozenset(included),
        nodes_to_exclude=frozenset(excluded),
        options=options,
        overrides=Overrides.of(options.tensor_quant_overrides, model, QuantType.QUInt8),
    )
    prepare(model)
    settings.assumed_types = assume_types(model, options.default_tensor_type)
    warn_unless_wanted(model, settings)
    DynamicRewriter(model, settings, RULES).run()
    finish(model, settings)


def prepare(model: Model) -> None:
    """Constants as initializers, and Gemm as MatMul and Add, in bodies too."""
    for graph in _graphs(model.graph):
        lift_constants(graph)
        for node in list(graph.nodes):
            if node.op_type == "Gemm" and not node.domain:
                _as_matmul(graph, node)


def _graphs(graph: Graph) -> Iterable[Graph]:
    yield graph
    for node in graph.nodes:
        for _, body in node.subgraphs():
            yield from _graphs(body)


def _as_matmul(graph: Graph, node: Node) -> None:
    """Rewrite a Gemm without factors and without a transposed left operand."""
    attrs = node.attrs
    if attrs.get("alpha", 1.0) != 1.0 or attrs.get("beta", 1.0) != 1.0 or attrs.get("transA", 0):
        return
    left, right, bias, result = node.input(0), node.input(1), node.input(2), node.outputs[0]
    assert left is not None and right is not None
    if attrs.get("transB", 0):
        right = _transposed(graph, node, right)
    named = f"{node.name}_MatMul" if node.name else ""
    product = Value(f"{result.name}_MatMul" if bias is not None else result.name, result.type)
    graph.insert(Node("MatMul", [left, right], [product], name=named, origin=node.origin), before=node)
    if bias is not None:
        total = Value(result.name, result.type)
        named = f"{node.name}_Add" if node.name else ""
        graph.insert(Node("Add", [product, bias], [total], name=named, origin=node.origin), before=node)
        product = total
    graph.replace_uses(result, product)
    graph.remove(node)


def _transposed(graph: Graph, node: Node, right: Value) -> Value:
    if right.const is not None:
        if right.uses.keys() == {(node, 1)} and graph.initializers.get(right.name) is right:
            del graph.initializers[right.name]
            return graph.add_const(np.ascontiguousarray(right.numpy().T), right.name)
        return graph.add_const(np.ascontiguousarray(right.numpy().T), f"{right.name}_Transposed")
    made = Value(f"{right.name}_Transposed", right.type)
    name = f"{node.name}_Transpose" if node.name else ""
    graph.insert(Node("Transpose", [right], [made], name=name), before=node)
    return made


class DynamicRewriter(Rewriter):
    """Activations are quantized by a DynamicQuantizeLinear, which computes their scale."""

    def quantized(self, value: Value) -> Stored:
        integers = self.value(names.quantized(value.name), dtypes.u8, value)
        scale, zero = (
            self.value(names.scale(value.name), dtypes.f32),
            self.value(names.zero_point(value.name), dtypes.u8),
        )
        source = value
        if value.dtype is not dtypes.f32:
            source = self.value(f"{value.name}_f32", dtypes.f32, value)
            self.add("Cast", [value], [source], {"to": dtypes.f32.onnx}, name=f"{value.name}_f32_Cast")
        self.add("DynamicQuantizeLinear", [source], [integers, scale, zero], name=names.quantize_node(value.name))
        return Stored(integers, scale, zero, is_real_too=True)


# -- rules


def matmul_integer(rewriter: Rewriter, node: Node) -> bool:
    """MatMulInteger, and the product of the two scales."""
    if not wants_product(rewriter, node):
        return False
    source = rewriter.activation(node.input(0))
    weight = rewriter.weight(node.input(1), axis=column_axis(node.input(1)))
    if source is None or weight is None:
        return False
    result = node.outputs[0]
    made = _scaled(rewriter, node, "MatMulInteger", source, weight, {}, result.name)
    rewriter.graph.replace_uses(result, made)
    return True


def conv_integer(rewriter: Rewriter, node: Node) -> bool:
    """ConvInteger; the bias is added to the scaled sums."""
    operand, bias, result = node.input(1), node.input(2), node.outputs[0]
    if operand is None or operand.const is None or not is_real(node.input(0)) or not is_real(operand):
        return False
    source, weight = rewriter.activation(node.input(0)), rewriter.weight(operand)
    if source is None or weight is None:
        return False
    name = result.name if bias is None else f"{result.name}quant_scaled_output"
    made = _scaled(rewriter, node, "ConvInteger", source, weight, node.attrs, name)
    if bias is not None:
        shape = np.ones(len(operand.const.shape), np.int64)
        shape[1] = -1
        column = rewriter.value(f"{result.name}_bias_reshape_output", _real_type(result))
        to = rewriter.const(shape, f"{result.name}_bias_reshape_shape")
        rewriter.add("Reshape", [rewriter.real(bias), to], [column], name=f"{result.name}_bias_reshape")
        total = Value(result.name, result.type)
        rewriter.add("Add", [made, column], [total], name=f"{result.name}_bias_add")
        made = total
    rewriter.graph.replace_uses(result, made)
    return True


def _scaled(
    rewriter: Rewriter,
    node: Node,
    op_type: str,
    source: Stored,
    weight: Stored,
    attrs: dict[str, Any],
    name: str,
) -> Value:
    """A product of integers as reals: cast, and multiplied by both scales. f16 models are scaled in f32, because the
    product of two scales may be too small for f16.
    """
    result, prefix = node.outputs[0], quantized_name(node)
    stem = f"{result.name}_output_quantized"
    sums = rewriter.value(stem, dtypes.i32, result)
    inputs = [source.integers, weight.integers, source.zero_point, weight.zero_point]
    rewriter.add(op_type, inputs, [sums], attrs, name=prefix)
    cast = rewriter.value(f"{stem}_cast_output", dtypes.f32, result)
    rewriter.add("Cast", [sums], [cast], {"to": dtypes.f32.onnx}, name=f"{stem}_cast")
    factors = f"{prefix}_scales_mul" if prefix else f"{source.scale.name}_{weight.scale.name}_mul"
    scale = rewriter.value(f"{factors}:0", dtypes.f32)
    rewriter.add("Mul", [_as_f32(rewriter, source), _as_f32(rewriter, weight)], [scale], name=factors)
    is_f32 = _real_type(result) is dtypes.f32
    made = rewriter.value(name if is_f32 else f"{name}_f32", dtypes.f32, result)
    rewriter.add("Mul", [cast, scale], [made], name=f"{prefix}_output_scale_mul" if prefix else "")
    if not is_f32:
        rounded = Value(name, result.type)
        rewriter.add("Cast", [made], [rounded], {"to": _real_type(result).onnx}, name=f"{name}_f32_Cast")
        made = rounded
    return made


def _as_f32(rewriter: Rewriter, stored: Stored) -> Value:
    if stored.scale.dtype is dtypes.f32 or stored.parameters is None:
        return stored.scale
    return rewriter.const(stored.parameters.scale.astype(np.float32), f"{stored.scale.name}_f32")


def _real_type(value: Value) -> dtypes.DType:
    return value.dtype or dtypes.f32


def attention(rewriter: Rewriter, node: Node) -> bool:
    """com.microsoft's Attention becomes QAttention; sizes of q, k and v that differ are not supported by it."""
    if node.domain != MICROSOFT or "qkv_hidden_sizes" in node.attrs or not is_weight(node.input(1)):
        return False
    source, weight = rewriter.activation(node.input(0)), rewriter.weight(node.input(1), axis=-1)
    if source is None or weight is None:
        return False
    inputs = [
        source.integers, weight.integers, node.input(2), source.scale, weight.scale, node.input(3),
        source.zero_point, weight.zero_point, node.input(4),
    ]  # fmt: skip
    return _replace(rewriter, node, "QAttention", inputs, node.attrs)


def lstm(rewriter: Rewriter, node: Node) -> bool:
    """DynamicQuantizeLSTM: both weights transposed, per direction or per gate's row."""
    if not is_weight(node.input(1)) or not is_weight(node.input(2)) or node.attrs.get("layout", 0):
        return False
    stored = [_lstm_weight(rewriter, node.input(i)) for i in (1, 2)]
    inputs: list[Value | None] = [rewriter.real(v) if v is not None else None for v in node.inputs[:1]]
    inputs += [each.integers for each in stored]
    inputs += [None if v is None else rewriter.real(v) for v in (node.input(i) for i in range(3, 8))]
    for each in stored:
        inputs += [each.scale, each.zero_point]
    kept = {key: value for key, value in node.attrs.items() if key != "layout"}
    return _replace(rewriter, node, "DynamicQuantizeLSTM", inputs, kept)


def _lstm_weight(rewriter: Rewriter, value: Value | None) -> Stored:
    """int8: with a scale for each direction, or for each row of each direction, whose zero points must be 0."""
    assert value is not None
    found = rewriter.find(value)
    if found is not None:
        return found
    data, settings, per_row = value.numpy(), rewriter.settings, rewriter.settings.per_channel
    flat = data.reshape(-1, data.shape[2]) if per_row else data
    parameters = constant_parameters(
        Value(value.name, const=Tensor.of(flat)),
        settings,
        is_weight=True,
        axis=0,
        blocks=False,
        kind=QuantType.QInt8,
        symmetric=per_row or settings.is_weight_symmetric(QuantType.QInt8),
    )
    integers = quantize_array(flat, parameters).reshape(data.shape).transpose(0, 2, 1)
    shape = data.shape[:2] if per_row else data.shape[:1]
    made = Parameters(QuantType.QInt8, parameters.scale.reshape(shape), parameters.zero_point.reshape(shape))
    stored = Stored(
        rewriter.const(np.ascontiguousarray(integers), names.quantized(value.name)),
        rewriter.const(made.scale, names.scale(value.name)),
        rewriter.const(made.zero_point, names.zero_point(value.name)),
        made,
        is_real_too=True,
    )
    rewriter.stored[value] = stored
    return stored


def _replace(rewriter: Rewriter, node: Node, op_type: str, inputs: list[Value | None], attrs: dict[str, Any]) -> bool:
    """An operator of com.microsoft in place of a node, with real results of the same names."""
    outputs = [Value(out.name, out.type) for out in node.outputs]
    rewriter.add(op_type, inputs, outputs, attrs, name=quantized_name(node), domain=MICROSOFT)
    for old, new in zip(node.outputs, outputs, strict=True):
        rewriter.graph.replace_uses(old, new)
    return True


RULES: dict[str, Rule] = {operator: globals()[rule] for operator, rule in IntegerOpsRegistry.items()}

__all__ = ["RULES", "embed_layer_normalization", "gather", "movement", "quantize_dynamically"]
