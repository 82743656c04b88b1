"""Which tensors of a graph are quantized in QDQ format, and how: a table from operators to rules.

A rule looks at one node and marks its tensors: as activations, as weights (per tensor or per channel), as results that
share the scale of an input, or as biases. ``qdq`` then writes the marks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.quantization.calibrate.tensors import TensorData, TensorsData
from sardonyx.quantization.parameters import Parameters, limits
from sardonyx.quantization.registry import QDQRegistry
from sardonyx.quantization.settings import Settings
from sardonyx.quantization.source import MICROSOFT, is_real, is_weight, local_uses

logger = logging.getLogger("sardonyx.quantization")

Rule = Callable[["Plan", Node], None]

NEWER_THAN = {"Resize": 11, "MaxPool": 12}
"""The first opset at which an operator that moves values takes integers."""


@dataclass
class Mark:
    """How one tensor is quantized. ``shares`` is the tensor whose scale it takes, and the node between them."""

    is_weight: bool = False
    axis: int | None = None
    shares: tuple[Value, Node] | None = None


@dataclass
class Bias:
    """A bias and the operands whose scales it follows; ``factor`` multiplies it."""

    node: Node
    input: Value
    weight: Value
    factor: float = 1.0


class Plan:
    """The marks of one graph, in the order in which they were made."""

    def __init__(self, graph: Graph, opset: int, settings: Settings) -> None:
        self.graph, self.opset, self.settings = graph, opset, settings
        self.marks: dict[Value, Mark] = {}
        self.biases: dict[Value, Bias] = {}
        self.receivers: dict[Value, dict[Node, None]] = {}
        """For each tensor, the quantized nodes that read it."""
        for node in list(graph.nodes):
            if settings.wants(node):
                rule = RULES.get(node.op_type) if node.domain in ("", MICROSOFT) else None
                (rule or every_tensor)(self, node)
                if node.graph is not None:
                    for value in node.inputs:
                        if value is not None:
                            self.receivers.setdefault(value, {})[node] = None

    # -- marking

    def activation(self, value: Value | None) -> None:
        if is_real(value) and value is not None and value not in self.marks:
            self.marks[value] = Mark()

    def weight(self, value: Value | None) -> None:
        if is_real(value) and value is not None and value not in self.marks:
            self.marks[value] = Mark(is_weight=True)

    def weight_of_channels(self, value: Value | None, axis: int, op_type: str | None = None) -> None:
        """A weight, per channel if that is asked for, else per tensor."""
        found = self._channel_axis(value, axis, op_type)
        if found is None or value is None:
            self.weight(value)
        elif is_weight(value):
            self.marks[value] = Mark(is_weight=True, axis=found)

    def same_as(self, result: Value, source: Value, node: Node) -> None:
        """The result has the scale and zero point of the source."""
        if is_real(result):
            self.marks[result] = Mark(shares=(source, node))

    def bias(self, node: Node, i: int, factor: float = 1.0) -> None:
        """Input ``i`` is added to the products of inputs 0 and 1."""
        bias, source, weight = node.input(i), node.input(0), node.input(1)
        if bias is None or source is None or weight is None:
            return
        if bias.const is None or not is_real(bias):
            logger.info("the bias of %s is not a constant of reals: it is not quantized", node.label)
            return
        if bias.name in self.settings.overrides:
            self.weight_of_channels(bias, 0)
            return
        if bias in self.biases:
            bias = self.graph.add_const(bias.const, bias.name)
            node.set_input(i, bias)
        self.biases[bias] = Bias(node, source, weight, factor)

    def is_marked(self, value: Value | None) -> bool:
        return value in self.marks or value in self.biases

    def results(self, node: Node) -> list[Value]:
        """The results that may be quantized."""
        excluded = self.settings.options.op_types_to_exclude_output_quantization
        return [] if node.op_type in excluded else [out for out in node.outputs if out.name]

    @property
    def forces(self) -> bool:
        return bool(self.settings.options.force_quantize_no_input_check)

    def asks_for_channels(self, value: Value, op_type: str) -> bool:
        """Whether the user named the axis of a weight's channels."""
        options, overrides = self.settings.options, self.settings.overrides
        return op_type in options.per_channel_axes or bool(overrides.per_channel(value.name))

    def _channel_axis(self, value: Value | None, axis: int, op_type: str | None) -> int | None:
        """The axis of the channels of a weight; None if it is quantized as a whole."""
        overrides = self.settings.overrides
        if value is None or value.const is None or overrides.has_per_tensor(value.name):
            return None
        given = overrides.per_channel(value.name)
        if not self.settings.per_channel and not given:
            return None
        if op_type is not None:
            axis = self.settings.options.per_channel_axes.get(op_type, axis)
        if given:
            assert given[0].axis is not None
            axis = given[0].axis
        rank = len(value.const.shape)
        if not -rank <= axis < rank:
            logger.info("weight %r of rank %d has no axis %d: it is quantized per tensor", value.name, rank, axis)
            return None
        return axis % rank

    # -- removal of Relu and Clip

    def absorb(self, node: Node) -> bool:
        """Remove a Relu or Clip: the quantized type of its input cannot hold what it would cut. False if it must
        stay.
        """
        settings, source, result = self.settings, node.inputs[0], node.outputs[0]
        if settings.options.activation_symmetric or settings.options.qdq_keep_removable_activations or source is None:
            return False
        if len(source.uses) != 1 or source.is_output or source.producer is None:
            return False
        if not self._reads_are_quantized(result):
            return False
        given = settings.overrides.first(result.name), settings.overrides.first(source.name)
        if any(each.convert is not None for each in given):
            return False
        parameters = settings.activation_parameters(result, given[0])
        if parameters is None or not is_cut_by_type(node, parameters):
            return False
        self.marks.pop(source, None)
        source.name, source.type, source.doc = result.name, result.type, result.doc
        self.graph.replace_uses(result, source)
        self.graph.remove(node)
        self.activation(source)
        return True

    def _reads_are_quantized(self, value: Value) -> bool:
        """Whether all readers of a value get it quantized: bodies do not, nor others than receivers that have pairs of
        their own.
        """
        readers = [node for node, _ in local_uses(value, self.graph)]
        if self.settings.options.dedicated_qdq_pair and not all(map(self.settings.wants, readers)):
            return False
        return len(readers) == len(value.uses)


