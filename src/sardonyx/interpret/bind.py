"""Finds the function that runs a node: our own, a control-flow kernel, or onnx's reference operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sardonyx.errors import InvalidGraph
from sardonyx.interpret import control, fallback
from sardonyx.interpret.control import Body
from sardonyx.interpret.program import Kernel, Program, program_of
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ops import registry
from sardonyx.ops.random import stream


def bind(node: Node, body: Callable[[Graph], Body] | None = None) -> tuple[Kernel, Sequence[Value], bool]:
    """A normalized node's kernel, the values that it reads besides its inputs, and whether it takes the run context.

    ``body`` compiles a subgraph; by default, all its nodes run by numpy.
    """
    maker = control.KERNELS.get(node.op_type) if not node.domain else None
    if maker is not None:
        bodies = {key: (body or compile_graph)(graph) for key, graph in node.subgraphs()}
        captured = [v for key, graph in node.subgraphs() for v in bodies[key].inputs[len(graph.inputs) :]]
        return maker(node, bodies), captured, True
    meaning = registry.find(node.domain, node.op_type)
    if meaning is None:
        return fallback.kernel(node), (), False
    attrs = dict(node.attrs)
    unknown = attrs.keys() - meaning.attributes
    if unknown:
        raise InvalidGraph(
            "unknown attribute", where=node.label, expected=sorted(meaning.attributes), got=sorted(unknown)
        )
    if "outputs" in meaning.supplied:
        attrs["outputs"] = len(node.outputs)
    if "generator" in meaning.supplied and "seed" in attrs:
        attrs["generator"] = stream(attrs["seed"])
    return (partial(meaning.numpy, **attrs) if attrs else meaning.numpy), (), False


def compile_graph(graph: Graph) -> Program:
    """Compile a graph and all its subgraphs to numpy programs."""
    return program_of(graph, bind)


def is_runnable(node: Node) -> bool:
    """Whether numpy can run this operator."""
    if not node.domain and node.op_type in control.KERNELS:
        return True
    return registry.find(node.domain, node.op_type) is not None or fallback.exists(node.domain, node.op_type)
