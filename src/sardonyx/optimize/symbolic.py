"""Inference of types with symbolic dimensions, and of contents of small tensors, over a graph in order.

There are two sources: the declared inputs of the main graph, which feeds are checked against and in which equal names
are equal sizes, and the inference rules of operators. What a model states about other values is not used. An unknown
dimension gets a name of its own, so that equal dimensions stay equal.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager

from sardonyx.errors import SardonyxError
from sardonyx.ir import dims
from sardonyx.ir.dims import Dim, Expr, Known
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType, ValueType
from sardonyx.ops.infer import MAX_CONTENT, constant_content, output_types
from sardonyx.optimize import contents, guards, loop_inference
from sardonyx.optimize.contents import Array
from sardonyx.optimize.guards import Taken


class Facts:
    """What is known so far: ``contents`` of small tensors, and ``places`` where sizes can be read."""

    PREFIX = ""
    """Prefix of new names of sizes."""

    def __init__(self, *, assumes: bool = False) -> None:
        """With ``assumes``, an If whose branches differ in rank takes its first branch if a guard allows it; results
        then hold for the sizes that the guards in ``taken`` allow.
        """
        self.assumes = assumes
        self.taken: dict[Node, Taken] = {}
        """The branches of Ifs that do not depend on data."""
        self.contents: dict[Value, Array] = {}
        self.equal: MutableMapping[Hashable, Value] = ChainMap()
        """The first value of each content."""
        self.places: MutableMapping[Expr, tuple[tuple[Value, int], ...]] = ChainMap()
        """For each size, the inputs and other values with a Shape reader that have it, and the axis."""
        self.trips: dict[Node, Known] = {}
        """The numbers of trips of Loops and Scans that depend on sizes only."""
        self.varying: dict[Value, frozenset[int] | None] = {}
        """Axes of carried values whose sizes differ from trip to trip; None if ranks do."""
        self._made: dict[str, int] = {}

    def fresh(self) -> Expr:
        """A new unknown size."""
        made = dims.fresh(f"{self.PREFIX}{len(self._made) + 1}")
        self._made[made] = len(self._made)
        return made

    def content(self, value: Value) -> Array | None:
        found = self.contents.get(value)
        if found is None:
            found = constant_content(value)
            if found is not None:
                self.contents[value] = found
        return found

    # -- inference

    def walk(self, graph: Graph, change: Callable[[Graph, Node], None] | None = None) -> None:
        """Infer all nodes of a main graph in order; ``change`` may rewrite each one afterwards."""
        with self._declared(graph.inputs):
            self._walk(graph, change)

    @contextmanager
    def _declared(self, inputs: list[Value]) -> Iterator[None]:
        """Name all dimensions of inputs during the walk."""
        stated = [v.type for v in inputs]
        for v in inputs:
            if not v.is_const:
                v.type = self._complete(v.type)
                self.provide_sizes(v)
        try:
            yield
        finally:
            for v, t in zip(inputs, stated, strict=True):
                v.type = t

    def _walk(self, graph: Graph, change: Callable[[Graph, Node], None] | None) -> None:
        for node in graph.nodes:
            self.learn(node, change)
            if change is not None:
                change(graph, node)

    def learn(self, node: Node, change: Callable[[Graph, Node], None] | None = None) -> None:
        """Infer types and contents of a node's outputs from those of its inputs."""
        joined = self._subgraphs(node, change)
        found = joined or output_types(node, self.content)
        for out, t in zip(node.outputs, found, strict=True):
            out.type = self._complete(_certain(t, out.type))
        self._learn_contents(node)

    def provide_sizes(self, value: Value) -> None:
        """Allow sizes to be read from this value."""
        for axis, d in enumerate(value.shape or ()):
            if isinstance(d, Expr):
                known = self.places.get(d, ())
                if len(known) < 4 and (value, axis) not in known:
                    self.places[d] = (*known, (value, axis))

    def key(self, value: Value) -> Hashable:
        """Equal for values of equal type and elements; None if an element is unknown."""
        content = self.contents.get(value)
        if content is None or not contents.is_complete(content):
            return None
        return value.dtype, content.shape, tuple(content.flat)

    def _complete(self, t: ValueType | None) -> ValueType | None:
        if not isinstance(t, TensorType) or t.shape is None or all(type(d) in (int, Expr) for d in t.shape):
            return t
        named = (dims.known(d) for d in t.shape)
        return TensorType(t.dtype, tuple(self.fresh() if d is None else d for d in named), t.layout, t.quantization)

    def _learn_contents(self, node: Node) -> None:
        rule = contents.RULES.get(node.op_type) if not node.domain else None
        if rule is None or not any(_may_be_content(out) for out in node.outputs):
            return
        ins = [None if v is None else self.content(v) for v in node.inputs]
        try:
            found = rule(node, ins)
        except (SardonyxError, LookupError, ValueError, TypeError, ArithmeticError):
            return
        for out, content in zip(node.outputs, found, strict=False):
            if content is not None and content.size <= MAX_CONTENT:
                self.contents[out] = content

    # -- subgraphs

    def _subgraphs(self, node: Node, change: Callable[[Graph, Node], None] | None) -> list[ValueType | None] | None:
        """Infer the bodies of a node; returns the combined types of its outputs."""
        if node.op_type in ("Loop", "Scan") and not node.domain:
            found = loop_inference.learn(self, node, change)
            if found is not None:
                return found
        bodies = [graph for _, graph in node.subgraphs()]
        for body in bodies:
            self.walk_body(body, {}, change)
        if node.onnx_op == "If" and len(bodies) == 2:
            return self._branches(node, bodies)
        return [None] * len(node.outputs) if bodies else None

    def _branches(self, node: Node, bodies: list[Graph]) -> list[ValueType | None]:
        """The types of an If's outputs: what its branches have in common, or those of the only branch taken."""
        common = [_common([v.type for v in made]) for made in zip(*(body.outputs for body in bodies), strict=False)]
        taken = guards.decided(node, self.content)
        if taken is None and self.assumes and any(isinstance(t, TensorType) and t.shape is None for t in common):
            taken = guards.assumed(node, self.content)
        if taken is None:
            return common
        self.taken[node] = taken
        for out, made in zip(node.outputs, taken.body.outputs, strict=False):
            content = self.content(made)
            if content is not None:
                self.contents[out] = content
        return [v.type for v in taken.body.outputs]

    def walk_body(
        self,
        body: Graph,
        given: Mapping[Value, ValueType | None],
        change: Callable[[Graph, Node], None] | None = None,
    ) -> None:
        """Infer a body whose inputs have these types; of other inputs only the element type is known."""
        for v in body.inputs:
            v.type = self._complete(_certain(given.get(v), v.type))
        outer = self.equal, self.places
        self.equal, self.places = ChainMap({}, self.equal), ChainMap({}, self.places)
        self._walk(body, change)
        self.equal, self.places = outer

    def try_body(self, body: Graph, given: Mapping[Value, ValueType | None]) -> Callable[[], None]:
        """Infer a body whose inputs have these types; the returned function undoes it."""
        values = [*body.inputs, *(v for n in body.all_nodes() for v in n.outputs)]
        values += [v for n in body.all_nodes() for _, sub in n.subgraphs() for v in sub.inputs]
        types, known = [v.type for v in values], set(self.contents)
        self.walk_body(body, given)

        def forget() -> None:
            for v, t in zip(values, types, strict=True):
                v.type = t
            for v in self.contents.keys() - known:
                del self.contents[v]

        return forget

    @property
    def names_made(self) -> int:
        return len(self._made)

    def is_newer(self, d: Dim, count: int) -> bool:
        """Whether a dimension contains a name that was made after the first ``count``."""
        return any(self._made.get(name, -1) >= count for name in dims.names(d))