def is_cut_by_type(node: Node, parameters: Parameters) -> bool:
    """Whether the numbers that a quantized result can hold end, within a step, where its Relu or Clip cuts."""
    bounds = bounds_of(node)
    if bounds is None or parameters.type.is_float8:
        return False
    zero, step = int(parameters.zero_point), float(parameters.scale)
    low, high = ((end - zero) * step for end in limits(parameters.type))
    return low >= bounds[0] - step and high <= bounds[1] + step


def bounds_of(node: Node) -> tuple[float, float] | None:
    """Where a Relu or Clip cuts; None if that is not constant."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    low, high = float(node.attrs.get("min", -math.inf)), float(node.attrs.get("max", math.inf))
    for value in node.inputs[1:]:
        if value is not None and not value.is_scalar_const:
            return None
    given = [None if value is None else float(value.item()) for value in node.inputs[1:3]] + [None, None]
    return low if given[0] is None else given[0], high if given[1] is None else given[1]


def adjust_ranges(graph: Graph, settings: Settings) -> None:
    """Ranges that operators define: those of Relu and Clip count for their inputs, Softmax lies in 0..1."""
    if settings.ranges is None:
        return
    ranges = settings.ranges = TensorsData(settings.ranges.calibration_method, dict(settings.ranges.items()))
    for node in graph.nodes:
        if node.onnx_op not in ("Relu", "Clip", "Softmax") or not settings.wants(node):
            continue
        source, result = node.inputs[0], node.outputs[0]
        if result.name not in ranges or source is None or settings.activation_type.is_float8:
            continue
        if node.op_type == "Softmax":
            dtype = ranges[result.name].lowest.dtype
            ranges[result.name] = TensorData(lowest=np.zeros((), dtype), highest=np.ones((), dtype))
        elif source.name in ranges and len(local_uses(source, graph)) == 1:
            ranges[source.name] = ranges[result.name]


# -- rules


def every_tensor(plan: Plan, node: Node) -> None:
    for value in (*node.inputs, *plan.results(node)):
        plan.activation(value)


def convolution(plan: Plan, node: Node) -> None:
    plan.activation(node.input(0))
    for result in plan.results(node):
        plan.activation(result)
    plan.weight_of_channels(node.input(1), 0 if node.op_type == "Conv" else 1)
    plan.bias(node, 2)


def gemm(plan: Plan, node: Node) -> None:
    """beta becomes part of the quantized bias."""
    plan.activation(node.input(0))
    for result in plan.results(node):
        plan.activation(result)
    plan.weight_of_channels(node.input(1), 0 if node.attrs.get("transB") else 1)
    plan.bias(node, 2, float(node.attrs.get("beta", 1.0)))


def matmul(plan: Plan, node: Node) -> None:
    """Weights of other ranks than 2 are quantized per tensor: onnxruntime's QLinearMatMul has no channels for them."""
    for value in (*node.inputs, *plan.results(node)):
        if value is not None and value.const is not None:
            if len(value.const.shape) == 2 or plan.asks_for_channels(value, node.op_type):
                plan.weight_of_channels(value, 1, node.op_type)
            else:
                plan.weight(value)
        else:
            plan.activation(value)


