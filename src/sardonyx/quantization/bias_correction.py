"""Bias correction: the mean error of each quantized layer's result, channel by channel, moved into its bias.

Rounded weights shift the mean of a layer's result. The shift is measured on calibration data, in one pass: beside each
quantized layer its float twin reads the same input, and the mean of the difference is an output of the graph.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.quantization.data import feeds_of
from sardonyx.quantization.edges import Edges, attribute, onnx_op, read_proto, unused_name, write_proto

if TYPE_CHECKING:
    import onnx

Array = Any

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Correction:
    """A layer whose bias was changed; shifts are in units of the layer's result."""

    name: str
    channels: int
    largest_shift: float
    rms_shift: float

    def __str__(self) -> str:
        shifts = f"{self.rms_shift:.3g} rms, {self.largest_shift:.3g} at most"
        return f"{self.name}: {self.channels} channels, shifted by {shifts}"


@dataclass(frozen=True)
class BiasCorrected:
    """A corrected model; ``skipped`` says of other layers why their biases are as they were."""

    model: onnx.ModelProto
    layers: tuple[Correction, ...]
    skipped: dict[str, str]

    def __str__(self) -> str:
        lines = [f"biases of {len(self.layers)} layers corrected", *(f"  {layer}" for layer in self.layers)]
        return "\n".join([*lines, *(f"  {name}: not corrected: {why}" for name, why in self.skipped.items())])


def correct_biases(
    float_model: Any, quantized_model: Any, data: Any, model_output: str | os.PathLike[str] | None = None
) -> BiasCorrected:
    """Correct the biases of a copy of a QDQ model, made of ``float_model``; with ``model_output``, write it there.

    Models are paths or ModelProtos; ``data`` is a CalibrationDataReader or an iterable of feeds. Corrected are Conv,
    ConvTranspose, Gemm, and MatMul with a constant bias added to it, whose weights are quantized.
    """
    model, source = read_proto(quantized_model), read_proto(float_model)
    edges, originals = Edges(model.graph), Edges(source.graph)
    skipped: dict[str, str] = {}
    found = []
    by_name = {node.name: node for node in source.graph.node if node.name}
    for node in model.graph.node:
        if onnx_op(node) in LAYERS and edges.constant(node.input[1]) is None:
            layer = _layer_of(edges, originals, node, by_name.get(node.name))
            if isinstance(layer, _Layer):
                found.append(layer)
            elif layer is not None:
                skipped[node.name] = layer
    if not found and not skipped:
        raise InvalidArgument(
            "the quantized model has no layer with quantized weights",
            expected="a model with QuantizeLinear and DequantizeLinear, from QuantFormat.QDQ",
        )
    shifts = _measured(model, source, found, data) if found else []
    corrections = []
    for layer, shift in zip(found, shifts, strict=True):
        if why := layer.bias.add(edges, shift):
            skipped[layer.node.name] = why
        else:
            rms, largest = float(np.sqrt(np.mean(shift**2))), float(np.abs(shift).max())
            corrections.append(Correction(layer.node.name, shift.size, largest, rms))
    edges.remove_unread()
    if model_output is not None:
        write_proto(model, model_output)
    return BiasCorrected(model, tuple(corrections), skipped)


@dataclass
class _Bias:
    """Where a layer's bias is: a float constant, or a constant that a DequantizeLinear reads; or nowhere yet."""

    node: onnx.NodeProto
    """The node that adds it: the layer, or an Add that follows it."""
    position: int
    per_unit: float = 1.0
    """What the bias is multiplied by when it is added."""

    def add(self, edges: Edges, shift: Array) -> str | None:
        """Add to the bias; why not, if that cannot be."""
        shift = shift / self.per_unit
        taken = edges.names()
        if len(self.node.input) <= self.position or not self.node.input[self.position]:
            name = unused_name(f"{self.node.name}.corrected_bias", taken)
            self._read(name)
            self._add_quantized(edges, name, shift, taken)
            return None
        name = self.node.input[self.position]
        plain = edges.constant(name)
        if plain is not None:
            own = unused_name(f"{name}.corrected", taken)
            edges.add(own, (plain + _along(shift, plain)).astype(plain.dtype))
            self._read(own)
            return None
        maker = edges.maker[name]
        codes, scale, *rest = (edges.constant(n) for n in maker.input)
        if scale.size != 1 and scale.shape != codes.shape:
            return "its bias has several scales, but not one for each element"
        zero = rest[0] if rest else np.zeros((), codes.dtype)
        limits = np.iinfo(codes.dtype)
        exact = (codes.astype(np.float64) - zero) * scale
        wanted = exact + _along(shift, exact)
        reach = max(1.0, _overrun(wanted / scale + zero, zero, limits))
        if reach > 1 and codes.dtype == np.int32:
            return "its corrected bias does not fit in int32 at the scale of its products"
        own_scale = (scale * reach).astype(scale.dtype)
        own_codes = np.clip(np.rint(wanted / own_scale) + zero, limits.min, limits.max).astype(codes.dtype)
        self._read(_dequantized(edges, self.node, name, own_codes, own_scale, zero, maker, taken))
        return None

    def _read(self, name: str) -> None:
        while len(self.node.input) <= self.position:
            self.node.input.append("")
        self.node.input[self.position] = name

    def _add_quantized(self, edges: Edges, name: str, shift: Array, taken: set[str]) -> None:
        """A new bias, in i32 at the scale of the layer's products where that is known."""
        data, weight = (edges.maker.get(self.node.input[i]) for i in (0, 1))
        of_data, of_weight = (None if m is None else edges.constant(m.input[1]) for m in (data, weight))
        if of_data is None or of_weight is None or of_data.size != 1 or of_weight.size not in (1, shift.size):
            edges.add(name, shift.astype(np.float32))
            return
        scale = (of_data.reshape(()) * np.broadcast_to(of_weight.reshape(-1), shift.shape)).astype(np.float32)
        codes = np.rint(shift / scale)
        if np.abs(codes).max() >= 2**31:
            edges.add(name, shift.astype(np.float32))
            return
        assert weight is not None
        made = _dequantized(edges, self.node, name, codes.astype(np.int32), scale, np.int32(0), weight, taken)
        self._read(made)


