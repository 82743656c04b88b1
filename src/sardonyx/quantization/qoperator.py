"""QOperator format: operators on integers of known scale (QLinearConv, QLinearMatMul, com.microsoft's QLinearAdd ...).

A rule converts a node, or returns False where it has to read reals.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from sardonyx.ir.graph import Model, Node, Value
from sardonyx.quantization import names
from sardonyx.quantization.kinds import QuantType
from sardonyx.quantization.lookups import embed_layer_normalization, gather
from sardonyx.quantization.parameters import (
    Parameters,
    bias_scale,
    quantize_array,
    quantize_bias,
    scale_for_bias,
)
from sardonyx.quantization.plan import NEWER_THAN, adjust_ranges, is_cut_by_type
from sardonyx.quantization.registry import QLinearOpsRegistry
from sardonyx.quantization.rewriter import Rewriter, Rule, Stored, quantized_name
from sardonyx.quantization.settings import Settings
from sardonyx.quantization.source import MICROSOFT, is_real, is_weight

logger = logging.getLogger("sardonyx.quantization")


def quantize_qoperator(model: Model, settings: Settings) -> None:
    """Quantize a model in place."""
    adjust_ranges(model.graph, settings)
    Rewriter(model, settings, RULES).run()


def _linear(
    rewriter: Rewriter,
    node: Node,
    op_type: str,
    inputs: list[Value | None],
    output: Stored,
    *,
    domain: str = MICROSOFT,
    attrs: dict[str, Any] | None = None,
    name: str | None = None,
) -> bool:
    """Replace a node by one on integers, whose result has the scale of ``output``."""
    result = node.outputs[0]
    integers = rewriter.value(names.quantized(result.name) if name is None else name, _dtype(output), result)
    rewriter.add(
        op_type,
        inputs,
        [integers],
        node.attrs if attrs is None else attrs,
        name=quantized_name(node),
        domain=domain,
    )
    rewriter.keep(result, integers, output.scale, output.zero_point, output)
    return True


def _dtype(stored: Stored) -> Any:
    assert stored.zero_point.dtype is not None
    return stored.zero_point.dtype


def _fixed(rewriter: Rewriter, value: Value, scale: float, zero: int) -> Stored | None:
    """A result whose scale the operator defines; None if it was not calibrated."""
    if rewriter.settings.range_of(value) is None or value.dtype is None:
        return None
    kind = rewriter.settings.activation_type
    made = Parameters(kind, np.array(scale, value.dtype.numpy), np.array(zero, kind.dtype.numpy))
    return rewriter.known(value, made)


# -- products


def convolution(rewriter: Rewriter, node: Node) -> bool:
    if not is_real(node.input(0)) or not is_real(node.input(1)):
        return False
    output = rewriter.known(node.outputs[0])
    source = None if output is None else rewriter.activation(node.input(0))
    if output is None or source is None:
        return False
    is_per_channel = is_weight(node.input(1)) and rewriter.settings.per_channel
    weight = rewriter.weight(
        node.input(1), axis=0 if is_per_channel else None, kind=QuantType.QInt8 if is_per_channel else None
    )
    if weight is None:
        return False
    inputs: list[Value | None] = [*source.all, *weight.all, output.scale, output.zero_point]
    if node.input(2) is not None:
        bias = _bias(rewriter, node, source, weight)
        if bias is None:
            return False
        inputs = [*source.all, *weight.all, output.scale, output.zero_point, bias]
    return _linear(rewriter, node, "QLinearConv", inputs, output, domain="")


def gemm(rewriter: Rewriter, node: Node) -> bool:
    """alpha stays an attribute; beta becomes part of the quantized bias."""
    if not is_real(node.input(0)) or not is_real(node.input(1)):
        return False
    output = rewriter.known(node.outputs[0])
    bias = node.input(2)
    if output is None or (bias is not None and not is_weight(bias)):
        return False
    source = rewriter.activation(node.input(0))
    axis = 0 if node.attrs.get("transB") else 1
    weight = None if source is None else rewriter.weight(node.input(1), axis=axis)
    if source is None or weight is None:
        return False
    integers = None
    if bias is not None:
        factor = float(node.attrs.get("beta", 1.0)) / float(node.attrs.get("alpha", 1.0))
        integers = _bias(rewriter, node, source, weight, factor)
        if integers is None:
            return False
    inputs = [*source.all, *weight.all, integers, output.scale, output.zero_point]
    kept = {key: value for key, value in node.attrs.items() if key != "beta"}
    return _linear(rewriter, node, "QGemm", inputs, output, attrs=kept)


def matmul(rewriter: Rewriter, node: Node) -> bool:
    if not wants_product(rewriter, node):
        return False
    output = rewriter.known(node.outputs[0])
    if output is None:
        return False
    source = rewriter.activation(node.input(0))
    weight = None if source is None else rewriter.weight(node.input(1), axis=column_axis(node.input(1)))
    if source is None or weight is None:
        return False
    inputs: list[Value | None] = [*source.all, *weight.all, output.scale, output.zero_point]
    return _linear(rewriter, node, "QLinearMatMul", inputs, output, domain="", attrs={})


def wants_product(rewriter: Rewriter, node: Node) -> bool:
    """Whether a MatMul multiplies reals, by a constant if only those are wanted."""
    if not (is_real(node.input(0)) and is_real(node.input(1))):
        return False
    right = node.input(1)
    return not rewriter.settings.options.matmul_const_b_only or (right is not None and right.const is not None)


def column_axis(weight: Value | None) -> int | None:
    """The axis of the channels of a product's right operand; None for other ranks than 2, for which onnxruntime's
    kernels have no channels.
    """
    is_matrix = weight is not None and weight.const is not None and len(weight.const.shape) == 2
    return 1 if is_matrix else None


def _bias(rewriter: Rewriter, node: Node, source: Stored, weight: Stored, factor: float = 1.0) -> Value | None:
    """The bias as int32; the weight's scale is enlarged if it would not fit otherwise."""
    bias, operand = node.input(2), node.input(1)
    if bias is None or not is_weight(bias) or source.parameters is None or weight.parameters is None:
        return None
    data = bias.numpy() * np.float64(factor)
    given = weight.parameters
    if operand is not None and given.type is QuantType.QInt8 and not given.zero_point.any():
        enlarged = scale_for_bias(source.parameters.scale, given.scale, data)
        if not np.array_equal(enlarged, given.scale) and operand.const is not None:
            made = Parameters(given.type, enlarged, given.zero_point, given.axis)
            fresh = rewriter.store_constant(operand, made)
            weight.integers, weight.scale, weight.zero_point = fresh.all
            weight.parameters = given = made
    scale = bias_scale(source.parameters.scale, given.scale)
    integers, clipped = quantize_bias(data, scale)
    if clipped:
        logger.warning("%d numbers of bias %r do not fit int32 and are clipped", clipped, bias.name)
    return rewriter.const(integers, names.quantized(bias.name))


