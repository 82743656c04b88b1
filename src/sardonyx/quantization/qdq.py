"""QDQ format: QuantizeLinear and DequantizeLinear around the operators of a plan, which stay operators on reals."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.ir.graph import Graph, Model, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.quantization import names
from sardonyx.quantization.kinds import NARROW, WIDE, QuantType
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.parameters import (
    Parameters,
    bias_scale,
    quantize_array,
    quantize_bias,
    scale_for_bias,
)
from sardonyx.quantization.plan import Bias, Mark, Plan, adjust_ranges
from sardonyx.quantization.settings import Settings
from sardonyx.quantization.source import MICROSOFT, drop_unused, local_uses, opset_of, place_after
from sardonyx.quantization.weights import constant_parameters

logger = logging.getLogger("sardonyx.quantization")


@dataclass
class Scaled:
    """Scale and zero point in the graph; ``converted`` is a second pair for some of the readers."""

    scale: Value
    zero_point: Value
    numbers: Any
    """The scale's numbers."""
    converted: Scaled | None = None
    receivers: frozenset[str] | None = None

    def of(self, reader: Node) -> Scaled:
        """What a reader of the tensor sees."""
        if self.converted is None or (self.receivers is not None and reader.name not in self.receivers):
            return self
        return self.converted


def quantize_qdq(model: Model, settings: Settings) -> None:
    """Quantize the main graph in place."""
    adjust_ranges(model.graph, settings)
    writer = _Writer(model, settings)
    writer.run()
    drop_unused(model.graph)


def contrib_domain(model: Model, settings: Settings) -> str:
    """The domain of QuantizeLinear: com.microsoft for types that ai.onnx has from opset 21 on."""
    kinds = {settings.activation_type, settings.weight_type, *settings.overrides.types()}
    is_early = opset_of(model) < 21 and not kinds.isdisjoint(WIDE | NARROW)
    return MICROSOFT if settings.options.use_qdq_contrib_ops or is_early else ""