def _dequantized(
    edges: Edges, reader: onnx.NodeProto, stem: str, codes: Array, scale: Array, zero: Array, like: Any, taken: set[str]
) -> str:
    """A DequantizeLinear of new constants in front of its reader; returns its result's name."""
    from onnx import helper

    names = [unused_name(f"{stem}.corrected{part}", taken) for part in ("", "_scale", "_zero_point", "_value")]
    zero_points = np.full(scale.shape, zero, codes.dtype) if np.ndim(zero) == 0 else zero
    for name, array in zip(names, (codes, scale, zero_points), strict=False):
        edges.add(name, np.asarray(array))
    node = helper.make_node("DequantizeLinear", names[:3], names[3:], name=unused_name(f"{stem}.corrected_dq", taken))
    node.domain = like.domain
    if scale.size > 1:
        node.attribute.append(helper.make_attribute("axis", 0))
    nodes = edges.graph.node
    nodes.insert(next(i for i, n in enumerate(nodes) if n is reader or n == reader), node)
    return names[3]


def _along(shift: Array, bias: Array) -> Array:
    """The shift in the shape of a bias that has one long axis."""
    return shift.reshape(bias.shape) if bias.size == shift.size else shift


def _overrun(codes: Array, zero: Array, limits: Any) -> float:
    """By how much the codes exceed what the type holds; 1 where they just fit."""
    above = (codes - zero).max() / max(float(limits.max) - float(np.max(zero)), 0.5)
    below = (codes - zero).min() / min(float(limits.min) - float(np.min(zero)), -0.5)
    return float(max(above, below))


@dataclass
class _Layer:
    node: onnx.NodeProto
    weight: str
    """Float weights, in the original model; and its bias there."""
    float_bias: str
    data: str
    """The tensor of the quantized model that the twin reads."""
    channels: int
    axis: int
    """The result's axis of channels; -1 the last."""
    bias: _Bias


def _layer_of(edges: Edges, originals: Edges, node: onnx.NodeProto, twin: onnx.NodeProto | None) -> _Layer | str | None:
    """A node as a layer to correct; why it is none; or None if its weights are not constants that were quantized."""
    maker = edges.maker.get(node.input[1])
    if maker is None or maker.op_type != "DequantizeLinear" or not edges.is_constant(maker.input[0]):
        return None
    if twin is None or twin.op_type != node.op_type or originals.constant(twin.input[1]) is None:
        return "the float model has no such layer with constant weights"
    shape = originals.constant(twin.input[1]).shape
    if node.op_type == "Conv":
        channels, axis = shape[0], 1
    elif node.op_type == "ConvTranspose":
        channels, axis = shape[1] * attribute(node, "group", 1), 1
    elif node.op_type == "Gemm":
        channels, axis = shape[0 if attribute(node, "transB", 0) else 1], -1
    elif len(shape) == 2:
        channels, axis = shape[1], -1
    else:
        return "its weights are not a matrix"
    bias = _bias_of(edges, node, int(channels))
    if isinstance(bias, str):
        return bias
    float_bias = twin.input[2] if len(twin.input) > 2 else ""
    if float_bias and not originals.is_constant(float_bias):
        return "its bias is not constant"
    return _Layer(node, twin.input[1], float_bias, _read_by_twin(edges, originals, node), int(channels), axis, bias)