# -- pointwise


def binary(rewriter: Rewriter, node: Node) -> bool:
    if not all(is_real(value) for value in node.inputs):
        return False
    output = rewriter.known(node.outputs[0])
    operands = [] if output is None else [rewriter.activation(value) for value in node.inputs]
    if output is None or None in operands:
        return False
    inputs = [each for operand in operands if operand is not None for each in operand.all]
    return _linear(rewriter, node, f"QLinear{node.op_type}", [*inputs, output.scale, output.zero_point], output)


def removable(rewriter: Rewriter, node: Node) -> bool:
    """Relu and Clip after a quantized tensor: its type ends where they cut, so they do nothing."""
    source = node.inputs[0]
    found = None if source is None else rewriter.stored.get(source)
    if found is None or found.parameters is None or found.parameters.axis is not None:
        return False
    if rewriter.settings.options.activation_symmetric or not is_cut_by_type(node, found.parameters):
        return False
    rewriter.keep(node.outputs[0], found.integers, found.scale, found.zero_point, found)
    return True


def activation(rewriter: Rewriter, node: Node) -> bool:
    """LeakyRelu and Sigmoid."""
    if not is_real(node.input(0)):
        return False
    if node.op_type == "Sigmoid" and rewriter.settings.options.nnapi_sigmoid:
        output = _fixed(rewriter, node.outputs[0], 1 / 256, 0)
    else:
        output = rewriter.known(node.outputs[0])
    source = None if output is None else rewriter.activation(node.input(0))
    if output is None or source is None:
        return False
    return _linear(rewriter, node, f"QLinear{node.op_type}", [*source.all, output.scale, output.zero_point], output)


def softmax(rewriter: Rewriter, node: Node) -> bool:
    """Results lie between 0 and 1, which 256 steps divide."""
    if not is_real(node.input(0)):
        return False
    lowest = 0 if rewriter.settings.activation_type is QuantType.QUInt8 else -128
    output = _fixed(rewriter, node.outputs[0], 1 / 256, lowest)
    source = None if output is None else rewriter.activation(node.input(0))
    if output is None or source is None:
        return False
    attrs = {**node.attrs, "opset": rewriter.opset}
    return _linear(
        rewriter, node, "QLinearSoftmax", [*source.all, output.scale, output.zero_point], output, attrs=attrs
    )


def where(rewriter: Rewriter, node: Node) -> bool:
    if not rewriter.settings.options.force_quantize_no_input_check:
        return False
    output = rewriter.known(node.outputs[0])
    choices = [] if output is None else [rewriter.activation(value) for value in node.inputs[1:3]]
    if output is None or None in choices:
        return False
    inputs = [each for choice in choices if choice is not None for each in choice.all]
    return _linear(rewriter, node, "QLinearWhere", [node.inputs[0], *inputs, output.scale, output.zero_point], output)


