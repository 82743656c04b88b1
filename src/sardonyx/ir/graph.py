"""Value, Node, Graph, Model: the program and its use-def edges.

Edges are changed by a handful of methods and nowhere else: ``Node.set_input``, ``Graph.append``, ``Graph.insert``,
``Graph.remove``, ``Graph.set_output``, ``Graph.replace_uses``. A subgraph's nodes refer to the outer graph's values
directly, so a capture is an ordinary use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sardonyx.dtypes import DType
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType, ValueType
from sardonyx.limits import current

Attr: TypeAlias = Any
"""int, float, str, Tensor, Graph, a ValueType, or a list of one of these."""


class Value:
    """One SSA value: a graph input, an initializer, or a node's output."""

    __slots__ = (
        "const",
        "denotation",
        "doc",
        "index",
        "is_output",
        "name",
        "overridable",
        "producer",
        "stated",
        "type",
        "uses",
    )

    def __init__(self, name: str, type: ValueType | None = None, *, const: Tensor | None = None) -> None:
        self.name, self.type, self.const = name, type, const
        self.stated: ValueType | None = None
        """For an input or output of a body: the type that the file states. It is written to files again and never
        relied on.
        """
        self.doc = ""
        self.denotation: tuple[str, ...] | None = None
        """Per-dimension denotations, where the model gives any (DATA_BATCH ...)."""
        self.producer: Node | None = None
        self.index = 0
        self.uses: dict[tuple[Node, int], None] = {}
        """(consumer, input position), in the order in which they were made."""
        self.is_output = 0
        """How many graph outputs, over all graphs, are this value."""
        self.overridable = False
        """Whether callers may feed this initializer: it is listed as an input too."""

    @property
    def is_const(self) -> bool:
        return self.const is not None and not self.overridable

    @property
    def dtype(self) -> DType | None:
        return self.type.dtype if isinstance(self.type, TensorType) else None

    @property
    def shape(self) -> tuple[int | str | None, ...] | None:
        return self.type.shape if isinstance(self.type, TensorType) else None

    @property
    def rank(self) -> int | None:
        return self.type.rank if isinstance(self.type, TensorType) else None

    @property
    def consumers(self) -> list[Node]:
        return list(dict.fromkeys(node for node, _ in self.uses))

    @property
    def is_dead(self) -> bool:
        return not self.uses and not self.is_output

    @property
    def is_scalar_const(self) -> bool:
        return self.is_const and self.const is not None and self.const.size == 1

    def item(self) -> Any:
        """The only element of a constant, as a Python number."""
        return self.numpy().reshape(()).item()

    def numpy(self) -> Any:
        """The elements of a constant."""
        assert self.const is not None, self.name
        return self.const.numpy()

    def __repr__(self) -> str:
        return f"%{self.name}"


class Node:
    """One operator application. ``inputs`` holds None where an optional input is left out."""

    __slots__ = (
        "_inputs", "_next", "_prev", "attrs", "doc", "domain", "graph", "name", "op_type", "opset", "origin",
        "outputs", "overload",
    )  # fmt: skip

    def __init__(
        self,
        op_type: str,
        inputs: Iterable[Value | None],
        outputs: Iterable[Value],
        attrs: dict[str, Attr] | None = None,
        *,
        domain: str = "",
        name: str = "",
        origin: tuple[str, ...] | None = None,
        overload: str = "",
    ) -> None:
        self.op_type, self.domain, self.name, self.overload = op_type, domain, name, overload
        self.doc = ""
        self._inputs: list[Value | None] = list(inputs)
        self.outputs: tuple[Value, ...] = tuple(outputs)
        self.attrs: dict[str, Attr] = attrs or {}
        self.origin: tuple[str, ...] = (name or next((v.name for v in self.outputs), ""),) if origin is None else origin
        """Names of the nodes of the model file that this one stands for."""
        self.opset: int | None = None
        """The version of its domain that it is written for, if that is not the one the model imports."""
        self.graph: Graph | None = None
        self._prev: Node | None = None
        self._next: Node | None = None
        for i, out in enumerate(self.outputs):
            assert out.producer is None, out.name
            out.producer, out.index = self, i

    @property
    def inputs(self) -> Sequence[Value | None]:
        return self._inputs

    @property
    def output(self) -> Value:
        """The only output."""
        (out,) = self.outputs
        return out

    @property
    def onnx_op(self) -> str:
        """The operator's name if it is one of ai.onnx, else empty: other domains have operators of the same names."""
        return "" if self.domain else self.op_type

    @property
    def label(self) -> str:
        """How messages name the node: ``MatMul node 'scores'``, or ``MatMul node -> 'y'`` if it has no name."""
        kind = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        if self.name:
            return f"{kind} node {self.name!r}"
        return f"{kind} node -> {self.outputs[0].name!r}" if self.outputs else f"{kind} node"

    def input(self, i: int) -> Value | None:
        """Input ``i``, None where it is absent."""
        return self._inputs[i] if i < len(self._inputs) else None

    def set_input(self, i: int, value: Value | None) -> None:
        old = self._inputs[i]
        if old is not None and self.graph is not None:
            del old.uses[self, i]
        self._inputs[i] = value
        if value is not None and self.graph is not None:
            value.uses[self, i] = None

    def add_input(self, value: Value | None) -> None:
        self._inputs.append(None)
        self.set_input(len(self._inputs) - 1, value)

    @property
    def following(self) -> Node | None:
        """The next node of its graph."""
        return self._next

    def subgraphs(self) -> Sequence[tuple[str, Graph]]:
        found: Sequence[tuple[str, Graph]] = ()
        for key, attr in self.attrs.items():
            if isinstance(attr, Graph):
                found = [*found, (key, attr)]
            elif isinstance(attr, list) and attr and isinstance(attr[0], Graph):
                found = [*found, *((key, g) for g in attr)]
        return found

    def __repr__(self) -> str:
        ins = ", ".join("_" if v is None else repr(v) for v in self._inputs)
        return f"{', '.join(map(repr, self.outputs))} = {self.op_type}({ins})"