def _bias_of(edges: Edges, node: onnx.NodeProto, channels: int) -> _Bias | str:
    if node.op_type != "MatMul":
        beta = attribute(node, "beta", 1.0) if node.op_type == "Gemm" else 1.0
        if beta == 0:
            return "its bias is multiplied by 0"
        bias = _Bias(node, 2, beta)
    else:
        name = node.output[0]
        while (reader := edges.only_reader(name)) is not None and reader.op_type in (
            "QuantizeLinear",
            "DequantizeLinear",
        ):
            name = reader.output[0]
        if reader is None or onnx_op(reader) != "Add":
            return "no bias is added to it"
        bias = _Bias(reader, 1 if reader.input[0] == name else 0)
    if len(bias.node.input) <= bias.position or not bias.node.input[bias.position]:
        return bias
    stored = bias.node.input[bias.position]
    maker = edges.maker.get(stored)
    if not edges.is_constant(stored):
        if maker is None or maker.op_type != "DequantizeLinear" or not all(map(edges.is_constant, maker.input)):
            return "its bias is not constant"
        if edges.constant(maker.input[0]).dtype not in (np.int32, np.int16, np.uint16, np.int8, np.uint8):
            return "its bias is of a type that is not corrected"
        stored = maker.input[0]
    shape = edges.constant(stored).shape
    if channels not in shape or np.prod(shape) != channels:
        return "what is added to it is not one number per channel"
    return bias


def _read_by_twin(edges: Edges, originals: Edges, node: onnx.NodeProto) -> str:
    """The layer's input before it was quantized, if the original's node makes it: a folded Relu would be missing."""
    name = str(node.input[0])
    maker = edges.maker.get(name)
    if maker is None or maker.op_type != "DequantizeLinear":
        return name
    quantize = edges.maker.get(maker.input[0])
    if quantize is None or quantize.op_type != "QuantizeLinear":
        return name
    before = str(quantize.input[0])
    mine, original = edges.maker.get(before), originals.maker.get(before)
    if (mine is None) != (original is None) or (mine is not None and original and mine.op_type != original.op_type):
        return name
    return before


def _measured(model: onnx.ModelProto, source: onnx.ModelProto, layers: Iterable[_Layer], data: Any) -> list[Array]:
    """The mean over all runs of float minus quantized, for every layer and channel."""
    from sardonyx.quantization.running import Runner

    probe, outputs = _with_twins(model, source, list(layers))
    sums, runs = [np.zeros(0)] * len(outputs), 0
    with Runner(probe, outputs) as runner:
        for feeds in feeds_of(data):
            means = runner(feeds)
            sums = [
                mean.astype(np.float64) if not runs else total + mean for total, mean in zip(sums, means, strict=True)
            ]
            runs += 1
    if not runs:
        raise InvalidArgument("there are no calibration data", hint="a reader that was read to its end gives nothing")
    for layer, total in zip(layers, sums, strict=True):
        if not np.isfinite(total).all():
            raise InvalidArgument("calibration data give NaN or infinite results", where=layer.node.name)
    return [total / runs for total in sums]


def _with_twins(
    model: onnx.ModelProto, source: onnx.ModelProto, layers: list[_Layer]
) -> tuple[onnx.ModelProto, list[str]]:
    """The quantized model with a float twin beside each layer, and the names of the means of their differences."""
    import onnx
    from onnx import helper, numpy_helper

    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    taken, originals = Edges(probe.graph).names(), Edges(source.graph)
    axes_are_inputs = next(o.version for o in probe.opset_import if o.domain in ("", "ai.onnx")) >= 18
    outputs = []

    def constant(stem: str, array: Array) -> str:
        name = unused_name(stem, taken)
        probe.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(operator: str, inputs: list[str], stem: str, **attributes: Any) -> str:
        name = unused_name(stem, taken)
        probe.graph.node.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    for layer in layers:
        stem = f"{layer.node.name}.twin"
        operands = [constant(stem, originals.constant(n)) for n in (layer.weight, layer.float_bias) if n]
        twin = helper.make_node(layer.node.op_type, [layer.data, *operands], [unused_name(stem, taken)], name=stem)
        twin.attribute.extend(layer.node.attribute)
        probe.graph.node.append(twin)
        error = node("Sub", [twin.output[0], layer.node.output[0]], f"{stem}.error")
        shape = [0, layer.channels, -1] if layer.axis == 1 else [-1, layer.channels]
        flat = node("Reshape", [error, constant(f"{stem}.shape", np.array(shape, np.int64))], f"{stem}.flat")
        axes = [0, 2] if layer.axis == 1 else [0]
        if axes_are_inputs:
            operand = constant(f"{stem}.axes", np.array(axes, np.int64))
            mean = node("ReduceMean", [flat, operand], f"{stem}.mean", keepdims=0)
        else:
            mean = node("ReduceMean", [flat], f"{stem}.mean", keepdims=0, axes=axes)
        probe.graph.output.append(helper.make_tensor_value_info(mean, onnx.TensorProto.FLOAT, [layer.channels]))
        outputs.append(mean)
    return probe, outputs