# -- windows


def average_pool(rewriter: Rewriter, node: Node) -> bool:
    if not is_real(node.input(0)):
        return False
    output = rewriter.known(node.outputs[0])
    source = None if output is None else rewriter.activation(node.input(0))
    if output is None or source is None:
        return False
    return _linear(rewriter, node, "QLinearAveragePool", [*source.all, output.scale, output.zero_point], output)


def global_average_pool(rewriter: Rewriter, node: Node) -> bool:
    source = rewriter.find(node.input(0))
    if source is None:
        return False
    output = rewriter.known(node.outputs[0]) or source
    return _linear(
        rewriter,
        node,
        "QLinearGlobalAveragePool",
        [*source.all, output.scale, output.zero_point],
        output,
        attrs={**node.attrs, "channels_last": 0},
    )


# -- movement


def movement(rewriter: Rewriter, node: Node) -> bool:
    """Operators that move values, or choose among them, do so with integers."""
    if rewriter.opset < NEWER_THAN.get(node.op_type, 0):
        return False
    source = rewriter.find(node.input(0))
    if source is None and rewriter.settings.options.force_quantize_no_input_check:
        source = rewriter.activation(node.input(0))
    if source is None or (source.parameters is not None and source.parameters.axis is not None):
        return False
    results = [rewriter.value(names.quantized(node.outputs[0].name), _dtype(source), node.outputs[0])]
    others = [_renamed(rewriter, node, out) for out in node.outputs[1:]]
    inputs = [source.integers, *(None if v is None else rewriter.real(v) for v in node.inputs[1:])]
    rewriter.add(node.op_type, inputs, results + others, node.attrs, name=node.name)
    rewriter.keep(node.outputs[0], results[0], source.scale, source.zero_point, source)
    return True


def _renamed(rewriter: Rewriter, node: Node, out: Value) -> Value:
    """A result that is no real, such as MaxPool's indices, of the node that takes the other's place."""
    made = Value(out.name, out.type)
    rewriter.graph.replace_uses(out, made)
    return made


def split(rewriter: Rewriter, node: Node) -> bool:
    if not is_real(node.input(0)):
        return False
    source = rewriter.activation(node.input(0))
    if source is None:
        return False
    results = [rewriter.value(f"{out.name}quantized", _dtype(source), out) for out in node.outputs]
    rewriter.add(node.op_type, [source.integers, *node.inputs[1:]], results, node.attrs, name=quantized_name(node))
    for out, result in zip(node.outputs, results, strict=True):
        rewriter.keep(out, result, source.scale, source.zero_point, source)
    return True


def pad(rewriter: Rewriter, node: Node) -> bool:
    """The constant that is padded is quantized like the input; 0 is the zero point."""
    source = rewriter.find(node.input(0))
    if source is None or rewriter.opset < 11 or source.parameters is None:
        return False
    inputs = [source.integers, *node.inputs[1:]]
    if node.attrs.get("mode", "constant") == "constant":
        filler = node.input(2)
        if filler is None:
            inputs = [*inputs[:2], source.zero_point, *inputs[3:]]
        elif filler.const is not None:
            integers = quantize_array(filler.numpy(), source.parameters)
            inputs[2] = rewriter.const(integers, names.quantized(filler.name))
        else:
            found = Stored(filler, source.scale, source.zero_point)
            made = rewriter.value(names.quantized(filler.name), _dtype(source), filler)
            rewriter.add("QuantizeLinear", found.all, [made], name=names.quantize_node(filler.name))
            inputs[2] = made
    result = rewriter.value(names.quantized(node.outputs[0].name), _dtype(source), node.outputs[0])
    rewriter.add("Pad", inputs, [result], node.attrs, name=node.name)
    rewriter.keep(node.outputs[0], result, source.scale, source.zero_point, source)
    return True


def concat(rewriter: Rewriter, node: Node) -> bool:
    if not all(is_real(value) for value in node.inputs):
        return False
    output = rewriter.known(node.outputs[0])
    parts = [] if output is None else [rewriter.activation(value) for value in node.inputs]
    if output is None or None in parts:
        return False
    inputs: list[Value | None] = [output.scale, output.zero_point]
    for part in parts:
        assert part is not None
        inputs += part.all
    return _linear(rewriter, node, "QLinearConcat", inputs, output)


def arg_max(rewriter: Rewriter, node: Node) -> bool:
    """The largest integer is where the largest real is."""
    source = rewriter.find(node.input(0))
    if source is not None:
        node.set_input(0, source.integers)
    return source is not None


RULES: dict[str, Rule] = {operator: globals()[rule] for operator, rule in QLinearOpsRegistry.items()}

__all__ = ["RULES", "embed_layer_normalization", "gather", "quantize_qoperator"]