class Graph:
    """Nodes in execution order, with inputs and outputs."""

    def __init__(self, name: str = "", inputs: Iterable[Value] = (), *, doc: str = "") -> None:
        self.name, self.doc = name, doc
        self.inputs: list[Value] = list(inputs)
        self.initializers: dict[str, Value] = {}
        self.parent: Node | None = None
        """The node that owns this subgraph; None for a main graph."""
        self.output_names: list[str] = []
        """The names of the outputs for callers; the values that they refer to may change."""
        self._outputs: list[Value] = []
        self._head: Node | None = None
        self._tail: Node | None = None
        self._count = 0
        self._op_types: dict[str, int] = {}
        """How many nodes have each type."""
        self._owners: dict[Node, None] = {}

    # -- reading

    @property
    def nodes(self) -> Iterator[Node]:
        """The nodes in order. While iterating, the current node may be removed and nodes may be inserted around it."""
        node, budget = self._head, current()
        while node is not None:
            if budget is not None:
                budget.check_time()
            following = node._next
            yield node
            node = following if node.graph is None else node._next

    def reversed_nodes(self) -> Iterator[Node]:
        node = self._tail
        while node is not None:
            preceding = node._prev
            yield node
            node = preceding

    def all_nodes(self) -> Iterator[Node]:
        """The nodes of this graph and of every subgraph below it, outer before inner."""
        for node in self.nodes:
            yield node
            for _, sub in node.subgraphs():
                yield from sub.all_nodes()

    def __len__(self) -> int:
        return self._count

    def has_any(self, op_types: Collection[str]) -> bool:
        """Whether one of its nodes, those of subgraphs aside, has one of these types."""
        return not self._op_types.keys().isdisjoint(op_types)

    @property
    def owners(self) -> list[Node]:
        """The nodes with subgraphs, in the order in which they were added."""
        return list(self._owners)

    @property
    def outputs(self) -> Sequence[Value]:
        return self._outputs

    def captures(self) -> list[Value]:
        """Values of enclosing graphs that this subgraph reads, in order of first use."""
        found: dict[Value, None] = {}
        self._collect_captures(found, set())
        return list(found)

    def _collect_captures(self, found: dict[Value, None], own: set[Value]) -> None:
        own = own | set(self.inputs) | set(self.initializers.values())
        for node in self.nodes:
            for v in node.inputs:
                if v is not None and v not in own:
                    found[v] = None
            for _, sub in node.subgraphs():
                sub._collect_captures(found, own)
            own.update(node.outputs)
        for v in self._outputs:
            if v not in own:
                found[v] = None

    # -- changing

    def append(self, node: Node) -> Node:
        return self._link(node, self._tail, None)

    def insert(self, node: Node, *, before: Node) -> Node:
        assert before.graph is self
        return self._link(node, before._prev, before)

    def _link(self, node: Node, prev: Node | None, following: Node | None) -> Node:
        assert node.graph is None
        node.graph, node._prev, node._next = self, prev, following
        if prev is None:
            self._head = node
        else:
            prev._next = node
        if following is None:
            self._tail = node
        else:
            following._prev = node
        self._count += 1
        for i, v in enumerate(node.inputs):
            if v is not None:
                v.uses[node, i] = None
        self._op_types[node.op_type] = self._op_types.get(node.op_type, 0) + 1
        for _, sub in node.subgraphs():
            sub.parent = node
            self._owners[node] = None
        return node

    def remove(self, node: Node) -> None:
        """Remove a node whose outputs have no uses, and the subgraphs that it owns."""
        assert node.graph is self and all(out.is_dead for out in node.outputs), node.label
        self._unlink(node)
        for _, sub in node.subgraphs():
            sub.clear()

    def move(self, node: Node, *, before: Node) -> None:
        """Move a node of this graph in front of another; the caller ensures that its inputs are computed there."""
        assert node.graph is self and before.graph is self and node is not before
        self._unlink(node)
        self._link(node, before._prev, before)

    def _unlink(self, node: Node) -> None:
        for i, v in enumerate(node.inputs):
            if v is not None:
                del v.uses[node, i]
        if node._prev is None:
            self._head = node._next
        else:
            node._prev._next = node._next
        if node._next is None:
            self._tail = node._prev
        else:
            node._next._prev = node._prev
        node.graph = node._prev = node._next = None
        self._count -= 1
        self._owners.pop(node, None)
        self._op_types[node.op_type] -= 1
        if not self._op_types[node.op_type]:
            del self._op_types[node.op_type]

    def clear(self) -> None:
        """Remove every node and output, so that captured values lose their uses here."""
        self.drop_outputs()
        for node in list(self.reversed_nodes()):
            self.remove(node)

    def add_output(self, value: Value, name: str | None = None) -> None:
        value.is_output += 1
        self._outputs.append(value)
        self.output_names.append(value.name if name is None else name)

    def drop_outputs(self) -> None:
        """Remove all outputs."""
        for value in self._outputs:
            value.is_output -= 1
        self._outputs, self.output_names = [], []

    def set_output(self, i: int, value: Value) -> None:
        self._outputs[i].is_output -= 1
        value.is_output += 1
        self._outputs[i] = value

    def replace_uses(self, old: Value, new: Value) -> None:
        """Make every use of ``old``, here and in subgraphs, a use of ``new``; graph outputs keep their names."""
        if old is new:
            return
        for node, i in list(old.uses):
            node.set_input(i, new)
        if old.is_output:
            for graph in self._with_subgraphs():
                for i, out in enumerate(graph._outputs):
                    if out is old:
                        graph.set_output(i, new)

    def _with_subgraphs(self) -> Iterator[Graph]:
        yield self
        for node in self.nodes:
            for _, sub in node.subgraphs():
                yield from sub._with_subgraphs()

    def add_const(self, array: Any, name: str) -> Value:
        """A new initializer of this graph."""
        tensor = array if isinstance(array, Tensor) else Tensor.of(array, name)
        budget = current()
        if budget is not None:
            budget.hold(tensor.nbytes, "the constants made of the model take too much memory", name)
        value = Value(self.fresh_name(name), tensor.type, const=tensor)
        self.initializers[value.name] = value
        return value

    def fresh_name(self, stem: str) -> str:
        """An unused initializer name in this graph."""
        if stem not in self.initializers:
            return stem
        i = len(self.initializers)
        while f"{stem}_{i}" in self.initializers:
            i += 1
        return f"{stem}_{i}"


@dataclass
class Model:
    """A graph and the metadata of its file."""

    graph: Graph
    opsets: dict[str, int]
    """By domain, the versions that nodes are written for; ``normalize`` raises them."""
    ir_version: int = 10
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int | None = None
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    path: str | None = None
    sparse_outputs: frozenset[str] = frozenset()
    """Outputs declared sparse. Values are dense inside; these are made sparse again when they are returned."""
    declared_outputs: dict[str, ValueType] = field(default_factory=dict)
    """Types of outputs as the file states them: shown to users, never relied on."""
    stated_shapes: dict[str, TensorType] = field(default_factory=dict)
    """Types that the file states for values of the main graph, to be compared with inferred ones."""
    imports: dict[str, int] = field(default_factory=dict)
    """The versions that the file imports, which messages cite."""
