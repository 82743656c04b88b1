"""Dynamic partition: a part of a graph in which data decide a rank or a size, cut where they do.

After a data-dependent size (NonZero, Compress, ...) a new section begins; it is compiled in advance, with that size as
an input dimension. Nodes whose rank, axes or target shape are data (Reshape to a computed shape, Squeeze of computed
axes) are compiled in the first run that brings the data, with the operand as a constant, and once more for other data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
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
from sardonyx.lower.analysis.compile_time import compile_time_operands
from sardonyx.lower.analysis.facts import GraphFacts
from sardonyx.lower.claims import DeferredRefusal, refusal
from sardonyx.lower.lowering import counted_results
from sardonyx.lower.sizes import Refused
from sardonyx.ops.infer import MAX_CONTENT
from sardonyx.partition.assign import Owner, assign, part_of
from sardonyx.partition.parts import Parts, chain_of
from sardonyx.partition.provider import Executable, Part, RunContext
from sardonyx.plan.sizes import Unplannable
from sardonyx.providers.cpu.compile import compile_part
from sardonyx.providers.cpu.runtime.deferred import DeferredExecutable, KeyInputs
from sardonyx.providers.reference import ReferenceProvider

if TYPE_CHECKING:
    from sardonyx.providers.cpu.provider import CpuProvider

LONG = 256
"""Elements of a list in an attribute, beyond which a name has a digest of them."""


class DynamicPartition:
    """Runs the sections of a part one after the other."""

    def __init__(self, part: Part, provider: CpuProvider) -> None:
        graph = part.nodes[0].graph
        assert graph is not None
        facts = provider.facts(graph)
        self.compiled = [
            (section, _deferred(section, provider, facts) if is_deferred else _compiled(section, provider, facts))
            for is_deferred, section in (
                (is_deferred, part_of(graph, nodes)) for is_deferred, nodes in _cut(part.nodes, facts)
            )
        ]
        self.chain = chain_of(part.inputs, self.compiled, part.outputs)
        self.planned_run = self.chain.planned_run

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        return self.chain.run(args, context)


def _cut(nodes: Sequence[Node], facts: GraphFacts) -> list[tuple[bool, list[Node]]]:
    """Cut nodes into sections: for each, whether its compilation is deferred to a run, and its nodes.

    The reader of a data-dependent size begins a new section.
    """
    sections: list[tuple[bool, list[Node]]] = []
    counted: set[Value] = set()
    for node in nodes:
        is_deferred = isinstance(refusal(node, facts), DeferredRefusal)
        if not sections or sections[-1][0] != is_deferred or any(v in counted for v in node.inputs):
            sections.append((is_deferred, []))
            counted.clear()
        sections[-1][1].append(node)
        counted.update(counted_results(node, facts))
    return sections


def _compiled(section: Part, provider: CpuProvider, facts: GraphFacts) -> Executable:
    try:
        return compile_part(section, provider, specialized_by_shape)
    except (Refused, Unplannable, NotImplemented) as why:
        shapes = [_known_shape(v, facts) for v in section.inputs]
        if _tells_more(section, shapes):
            return _deferred(section, provider, facts)
        if not all(_is_counted(shape) for shape in shapes):
            return specialized_by_shape(section, provider)
        import logging  # 3 ms of a start that logs nothing

        logging.getLogger("sardonyx").info("%s and what follows it run on numpy: %s", section.nodes[0].label, why)
        _note(section.nodes, str(why), provider)
        return ReferenceProvider().compile(section)


def _note(nodes: Iterable[Node], why: str, provider: CpuProvider) -> None:
    """Have the provider tell that numpy runs its nodes."""
    provider.on_numpy.update((_told_as(node), why) for node in nodes)


def _told_as(node: Node) -> str:
    return node.name or node.outputs[0].name


def _tells_more(section: Part, shapes: Sequence[tuple[Any, ...] | None]) -> bool:
    """Whether a run tells ranks of inputs, or contents of compile-time operands, that are not known before it."""
    compile_time = set(compile_time_operands(section.nodes, section.inputs))
    return any(
        shape is None
        or (v in compile_time and not v.is_const and not (_is_counted(shape) and prod(shape) > MAX_CONTENT))
        for v, shape in zip(section.inputs, shapes, strict=True)
    )


def _is_counted(shape: tuple[Any, ...] | None) -> bool:
    return shape is not None and all(type(d) is int for d in shape)


def _deferred(part: Part, provider: CpuProvider, facts: GraphFacts) -> DeferredExecutable:
    """An executable that compiles the part in the runs that bring what is not known before: compile-time operands and
    ranks.

    A Squeeze without axes has a rank that sizes decide: then the code depends on the shapes of all inputs.
    """
    by_size = any(n.onnx_op == "Squeeze" and n.input(1) is None for n in part.nodes)
    return _awaiting(part, provider, [None if by_size else _known_shape(v, facts) for v in part.inputs])


def specialized_by_shape(part: Part, provider: CpuProvider) -> DeferredExecutable:
    """A part that is compiled again for each set of input shapes."""
    return _awaiting(part, provider, [None] * len(part.inputs))


def _awaiting(part: Part, provider: CpuProvider, shapes: Sequence[tuple[Any, ...] | None]) -> DeferredExecutable:
    reads = KeyInputs(
        tuple(part.inputs.index(v) for v in compile_time_operands(part.nodes, part.inputs)),
        tuple(i for i, shape in enumerate(shapes) if shape is None),
        MAX_CONTENT,
    )
    otherwise = partial(Program, part.nodes, part.inputs, part.outputs, bind)
    return DeferredExecutable(
        _name(part, shapes), reads, DeferredCompiler(part, provider, shapes, reads).compiled, otherwise,
        [_told_as(node) for node in part.nodes], provider.on_numpy,
    )  # fmt: skip


def _name(part: Part, shapes: Sequence[tuple[Any, ...] | None]) -> str:
    """The part's name in the compiled-model cache: a digest of its nodes and of what is known of its inputs' shapes."""
    nodes = [
        (n.domain, n.op_type, n.name, [(k, _short(v)) for k, v in sorted(n.attrs.items())], n.inputs, n.outputs)
        for n in part.nodes
    ]
    return hashlib.sha256(repr((nodes, part.inputs, shapes, part.outputs)).encode()).hexdigest()


def _short(value: Any) -> Any:
    """An attribute; in the place of a long list, such as the nodes of a forest, its type and a digest."""
    if not isinstance(value, list) or len(value) <= LONG:
        return value
    (kind, *others) = set(map(type, value))
    if others or kind not in (int, float, str):
        return value
    numbers = np.array(list(map(len, value)) if kind is str else value)
    if numbers.dtype == object:
        return value
    found = hashlib.sha256(numbers.tobytes())
    if kind is str:
        found.update("".join(value).encode("utf-8", "surrogateescape"))
    return kind.__name__, len(value), found.hexdigest()


class DeferredCompiler:
    """Compiles a part for the shapes of its inputs and the contents of its compile-time operands in a run."""

    def __init__(
        self, part: Part, provider: CpuProvider, shapes: Sequence[tuple[Any, ...] | None], reads: KeyInputs
    ) -> None:
        self._part, self._provider, self._shapes, self._reads = part, provider, shapes, reads

    def compiled(self, args: Sequence[Any]) -> Executable:
        graph = self._graph(args)
        reference = ReferenceProvider()
        owners = assign(graph, [self._provider, reference])
        for node, why in [(n, refusal(n, self._provider.facts(graph))) for n in graph.nodes]:
            if isinstance(why, DeferredRefusal) and all(v is None or v.producer is None for v in node.inputs):
                import logging  # 3 ms of a start that logs nothing

                logging.getLogger("sardonyx").info("%s runs on numpy: %s", node.label, why)
                owners[node] = Owner(reference, f"cpu: {why}")
        made = Parts(graph, owners, reference)
        for node in (node for part, _ in made.compiled for node in part.nodes):
            if owners[node].provider is reference:
                _note([node], owners[node].reason.removeprefix("cpu: "), self._provider)
        return made

    def _graph(self, args: Sequence[Any]) -> Graph:
        """A copy of the part's nodes as a graph, with the shapes and contents that ``args`` have."""
        copies: dict[Value, Value] = {}
        names: dict[Expr, Expr] = {}
        for i, (value, shape, array) in enumerate(zip(self._part.inputs, self._shapes, args, strict=True)):
            if shape is None or len(shape) != array.ndim or i in self._reads.compile_time:
                shape = array.shape
            named = [names.setdefault(d, dims.symbol(f"s{len(names)}")) if isinstance(d, Expr) else d for d in shape]
            copies[value] = Value(value.name, TensorType(_dtype(value), tuple(named)))
            if i in self._reads.compile_time and array.size <= MAX_CONTENT:
                copies[value].const = Tensor.of(np.array(array))
        graph = Graph(self._part.nodes[0].name, [copies[v] for v in self._part.inputs])
        for node in self._part.nodes:
            for const in (*node.inputs, *(v for _, body in node.subgraphs() for v in body.captures())):
                if const is not None and const.is_const and const.producer is None and const not in copies:
                    copies[const] = graph.initializers[const.name] = Value(const.name, const.type, const=const.const)
            graph.append(clone_node(node, copies))
        for value in self._part.outputs:
            graph.add_output(copies[value])
        return graph


def _known_shape(value: Value, facts: GraphFacts) -> tuple[Any, ...] | None:
    try:
        return facts.shape(value)
    except Refused:
        return None


def _dtype(value: Value) -> Any:
    assert isinstance(value.type, TensorType)
    return value.type.dtype
