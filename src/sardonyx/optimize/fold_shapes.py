"""Replaces computed shapes by constants, copies and -1, during inference."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.ir.builder import Builder
from sardonyx.ir.dims import Dim, Expr
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.shape import Shape
from sardonyx.ir.tensor import Tensor
from sardonyx.ops.rules import broadcast
from sardonyx.optimize import contents
from sardonyx.optimize.branches import inline, squeezed_axis
from sardonyx.optimize.contents import Array
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.symbolic import Facts


@optimization("FoldShapes")
def fold_shapes(graph: Graph, log: Log) -> None:
    """Elements that follow from dimensions  ->  constants, or one Shape; constant targets for Reshape and Expand."""
    folder = _Folder(Facts(), log)
    folder.facts.walk(graph, folder.change)
    if folder.has_inlined:  # inlining changed the readers of earlier nodes
        folder = _Folder(Facts(), log)
        folder.facts.walk(graph, folder.change)


class _Folder:
    """The rewrites of one pass over the graph."""

    def __init__(self, facts: Facts, log: Log) -> None:
        self.facts, self.log = facts, log
        self.has_inlined = False

    def change(self, graph: Graph, node: Node) -> None:
        if node.domain:
            return
        if node.onnx_op == "Shape" and node.inputs[0] is not None:
            self.facts.provide_sizes(node.inputs[0])
        if any(out in self.facts.contents for out in node.outputs) and self._content(graph, node):
            return
        rewrite = REWRITES.get(node.op_type)
        if rewrite is not None:
            rewrite(self, graph, node)

    def branch(self, graph: Graph, node: Node) -> None:
        """If(condition that follows from dimensions)  ->  the branch that is taken."""
        squeezed = squeezed_axis(node, self.facts.content)
        if squeezed is not None:
            x, axis = squeezed
            op = Builder(graph, node, prefix=node.outputs[0].name, origin=node.origin)
            self._finish(graph, node, op.Squeeze(x, [axis]), op, "its readers need the squeezed value")
            return
        for made in inline(graph, node, self.log):
            self.has_inlined = True
            self.facts.learn(made)
            self.change(graph, made)

    # -- values that are shapes

    def _content(self, graph: Graph, node: Node) -> bool:
        """Replace a node's result if its elements are known, or available from another value."""
        for out in node.outputs:
            content = self.facts.contents.get(out)
            if content is None or out.is_dead or out.dtype is None or out.dtype.is_float:
                continue
            if contents.is_number(content):
                const = graph.add_const(Tensor.of(content.astype(out.dtype.numpy), out.name), out.name)
                self._replace(graph, node, out, const, [], "follows from dimensions that are known")
                continue
            key = self.facts.key(out)
            if key is None:
                continue
            kept = self.facts.equal.get(key)
            if kept is not None and _can_stand_for(kept, out, graph):
                self._replace(graph, node, out, kept, [], f"is the same as {kept.name!r}")
            elif not self._as_shape(graph, node, out, content):
                self.facts.equal[key] = out
        return all(out.is_dead for out in node.outputs)

    def _as_shape(self, graph: Graph, node: Node, out: Value, content: Array) -> bool:
        """Consecutive dimensions of a value -> its Shape from ``start`` to ``end``; others are concatenated from such
        slices.
        """
        if content.ndim != 1 or out.dtype is not dtypes.i64:
            return False
        op = Builder(graph, node, prefix=out.name, origin=node.origin)
        place = self._place(content)
        if place is not None:
            x, start = place
            if node.onnx_op == "Shape" and node.inputs[0] is x:
                return False
            new = self._part(op, x, start, len(content))
        elif node.onnx_op == "Concat":
            pieces = self._pieces(node, content)
            if len(pieces) >= len(node.inputs):
                return False
            new = op.Concat(*(p if isinstance(p, (Value, list)) else self._part(op, *p) for p in pieces), axis=0)
        else:
            return False
        for made in op.made:
            self.facts.learn(made)
        if not _can_stand_for(new, out, graph):
            return False
        self._replace(graph, node, out, new, op.made, f"reads the dimensions ({', '.join(map(str, content))}) directly")
        return True

    def _part(self, op: Builder, x: Value, start: int, count: int) -> Value:
        """``count`` dimensions of ``x``, from ``start`` on."""
        key = dtypes.i64, (count,), (x.shape or ())[start : start + count]
        kept = self.facts.equal.get(key)
        if kept is not None:
            return kept
        whole = start + count == x.rank
        made: Value = op.Shape(x, start=start or None, end=None if whole else start + count)
        self.facts.learn(op.made[-1])
        self.facts.equal[key] = made
        return made

    def _place(self, content: Array) -> tuple[Value, int] | None:
        """A value, and the axis at which its dimensions are these."""
        for i, d in enumerate(content):
            if isinstance(d, Expr):
                for value, axis in self.facts.places.get(d, ()):
                    start = axis - i
                    if start >= 0 and (value.shape or ())[start : start + len(content)] == tuple(content):
                        return value, start
                return None
        return None

    def _pieces(self, node: Node, content: Array) -> list[Value | list[int] | tuple[Value, int, int]]:
        """The fewest constants, dimension slices and inputs of a Concat that make up these elements."""
        parts: list[tuple[Value, list[Dim]]] = []
        at = 0
        for v in node.inputs:
            assert v is not None
            size = v.shape[0] if v.shape else None
            assert isinstance(size, int)
            parts.append((v, list(content[at : at + size])))
            at += size
        pieces: list[Value | list[int] | tuple[Value, int, int]] = []
        i = 0
        while i < len(parts):
            j = next((j for j in range(len(parts), i, -1) if self._is_run(_joined(parts[i:j]))), i + 1)
            run = _joined(parts[i:j])
            numbers = [d for d in run if isinstance(d, int)]
            place = self._place(contents.objects(run, (len(run),)))
            if j == i + 1:
                pieces.append(parts[i][0])
            elif len(numbers) == len(run):
                pieces.append(numbers)
            else:
                assert place is not None
                pieces.append((*place, len(run)))
            i = j
        return pieces

    def _is_run(self, run: list[Dim]) -> bool:
        return all(isinstance(d, int) for d in run) or self._place(contents.objects(run, (len(run),))) is not None

    # -- operators that take shapes

    def reshape(self, graph: Graph, node: Node) -> None:
        """Reshape(x, computed)  ->  Reshape(x, constant), Flatten(x) or x."""
        x, target = node.inputs
        out = node.outputs[0]
        if x is None or target is None or self._cancel_reshape(graph, node) or target.is_const or out.shape is None:
            return
        if x.shape is None or not all(isinstance(d, (int, Expr)) for d in out.shape):
            return
        found = _target(x.shape, out.shape, self._has_minus_one(target))
        op = Builder(graph, node, prefix=out.name, origin=node.origin)
        if found is not None:
            new = op.Reshape(x, found)
        elif len(out.shape) == 2 and (axis := _flat(x.shape, out.shape)) is not None:
            new = op.Flatten(x, axis=axis)
        else:
            self.log.declined(
                node, f"no constant target makes {_text(out.shape)} of {_text(x.shape)}, whatever is 0 ({x.name})"
            )
            return
        self._finish(
            graph, node, new, op, f"the target {_text(out.shape)} is constant up to copies of {_text(x.shape)}"
        )

    def _has_minus_one(self, target: Value) -> bool:
        content = self.facts.contents.get(target)
        return content is not None and -1 in content.reshape(-1).tolist()

    def expand(self, graph: Graph, node: Node) -> None:
        """Expand(x, computed)  ->  x, or Expand(x, constant) with ones for dimensions that x has."""
        x, target = node.inputs
        out = node.outputs[0]
        if x is None or target is None or self._identity(graph, node):
            return
        if target.is_const or x.shape is None or out.shape is None:
            return
        lack = len(out.shape) - len(x.shape)
        wanted = [1 if i >= lack and x.shape[i - lack] == d else d for i, d in enumerate(out.shape)]
        if all(isinstance(d, int) for d in wanted):
            op = Builder(graph, node, prefix=out.name, origin=node.origin)
            self._finish(
                graph,
                node,
                op.Expand(x, wanted),
                op,
                f"the target {_text(out.shape)} is constant beside {_text(x.shape)}",
            )

    def broadcast(self, graph: Graph, node: Node) -> None:
        """x + Expand(y)  ->  x + y, if x has the dimensions to which y is expanded."""
        inputs = list(node.inputs)
        shapes = [None if v is None else v.shape for v in inputs]
        full = node.outputs[0].shape
        for i, v in enumerate(inputs):
            before = v.producer if v is not None else None
            if before is None or before.op_type != "Expand" or before.domain:
                continue
            y = before.inputs[0]
            with_y = [*shapes[:i], None if y is None else y.shape, *shapes[i + 1 :]]
            if _same_shape(broadcast(with_y), full):
                inputs[i], shapes = y, with_y
        if inputs != list(node.inputs):
            op = Builder(graph, node, prefix=node.outputs[0].name, origin=node.origin)
            self._finish(
                graph, node, op.call("", node.op_type, *inputs, **node.attrs), op, "broadcasts without an Expand"
            )

    def slice(self, graph: Graph, node: Node) -> None:
        """Slice(x) that keeps every element  ->  x."""
        steps = node.input(4)
        content = None if steps is None else self.facts.content(steps)
        if steps is None or (content is not None and all(d == 1 for d in content.flat)):
            self._identity(graph, node)

    def remove_identity(self, graph: Graph, node: Node) -> None:
        self._identity(graph, node)

    def cancel_reshape(self, graph: Graph, node: Node) -> None:
        self._cancel_reshape(graph, node)

    def _identity(self, graph: Graph, node: Node) -> bool:
        """Remove a node that keeps the shape and the order of elements."""
        x, out = node.inputs[0], node.outputs[0]
        if x is None or not _same_shape(x.shape, out.shape) or not _can_stand_for(x, out, graph):
            return False
        return self._replace(graph, node, out, x, [], f"removed: the result is {x.name!r}")

    def _cancel_reshape(self, graph: Graph, node: Node) -> bool:
        """Remove a change of shape that undoes those before it."""
        if self._identity(graph, node):
            return True
        out, x = node.outputs[0], node.inputs[0]
        for _ in range(4):
            before = x.producer if x is not None else None
            if before is None or before.domain or before.op_type not in RESHAPING or before.graph is not graph:
                return False
            x = before.inputs[0]
            if x is not None and _same_shape(x.shape, out.shape) and _can_stand_for(x, out, graph):
                return self._replace(graph, node, out, x, [], f"removed: with {before.label}, the result is {x.name!r}")
        return False

    # -- replacement

    def _finish(self, graph: Graph, node: Node, new: Value, op: Builder, why: str) -> None:
        for made in op.made:
            self.facts.learn(made)
        self._replace(graph, node, node.outputs[0], new, op.made, why)

    def _replace(self, graph: Graph, node: Node, old: Value, new: Value, made: list[Node], why: str) -> bool:
        done = self.log.replace(graph, [node], [old], [new], made, why)
        key = self.facts.key(old)
        if done and key is not None and self.facts.equal.get(key, old) is old:
            self.facts.equal[key] = new
        if not done:
            gone = {out for n in made for out in n.outputs}
            for key in [key for key, v in self.facts.equal.items() if v in gone]:
                del self.facts.equal[key]
        return done