class _Writer:
    def __init__(self, model: Model, settings: Settings) -> None:
        self.model, self.graph, self.settings = model, model.graph, settings
        self.order = {node: i for i, node in enumerate(self.graph.nodes)}
        self.domain = contrib_domain(model, settings)
        self.scaled: dict[Value, Scaled] = {}
        self.constants: dict[Value, Parameters] = {}
        self.plan = Plan(self.graph, opset_of(model), settings)

    def run(self) -> None:
        marks = self.plan.marks
        for value, mark in marks.items():
            if value.const is not None and mark.shares is None:
                self.constants[value] = constant_parameters(
                    value, self.settings, is_weight=mark.is_weight, axis=mark.axis
                )
        if not self.settings.options.qdq_disable_weight_adjust_for_int32_bias and self.settings.options.quantize_bias:
            self._fit_biases()
        for value, mark in marks.items():
            if mark.shares is None:
                self._write(value)
        self._write_sharing({value: mark for value, mark in marks.items() if mark.shares is not None})
        if self.settings.options.quantize_bias:
            for value, bias in self.plan.biases.items():
                self._write_bias(value, bias)
        if self.domain:
            self.model.opsets.setdefault(self.domain, 1)

    # -- tensors

    def _write(self, value: Value) -> None:
        if value in self.constants:
            self._write_constant(value, self.constants[value])
        elif value.producer is None or value.producer.op_type != "DequantizeLinear":
            override = self.settings.overrides.per_tensor(value.name)
            parameters = self.settings.activation_parameters(value, override)
            if parameters is None:
                self._leave(value)
                return
            scaled = self._scaled(value.name, parameters)
            if override.convert is not None:
                second = self.settings.activation_parameters(value, override.convert)
                assert second is not None
                scaled.converted = self._scaled(value.name, second, "_convert")
                scaled.receivers = override.convert.receivers
            self._write_activation(value, scaled)

    def _leave(self, value: Value) -> None:
        """A tensor stays real: its range is useless; it is an error if it has none."""
        if self.settings.range_of(value) is None:
            raise Misuse(
                "a tensor that is to be quantized was not calibrated",
                where=f"tensor {value.name!r}",
                hint="calibrate with the same operator types, or delete the calibration table of another model",
            )
        logger.warning("tensor %r reaches values too large to quantize and stays real", value.name)

    def _write_constant(self, value: Value, parameters: Parameters) -> None:
        scaled = self._scaled(value.name, parameters)
        self.scaled[value] = scaled
        uses = local_uses(value, self.graph)
        if self.settings.float_between:
            uses = [use for use in uses if not self.settings.excludes(use[0])]
        before = self._first(node for node, _ in uses)
        attrs: dict[str, Any] = {}
        if parameters.axis is not None:
            attrs["axis"] = parameters.axis
        if parameters.block_size:
            attrs["block_size"] = parameters.block_size
        result = Value(names.dequantize_output(value.name), value.type)
        if self.settings.options.add_qdq_pair_to_weight:
            stored = self._quantize(value.name, value, scaled, before, attrs)
        else:
            stored = self.graph.add_const(quantize_array(value.numpy(), parameters), names.quantized(value.name))
        self._dequantize(value.name, stored, result, scaled, before, attrs)
        for node, i in uses:
            node.set_input(i, result)
        if value.is_output:
            _move_outputs(self.graph, value, result)

    def _write_activation(self, value: Value, scaled: Scaled) -> None:
        self.scaled[value] = scaled
        receivers = list(self.plan.receivers.get(value, ()))
        if scaled.converted is not None:
            if self.settings.options.dedicated_qdq_pair and len(receivers) > 1:
                raise Misuse(
                    "a tensor with a second type cannot have pairs of its own for every reader",
                    where=f"tensor {value.name!r}",
                    hint="leave out DedicatedQDQPair, or convert in TensorQuantOverrides",
                )
            self._write_converted(value, scaled, receivers)
        elif self.settings.options.dedicated_qdq_pair and len(receivers) > 1:
            for i, node in enumerate(receivers, 1):
                self._pair(value, scaled, [use for use in local_uses(value, self.graph) if use[0] is node], f"_{i}")
        elif self.settings.float_between:
            self._pair(value, scaled, [use for use in local_uses(value, self.graph) if use[0] in receivers])
        else:
            self._pair(value, scaled, local_uses(value, self.graph))

    def _pair(self, value: Value, scaled: Scaled, uses: list[tuple[Node, int]], suffix: str = "") -> None:
        """QuantizeLinear and DequantizeLinear after a value, for some of its uses."""
        name, before = value.name, place_after(self.graph, value)
        result = Value(names.dequantize_output(name) + suffix, value.type)
        if value.is_output and value.producer is not None and not suffix and not self.settings.float_between:
            uses = list(value.uses)
            result.name, value.name = name, names.quantize_input(name)
            _move_outputs(self.graph, value, result)
        stored = self._quantize(name, value, scaled, before, {}, suffix)
        self._dequantize(name, stored, result, scaled, before, {}, suffix)
        for node, i in uses:
            node.set_input(i, result)

    def _write_converted(self, value: Value, scaled: Scaled, receivers: list[Node]) -> None:
        """Readers of the second type get a second pair after the first; a result of the graph has the first type
        unless all readers want the second.
        """
        second = scaled.converted
        assert second is not None
        chosen = [node for node in receivers if scaled.of(node) is second]
        uses, is_output = local_uses(value, self.graph), value.is_output and value.producer is not None
        name, before = value.name, place_after(self.graph, value)
        first_result = Value(names.dequantize_output(name), value.type)
        last_result = Value(names.dequantize_output(f"{name}_convert"), value.type)
        all_convert = len(chosen) == len(receivers)
        if is_output:
            value.name = names.quantize_input(name)
            shown = last_result if all_convert else first_result
            shown.name = name
            _move_outputs(self.graph, value, shown)
        stored = self._quantize(name, value, scaled, before, {})
        self._dequantize(name, stored, first_result, scaled, before, {})
        source = first_result
        if not all_convert:
            source = Value(names.quantize_input(f"{name}_convert"), value.type)
            self._dequantize(f"{name}_convert_clone", stored, source, scaled, before, {})
        again = self._quantize(f"{name}_convert", source, second, before, {})
        self._dequantize(f"{name}_convert", again, last_result, second, before, {})
        for node, i in uses:
            node.set_input(i, last_result if node in chosen else first_result)

    def _write_sharing(self, left: dict[Value, Mark]) -> None:
        """Tensors with the scale of another one, after that one; what has no source stays real."""
        while left:
            ready = [value for value, mark in left.items() if mark.shares is not None and mark.shares[0] in self.scaled]
            if not ready:
                return
            for value in ready:
                mark = left.pop(value)
                assert mark.shares is not None
                source, node = mark.shares
                found = self.scaled[source].of(node)
                scaled = Scaled(found.scale, found.zero_point, found.numbers)
                override = self.settings.overrides.first(value.name)
                if override.convert is not None:
                    second = self.settings.activation_parameters(value, override.convert)
                    if second is not None:
                        scaled.converted = self._scaled(value.name, second, "_convert")
                        scaled.receivers = override.convert.receivers
                self._write_activation(value, scaled)

    # -- biases

    def _fit_biases(self) -> None:
        """Enlarge scales of weights where a bias would not fit int32 otherwise."""
        for value, bias in self.plan.biases.items():
            weight = self.constants.get(bias.weight)
            if weight is None or bias.input not in self.plan.marks or weight.block_size:
                continue
            if weight.type not in (QuantType.QInt8, QuantType.QInt16) or weight.zero_point.any():
                continue
            source = self._input_scale(bias)
            if source is not None:
                weight.scale = scale_for_bias(source, weight.scale, value.numpy() * np.float64(bias.factor))

    def _input_scale(self, bias: Bias) -> Any:
        """The scale of the input, before it is written."""
        if bias.input in self.constants:
            return self.constants[bias.input].scale
        override = self.settings.overrides.first(bias.input.name)
        if override.convert is not None and (
            override.convert.receivers is None or bias.node.name in override.convert.receivers
        ):
            override = override.convert
        found = self.settings.activation_parameters(bias.input, override)
        return None if found is None else found.scale

    def _write_bias(self, value: Value, bias: Bias) -> None:
        source, weight = self._scale_numbers(bias.input, bias.node), self._scale_numbers(bias.weight, bias.node)
        if source is None or weight is None or np.ndim(weight) > 1:
            logger.info("the bias of %s stays real: its operands are not both quantized", bias.node.label)
            return
        data = value.numpy()
        name, before = value.name, bias.node
        if self.settings.weight_type.is_float8:
            return
        groups = int(bias.node.attrs.get("group", 1)) if bias.node.op_type == "ConvTranspose" else 1
        scale = bias_scale(source, weight, groups=groups)
        integers, clipped = quantize_bias(data * np.float64(bias.factor), scale)
        if clipped:
            logger.warning("%d numbers of bias %r do not fit int32 and are clipped", clipped, name)
        zero = np.zeros(scale.shape if scale.size > 1 else (), np.int32)
        stored = names.quantized(name)
        scaled = Scaled(
            self.graph.add_const(scale.astype(data.dtype), names.scale(stored)),
            self.graph.add_const(zero, names.zero_point(stored)),
            scale,
        )
        assert value.dtype is not None
        result = Value(name, TensorType(value.dtype, integers.shape))
        value.name = f"{name}_float"
        made = self.graph.add_const(integers, stored)
        attrs = {"axis": integers.ndim - 1} if scale.size > 1 else {}
        self._dequantize(name, made, result, scaled, before, attrs)
        for i, each in enumerate(bias.node.inputs):
            if each is value:
                bias.node.set_input(i, result)
        if "beta" in bias.node.attrs:
            bias.node.attrs["beta"] = 1.0

    def _scale_numbers(self, value: Value, reader: Node) -> Any:
        """The scale of a tensor that was quantized here or before."""
        if value in self.scaled:
            return self.scaled[value].of(reader).numbers
        producer = value.producer
        if producer is not None and producer.op_type == "DequantizeLinear":
            scale = producer.inputs[1]
            return scale.numpy() if scale is not None and scale.const is not None else None
        return None

    # -- nodes

    def _scaled(self, name: str, parameters: Parameters, suffix: str = "") -> Scaled:
        zero = self.graph.add_const(parameters.zero_point, names.zero_point(name) + suffix)
        scale = self.graph.add_const(parameters.scale, names.scale(name) + suffix)
        return Scaled(scale, zero, parameters.scale)

    def _quantize(
        self, name: str, source: Value, scaled: Scaled, before: Node | None, attrs: dict[str, Any], suffix: str = ""
    ) -> Value:
        shape = source.type.shape if isinstance(source.type, TensorType) else None
        assert scaled.zero_point.dtype is not None
        made = Value(names.quantize_output(name) + suffix, TensorType(scaled.zero_point.dtype, shape))
        self._insert("QuantizeLinear", names.quantize_node(name) + suffix, source, made, scaled, before, attrs)
        return made

    def _dequantize(
        self,
        name: str,
        source: Value,
        result: Value,
        scaled: Scaled,
        before: Node | None,
        attrs: dict[str, Any],
        suffix: str = "",
    ) -> None:
        self._insert("DequantizeLinear", names.dequantize_node(name) + suffix, source, result, scaled, before, attrs)

    def _insert(
        self,
        op_type: str,
        name: str,
        source: Value,
        result: Value,
        scaled: Scaled,
        before: Node | None,
        attrs: dict[str, Any],
    ) -> None:
        inputs = [source, scaled.scale, scaled.zero_point]
        node = Node(op_type, inputs, [result], dict(attrs), domain=self.domain, name=name)
        if before is None:
            self.graph.append(node)
        else:
            self.graph.insert(node, before=before)

    def _first(self, nodes: Iterable[Node]) -> Node | None:
        return min((node for node in nodes if node in self.order), key=self.order.__getitem__, default=None)


def _move_outputs(graph: Graph, old: Value, new: Value) -> None:
    for i, out in enumerate(graph.outputs):
        if out is old:
            graph.set_output(i, new)