def _may_be_content(value: Value) -> bool:
    t = value.type
    if not isinstance(t, TensorType) or t.shape is None or len(t.shape) > 2:
        return False
    return t.dtype.name in ("i64", "i32", "bool", "f32", "f64") and all(
        type(d) is int and d <= MAX_CONTENT for d in t.shape
    )


def _certain(found: ValueType | None, before: ValueType | None) -> ValueType | None:
    """The inferred type; if there is none, the kind and element type that were known before."""
    if found is not None:
        return found
    return TensorType(before.dtype) if isinstance(before, TensorType) else before


def _common(alternatives: list[ValueType | None]) -> ValueType | None:
    """What several alternative types have in common."""
    first = alternatives[0]
    if not all(isinstance(t, TensorType) for t in alternatives):
        return first if all(t == first for t in alternatives) else None
    tensors = [t for t in alternatives if isinstance(t, TensorType)]
    shapes = [t.shape for t in tensors]
    if any(t.dtype is not tensors[0].dtype for t in tensors):
        return None
    if any(s is None or len(s) != len(shapes[0] or ()) for s in shapes):
        return TensorType(tensors[0].dtype)
    ranks = zip(*(s for s in shapes if s is not None), strict=True)
    return TensorType(tensors[0].dtype, tuple(ds[0] if all(d == ds[0] for d in ds) else None for ds in ranks))