def removable(plan: Plan, node: Node) -> None:
    """Relu and Clip after a quantized tensor."""
    source = node.inputs[0]
    if not plan.is_marked(source):
        return
    results = plan.results(node)
    if plan.absorb(node):
        return
    plan.activation(source)
    for result in results:
        plan.activation(result)


def movement(plan: Plan, node: Node) -> None:
    """Operators that move values, or choose among them: the result has the scale of the input."""
    source = node.inputs[0]
    if source is None or plan.opset < NEWER_THAN.get(node.op_type, 0):
        return
    if node.op_type == "MaxPool" and plan.settings.activation_type.is_float8:
        return
    if plan.forces:
        plan.activation(source)
    elif not plan.is_marked(source):
        return
    for result in plan.results(node)[:1]:
        plan.same_as(result, source, node)


def pad(plan: Plan, node: Node) -> None:
    for value in node.inputs:
        plan.activation(value)
    source = node.inputs[0]
    for result in plan.results(node):
        if source is not None and pads_representably(node, plan.opset):
            plan.same_as(result, source, node)
        else:
            plan.activation(result)


def pads_representably(node: Node, opset: int) -> bool:
    """Whether a Pad adds only values that every scale of its input represents: 0, or elements of the input."""
    mode = node.attrs.get("mode", "constant")
    if mode != "constant":
        return mode in ("reflect", "edge", "wrap")
    if opset < 11:
        return bool(node.attrs.get("value", 0.0) == 0)
    filler = node.input(2)
    return filler is None or (filler.is_scalar_const and is_real(filler) and filler.item() == 0)


def split(plan: Plan, node: Node) -> None:
    source = node.inputs[0]
    if not plan.is_marked(source):
        plan.activation(source)
    for result in plan.results(node):
        if source is not None:
            plan.same_as(result, source, node)


def gather(plan: Plan, node: Node) -> None:
    source = node.inputs[0]
    if source is None:
        return
    if is_weight(source) or plan.forces:
        plan.activation(source)
        plan.same_as(node.outputs[0], source, node)
    elif plan.is_marked(source):
        plan.same_as(node.outputs[0], source, node)


def where(plan: Plan, node: Node) -> None:
    choices = node.inputs[1:3]
    if plan.forces:
        for value in choices:
            if not plan.is_marked(value):
                plan.activation(value)
    elif not all(plan.is_marked(value) for value in choices):
        return
    for result in plan.results(node):
        plan.activation(result)


def normalization(plan: Plan, node: Node) -> None:
    plan.activation(node.input(0))
    scale = node.input(1)
    if scale is not None and scale.const is not None:
        plan.weight_of_channels(scale, 1, node.op_type)
    else:
        plan.activation(scale)
    plan.bias(node, 2)
    for result in plan.results(node):
        plan.activation(result)


RULES: dict[str, Rule] = {operator: globals()[rule] for operator, rule in QDQRegistry.items()}
"""Rules by operator; ``every_tensor`` holds for the others, and for those of other domains with the same names."""