def _joined(parts: list[tuple[Value, list[Dim]]]) -> list[Dim]:
    return [d for _, ds in parts for d in ds]


def _text(shape: Shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _is_certain(shape: Shape | None) -> bool:
    return shape is not None and all(isinstance(d, (int, Expr)) for d in shape)


def _same_shape(a: Shape | None, b: Shape | None) -> bool:
    return a == b and _is_certain(a)


def _can_stand_for(new: Value, old: Value, graph: Graph) -> bool:
    """Whether ``new`` may replace ``old``: a subgraph's output must be computed inside it."""
    return not old.is_output or graph.parent is None or (new.producer is not None and new.producer.graph is graph)


def _target(x: Shape, out: Shape, infers: bool) -> list[int] | None:
    """A constant target of Reshape that gives ``out``: 0 for x's dimension at that position, one -1.

    If there is a -1, all other dimensions must be nonzero, unless the model relied on that already.
    """
    target: list[int] = []
    for i, d in enumerate(out):
        in_place = i < len(x) and x[i] == d
        if d == 0 and not in_place:
            return None
        target.append(d if isinstance(d, int) else 0 if in_place else -1)
    rest = [d for n, d in zip(target, out, strict=True) if n != -1]
    decided = len(rest) == len(out) or infers or all(dims.at_least(d, 1) for d in rest)
    return target if decided and target.count(-1) <= 1 else None


def _flat(x: Shape, out: Shape) -> int | None:
    """The axis at which Flatten gives this shape."""
    for axis in range(len(x) + 1):
        if (dims.product(x[:axis]), dims.product(x[axis:])) == out:
            return axis
    return None


RESHAPING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})

BROADCASTING = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "Where", "Equal", "Less", "LessOrEqual",
    "Greater", "GreaterOrEqual", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift",
)  # fmt: skip

REWRITES: dict[str, Callable[[_Folder, Graph, Node], None]] = {
    "Reshape": _Folder.reshape,
    "Expand": _Folder.expand,
    "Slice": _Folder.slice,
    "If": _Folder.branch,
    "Tile": _Folder.remove_identity,
    "Flatten": _Folder.cancel_reshape,
    "Squeeze": _Folder.cancel_reshape,
    "Unsqueeze": _Folder.cancel_reshape,
    **dict.fromkeys(BROADCASTING, _Folder.broadcast),
}
