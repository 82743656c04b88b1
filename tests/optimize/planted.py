"""Passes that are wrong on purpose, put into a level for the time of one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node
from sardonyx.optimize import manager, pipelines
from sardonyx.optimize.manager import Log


@contextmanager
def planted(level: str, **passes: manager.Pass) -> Iterator[None]:
    """A level that ends with these passes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, fn in passes.items():
            patch.setitem(manager.PASSES, name, fn)
        patch.setitem(pipelines.LEVELS, level, (*pipelines.LEVELS[level], *passes))
        yield


def replaces(op_type: str, write: Callable[[Builder, Node], object]) -> manager.Pass:
    """A pass that writes something else for every node of an operator that it did not write itself."""

    def run(graph: Graph, log: Log) -> None:
        for node in list(graph.nodes):
            if node.op_type == op_type and node.graph is graph:
                op = Builder(graph, node, prefix=f"{node.outputs[0].name}/{log.name}", origin=node.origin)
                new = write(op, node)
                made = list(op.made)
                log.replace(graph, [node], [node.output], [new], made, f"{op_type} -> {made[-1].op_type}")  # type: ignore[list-item]

    return run


WRONG_TANH = replaces("Tanh", lambda op, node: op.Mul(node.inputs[0], op.const(0.5)))
RIGHT_NEG = replaces("Neg", lambda op, node: op.Mul(node.inputs[0], op.const(-1.0)))


def flip_softmax(graph: Graph, log: Log) -> None:
    """Wrong, and in place, where no judge looks."""
    for node in graph.nodes:
        if node.op_type == "Softmax":
            node.attrs["axis"] = 0
            log.did(node, "axis -> 0")


def mark_relus(graph: Graph, log: Log) -> None:
    """Harmless alone: Relu(x) -> Max(x, 0)."""
    replaces("Relu", lambda op, node: op.Max(node.inputs[0], op.const(0.0)))(graph, log)


def drop_marked(graph: Graph, log: Log) -> None:
    """Harmless where no Max is: Max(x, 0) -> Abs(x)."""
    replaces("Max", lambda op, node: op.Abs(node.inputs[0]))(graph, log)
