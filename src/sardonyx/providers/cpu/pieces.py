"""A part that cannot be planned at once, since data decide ranks or sizes in the middle of it.

It is cut where that happens. What comes after a size that a step has counted is compiled beforehand and starts with
the real size. Nodes that wait for a rank, or for the elements of an operand that steers them, are compiled when a run
tells: as a small graph of its own, in which the operand is a constant, kept for the next run with the same elements.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.errors import NotImplemented
from sardonyx.interpret.bind import bind
from sardonyx.interpret.program import Program
from sardonyx.ir import dims
from sardonyx.ir.clone import clone_node
from sardonyx.ir.dims import Expr
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType
from sardonyx.lower.claims import Awaited, refusal
from sardonyx.lower.facts import Learned
from sardonyx.lower.lowering import COUNTED
from sardonyx.lower.sizes import Refused
from sardonyx.lower.steering import steering
from sardonyx.ops.infer import MAX_CONTENT
from sardonyx.partition.assign import Owner, assign, part_of
from sardonyx.partition.parts import Parts
from sardonyx.partition.provider import Executable, Part, RunContext
from sardonyx.providers.cpu.compile import compile_part
from sardonyx.providers.cpu.table import Unplannable
from sardonyx.providers.reference import ReferenceProvider

if TYPE_CHECKING:
    from sardonyx.providers.cpu import CpuProvider

MAX_KINDS = 32
"""Contents of operands for which nodes are compiled; others run on numpy, where operands that never repeat belong."""


class Pieces:
    """A part as pieces that run one after the other."""

    def __init__(self, part: Part, provider: CpuProvider) -> None:
        graph = part.nodes[0].graph
        assert graph is not None
        self._part, learned = part, provider.learned(graph)
        self.compiled = [
            (piece, Late(piece, provider, learned) if is_late else _compiled(piece, provider, learned))
            for is_late, piece in ((late, part_of(graph, nodes)) for late, nodes in _cut(part.nodes, learned))
        ]

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        env: dict[Value, Any] = dict(zip(self._part.inputs, args, strict=True))
        for piece, executable in self.compiled:
            env.update(zip(piece.outputs, executable.run([env[v] for v in piece.inputs], context), strict=True))
        return [env[v] for v in self._part.outputs]


def _cut(nodes: Sequence[Node], learned: Learned) -> list[tuple[bool, list[Node]]]:
    """Runs of neighbours, and whether they wait for a run; what a run counts is read by the next piece at the first."""
    pieces: list[tuple[bool, list[Node]]] = []
    counted: set[Value] = set()
    for node in nodes:
        is_late = isinstance(refusal(node, learned), Awaited)
        if not pieces or pieces[-1][0] != is_late or any(v in counted for v in node.inputs):
            pieces.append((is_late, []))
            counted.clear()
        pieces[-1][1].append(node)
        if node.op_type in COUNTED:
            counted.update(node.outputs)
    return pieces


def _compiled(piece: Part, provider: CpuProvider, learned: Learned) -> Executable:
    try:
        return compile_part(piece, provider)
    except (Refused, Unplannable, NotImplemented):
        return Late(piece, provider, learned)


class Late:
    """Nodes compiled for each content of the operands that steer them, and each shape of inputs of unknown rank.

    A Squeeze that names no axes has a rank that follows from sizes: then all shapes count.
    """

    def __init__(self, part: Part, provider: CpuProvider, learned: Learned) -> None:
        self._part, self._provider = part, provider
        by_size = any(n.op_type == "Squeeze" and n.input(1) is None for n in part.nodes)
        self._shapes = [None if by_size else _known_shape(v, learned) for v in part.inputs]
        self._steering = [part.inputs.index(v) for v in steering(part.nodes, part.inputs)]
        self._open = [i for i, shape in enumerate(self._shapes) if shape is None]
        self._made: dict[Any, Executable] = {}
        self._lock = threading.Lock()

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        contents = tuple([args[i].tobytes() if args[i].size <= MAX_CONTENT else None for i in self._steering])
        key = contents, tuple([args[i].shape for i in (*self._open, *self._steering)])
        found = self._made.get(key)
        if found is None:
            with self._lock:
                found = self._made.get(key) or self._make(args)
                if len(self._made) < MAX_KINDS:
                    self._made[key] = found
        return found.run(args, context)

    def _make(self, args: Sequence[Any]) -> Executable:
        if len(self._made) >= MAX_KINDS:
            return Program(self._part.nodes, self._part.inputs, self._part.outputs, bind)
        graph = self._graph(args)
        reference = ReferenceProvider()
        owners = assign(graph, [self._provider, reference])
        for node, why in [(n, refusal(n, self._provider.learned(graph))) for n in graph.nodes]:
            if isinstance(why, Awaited) and all(v is None or v.producer is None for v in node.inputs):
                logging.getLogger("sardonyx").info("%s runs on numpy: %s", node.label, why)
                owners[node] = Owner(reference, f"cpu: {why}")
        return Parts(graph, owners, reference)

    def _graph(self, args: Sequence[Any]) -> Graph:
        """The nodes as a graph of their own, with what this run tells."""
        copies: dict[Value, Value] = {}
        names: dict[Expr, Expr] = {}
        for i, (value, shape, array) in enumerate(zip(self._part.inputs, self._shapes, args, strict=True)):
            if shape is None or len(shape) != array.ndim or i in self._steering:
                shape = array.shape
            named = [names.setdefault(d, dims.symbol(f"s{len(names)}")) if isinstance(d, Expr) else d for d in shape]
            copies[value] = Value(value.name, TensorType(_dtype(value), tuple(named)))
            if i in self._steering and array.size <= MAX_CONTENT:
                copies[value].const = Tensor.of(np.array(array))
        graph = Graph(self._part.nodes[0].name, [copies[v] for v in self._part.inputs])
        for node in self._part.nodes:
            graph.append(clone_node(node, copies))
        for value in self._part.outputs:
            graph.add_output(copies[value])
        return graph


def _known_shape(value: Value, learned: Learned) -> tuple[Any, ...] | None:
    try:
        return learned.shape(value)
    except Refused:
        return None


def _dtype(value: Value) -> Any:
    assert isinstance(value.type, TensorType)
    return value.type.dtype
