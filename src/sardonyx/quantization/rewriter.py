"""Graphs rewritten node by node to operators on integers: what dynamic quantization and the QOperator format share.

A table from operators to rules converts nodes. The rewriter remembers which tensors exist as integers. Nodes without a
rule read reals: a DequantizeLinear is put in front of the first of them that needs one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.graph import Graph, Model, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.quantization import names
from sardonyx.quantization.kinds import QuantType
from sardonyx.quantization.parameters import Parameters, quantize_array
from sardonyx.quantization.settings import Settings
from sardonyx.quantization.source import MICROSOFT, drop_unused, is_real, is_weight, opset_of
from sardonyx.quantization.weights import constant_parameters

logger = logging.getLogger("sardonyx.quantization")

Rule = Callable[["Rewriter", Node], bool]
"""Converts a node; False if it must stay as it is."""


@dataclass
class Stored:
    """A tensor as integers, with its scale and zero point."""

    integers: Value
    scale: Value
    zero_point: Value
    parameters: Parameters | None = None
    """The numbers, where they are constants."""
    is_real_too: bool = False
    """Whether the tensor is still computed as reals."""

    @property
    def all(self) -> tuple[Value, Value, Value]:
        return self.integers, self.scale, self.zero_point


class Rewriter:
    """One graph. Its ``parent`` is that of the graph around it, whose tensors it may read."""

    def __init__(
        self, model: Model, settings: Settings, rules: Mapping[str, Rule], graph: Graph | None = None,
        parent: Rewriter | None = None,
    ) -> None:  # fmt: skip
        self.model, self.settings, self.rules, self.parent = model, settings, rules, parent
        self.graph = model.graph if graph is None else graph
        self.opset = opset_of(model)
        self.stored: dict[Value, Stored] = {}
        self.reals: dict[Value, Value] = {}
        """Reals that were computed from integers again."""
        self.at: Node | None = None
        """The node that is being converted."""
        self._known: dict[Value, Stored] = {}
        self._disposable: list[Node] = []
        """Nodes that were converted or added: they go if nothing reads them in the end."""

    # -- the walk

    def run(self) -> None:
        for node in list(self.graph.nodes):
            self.at = node
            self._bodies(node)
            rule = self.rules.get(node.op_type) if not node.domain or node.domain == MICROSOFT else None
            if rule is not None and self.settings.wants(node) and rule(self, node):
                self._disposable.append(node)
            else:
                self.restore_inputs(node)
        self.at = None
        for i, value in enumerate(list(self.graph.outputs)):
            real = self.real(value)
            if real is not value:
                self.graph.set_output(i, real)
        for node in reversed(self._disposable):
            if node.graph is not None and all(out.is_dead for out in node.outputs):
                self.graph.remove(node)
        if self.parent is None:
            drop_unused(self.graph)
            if any(node.domain == MICROSOFT for node in self.graph.all_nodes()):
                self.model.opsets.setdefault(MICROSOFT, 1)

    def _bodies(self, node: Node) -> None:
        """Bodies of control flow: converted too if that is asked for; what they capture is real again."""
        bodies = [body for _, body in node.subgraphs()]
        if not bodies:
            return
        if self.settings.options.enable_subgraph:
            for body in bodies:
                Rewriter(self.model, self.settings, self.rules, body, self).run()
        for body in bodies:
            for value in body.captures():
                real = self.real(value)
                if real is not value:
                    _recapture(body, value, real)

    def restore_inputs(self, node: Node) -> None:
        """Let a node read reals."""
        for i, value in enumerate(node.inputs):
            if value is not None:
                real = self.real(value)
                if real is not value:
                    node.set_input(i, real)

    def real(self, value: Value) -> Value:
        """The tensor as reals: itself, or the result of a DequantizeLinear."""
        found = self.stored.get(value)
        if found is None or found.is_real_too or value.const is not None:
            return value
        if value not in self.reals:
            made = Value(value.name, value.type)
            attrs = {} if found.parameters is None or found.parameters.axis is None else {"axis": found.parameters.axis}
            self.add("DequantizeLinear", found.all, [made], attrs, name=names.dequantize_node(value.name))
            self.reals[value] = made
        return self.reals[value]

    # -- tensors as integers

    def find(self, value: Value | None) -> Stored | None:
        """What is known of a tensor, here or in a graph around."""
        if value is None:
            return None
        found = self.stored.get(value)
        return self.parent.find(value) if found is None and self.parent is not None else found

    def keep(self, value: Value, integers: Value, scale: Value, zero_point: Value, like: Stored | None = None) -> None:
        """Remember a converted node's result."""
        self.stored[value] = Stored(integers, scale, zero_point, None if like is None else like.parameters)

    def activation(self, value: Value | None) -> Stored | None:
        """A tensor as integers of the activation's type; None if that is impossible."""
        found = self.find(value)
        if found is not None or value is None:
            return found
        if not is_real(value):
            return None
        if value.const is not None:
            return self._constant(value, is_weight=self.settings.activation_type is self.settings.weight_type)
        home = self._home(value)
        made = home.quantized(value)
        if made is not None:
            home.stored[value] = made
        return made

    def quantized(self, value: Value) -> Stored | None:
        """A computed tensor, quantized by a QuantizeLinear of known scale."""
        found = self.known(value)
        if found is None or found.parameters is None:
            return None
        kind = found.parameters.type
        result = self.value(names.quantized(value.name), kind.dtype, value)
        self.add(
            "QuantizeLinear",
            (value, found.scale, found.zero_point),
            [result],
            name=names.quantize_node(value.name),
        )
        return Stored(result, found.scale, found.zero_point, found.parameters, is_real_too=True)

    def known(self, value: Value, parameters: Parameters | None = None) -> Stored | None:
        """Scale and zero point of a computed tensor in the graph, without integers yet; None if it has none."""
        if value in self._known:
            return self._known[value]
        if parameters is None:
            override = self.settings.overrides.per_tensor(value.name)
            parameters = self.settings.activation_parameters(value, override)
        if parameters is None:
            return None
        scale, zero = self._parameter_values(value.name, parameters)
        self._known[value] = Stored(value, scale, zero, parameters)
        return self._known[value]

    def weight(
        self,
        value: Value | None,
        *,
        axis: int | None = None,
        reduce_range: bool = True,
        kind: QuantType | None = None,
    ) -> Stored | None:
        """A constant as integers of the weight's type, per channel of ``axis`` if that is asked for; other tensors are
        activations.
        """
        found = self.find(value)
        if found is not None or value is None:
            return found
        if not is_weight(value):
            return self.activation(value)
        per_channel = self.settings.per_channel or bool(self.settings.overrides.per_channel(value.name))
        return self._constant(
            value, is_weight=True, axis=axis if per_channel else None, reduce_range=reduce_range, kind=kind
        )

    def _constant(
        self,
        value: Value,
        *,
        is_weight: bool,
        axis: int | None = None,
        reduce_range: bool = False,
        kind: QuantType | None = None,
    ) -> Stored:
        home = self._home(value)
        chosen = kind or (self.settings.weight_type if is_weight else self.settings.activation_type)
        parameters = constant_parameters(
            value,
            self.settings,
            is_weight=is_weight,
            axis=axis,
            blocks=False,
            reduces=reduce_range,
            kind=kind,
            symmetric=self.settings.is_weight_symmetric(chosen) if is_weight else None,
        )
        return home.store_constant(value, parameters)

    def store_constant(self, value: Value, parameters: Parameters) -> Stored:
        """A constant's integers, scale and zero point as initializers."""
        scale, zero = self._parameter_values(value.name, parameters)
        integers = self.graph.add_const(quantize_array(value.numpy(), parameters), names.quantized(value.name))
        self.stored[value] = Stored(integers, scale, zero, parameters, is_real_too=True)
        return self.stored[value]

    def _parameter_values(self, name: str, parameters: Parameters) -> tuple[Value, Value]:
        return (
            self.graph.add_const(parameters.scale, names.scale(name)),
            self.graph.add_const(parameters.zero_point, names.zero_point(name)),
        )

    def _home(self, value: Value) -> Rewriter:
        """The rewriter of the graph that defines a value."""
        home = self
        while home.parent is not None and not home._defines(value):
            home = home.parent
        return home

    def _defines(self, value: Value) -> bool:
        if value.producer is not None:
            return value.producer.graph is self.graph
        return value in self.graph.inputs or self.graph.initializers.get(value.name) is value

    # -- nodes

    def add(
        self,
        op_type: str,
        inputs: Iterable[Value | None],
        outputs: list[Value],
        attrs: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        domain: str = "",
    ) -> Node:
        """A node in front of the one that is being converted."""
        left = list(inputs)
        while left and left[-1] is None:
            left.pop()
        node = Node(op_type, left, outputs, dict(attrs or {}), domain=domain, name=name)
        self._disposable.append(node)
        return self.graph.append(node) if self.at is None else self.graph.insert(node, before=self.at)

    def value(self, name: str, dtype: dtypes.DType, like: Value | None = None) -> Value:
        """A new value of a type, with the shape of another."""
        shape = like.type.shape if like is not None and isinstance(like.type, TensorType) else None
        return Value(name, TensorType(dtype, shape))

    def const(self, array: Any, name: str) -> Value:
        return self.graph.add_const(np.asarray(array), name)


def quantized_name(node: Node) -> str:
    return f"{node.name}_quant" if node.name else ""


def _recapture(body: Graph, old: Value, new: Value) -> None:
    """Let a body and the bodies in it read another value."""
    for graph in _nested(body):
        for node in graph.nodes:
            for i, value in enumerate(node.inputs):
                if value is old:
                    node.set_input(i, new)
        for i, value in enumerate(graph.outputs):
            if value is old:
                graph.set_output(i, new)


def _nested(body: Graph) -> Iterator[Graph]:
    yield body
    for node in body.nodes:
        for _, inner in node.subgraphs():
            yield from _nested(inner)
