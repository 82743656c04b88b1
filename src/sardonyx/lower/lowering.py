"""The state that lowering rules work on: the views of values, the groups so far, and conditions on sizes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.errors import Reporting
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.limits import check_time
from sardonyx.lower import views
from sardonyx.lower.analysis.facts import GraphFacts
from sardonyx.lower.check import Check
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle
from sardonyx.lower.families import FAMILIES
from sardonyx.lower.fusion.fuse import fuse
from sardonyx.lower.fusion.simplify import simplify
from sardonyx.lower.groups import Branch, Fill, Group, Loop, Repeat, Storage, View
from sardonyx.lower.sizes import DataDependent, Refused, broadcast_factor, mul, only_tensors, product
from sardonyx.optimize.guards import Guard
from sardonyx.records import Record, replace

TYPES = frozenset(
    t for t in dtypes.every() if t.kind in ("float", "int", "uint", "bool") and t.bits != 6
)  # fmt: skip


COUNTED = frozenset(("NonZero", "Compress", "NonMaxSuppression", "Unique", "Loop", "If"))
"""Operators that may have results whose sizes depend on the data."""


def counted_results(node: Node, facts: GraphFacts) -> Iterable[Value]:
    """The results of a node that may have sizes that depend on the data."""
    if node.onnx_op not in COUNTED:
        return ()
    if node.onnx_op != "If":
        return node.outputs
    if facts.taken(node) is not None:
        return ()
    arms = zip(*(body.outputs for _, body in node.subgraphs()), node.outputs, strict=True)
    return [out for one, two, out in arms if facts.shape(one) != facts.shape(two)]


ROOM = dims.fresh("room")
"""The rows that there is room for in a run, where nothing says before it how many there will be."""


class Counted(Record):
    """A result of data-dependent size: dense at the start of a buffer that has room for the largest result."""

    place: View
    shape: tuple[Known, ...]
    """The shape of the result; its data-dependent size is named ``name``."""
    name: str
    count: View
    """An i64 scalar to which the run writes that size."""


class BodyScope:
    """The groups and checks of a control-flow body; filled in when the body is done."""

    def __init__(self, kept: set[Storage]) -> None:
        self.kept = kept
        self.groups: tuple[Group, ...] = ()
        self.checks: dict[Check, None] = {}


class Lowering:
    """Rules append groups node by node; ``node`` is the current one."""

    node: Node

    def __init__(self, facts: GraphFacts) -> None:
        self.facts = facts
        self.groups: list[Group] = []
        self.views: MutableMapping[Value, View] = {}
        self.inner_views: dict[Value, View] = {}
        """Views of values in control-flow bodies that are done."""
        self.checks: dict[Check, None] = {}
        self.kept: dict[Value, View] = {}
        """Outputs whose memory was chosen before lowering (``states``)."""
        self._shared: dict[Storage, Storage] = {}
        self.counted: dict[Value, Counted] = {}
        self.room: int | None = None
        """How many rows the Loops have room for at first whose trips nothing bounds before the run; None if there are
        no such Loops."""
        self.guarded = False
        """Whether the groups hold only for sizes that select one branch of an If."""
        self._checked_views: set[View] = set()
        """Views that are known or checked to lie inside their storages."""
        self._constants: dict[int, Storage] = {}
        self._scalars: dict[tuple[DType, object], View] = {}

    # -- nodes

    def emit(self, nodes: Iterable[Node]) -> None:
        """Append the groups of nodes. A node whose results follow from sizes gets a ``Fill`` only when they are
        read."""
        for node in nodes:
            check_time()
            self.node = node
            if not all(self.facts.follows_from_sizes(out) for out in node.outputs):
                found = rule_of(node) or _other(node.domain)
                for size in (d for out in node.outputs if not out.is_dead for d in self.shape(out)):
                    self.require_least(f"{node.op_type}: a size is negative", size, 0)
                with Reporting("lower", node):
                    found(self, node)

    def finished(self, kept: Collection[Storage] = ()) -> tuple[Group, ...]:
        """The groups so far, fused and simplified; ``kept`` are storages that groups elsewhere read."""
        groups = tuple(simplify(g) for g in fuse(self.groups, kept))
        for group in groups:
            if not isinstance(group, (Branch, Repeat)):
                self.node = group.nodes[0]
                for view in (*group.reads, *group.writes):
                    self._require_inside(view)
        return groups

    def _require_inside(self, view: View) -> None:
        """Check that a view lies inside its storage: now if that can be proven, else in every plan. An empty view may
        lie anywhere, unless that condition has too many terms.
        """
        if view in self._checked_views or views.is_whole(view):
            return
        self._checked_views.add(view)
        for free in views.slack(view):
            if not dims.at_least(free, 0):
                empty = dims.neg(product(view.shape))
                least = dims.maximum(free, empty)
                self.require_least("a view reaches beyond its storage", free if least is None else least, 0)

    @contextmanager
    def body_scope(self, node: Node, kept: Collection[Storage]) -> Iterator[BodyScope]:
        """Lower a body of the node into groups of its own. Its values are not visible outside; ``kept`` are the
        storages that it writes for others. Its size checks go to the scope, not to this lowering.
        """
        outer, known, checks = self.groups, self.views, self.checks
        scope = BodyScope(set(kept))
        own: dict[Value, View] = {}
        self.groups, self.views, self.checks = [], ChainMap(own, known), scope.checks
        yield scope
        scope.groups = self.finished(scope.kept)
        self.inner_views.update(own)
        self.groups, self.views, self.checks, self.node = outer, known, checks, node

    # -- values

    def shape(self, value: Value) -> tuple[Known, ...]:
        return self.facts.shape(value)

    def dtype(self, value: Value) -> DType:
        found = value.dtype
        if found is None:
            raise Refused(only_tensors(value))
        if found not in TYPES:
            raise Refused(f"elements of type {found} are not compiled")
        return found

    def input(self, i: int) -> Value:
        """Input ``i`` of the current node; refused if it is absent."""
        value = self.node.input(i)
        if value is None:
            raise Refused(f"input {i} is absent")
        return value

    def view(self, value: Value) -> View:
        """The view of a value. Constants, and values that follow from sizes, get a storage at the first request."""
        found = self.views.get(value)
        if found is None:
            if value.is_const and value.const is not None:
                found = self.constant(value.const, value)
            elif self.facts.follows_from_sizes(value):
                found = self.make(value)
                self.groups.append(Fill((self.node,), found, tuple(self.sizes(value))))
            else:
                raise Refused(f"{value.name!r} has no storage")
            self.views[value] = found
        return found

    def constant(self, tensor: Tensor, value: Value | None = None) -> View:
        storage = self._constants.get(id(tensor))
        if storage is None:
            if tensor.dtype not in TYPES:
                raise Refused(f"elements of type {tensor.dtype} are not compiled")
            storage = Storage("constant", tensor.dtype, tensor.size, value, tensor)
            self._constants[id(tensor)] = storage
        return views.dense(storage, tensor.shape)

    def scalar(self, number: object, dtype: DType) -> View:
        """A constant scalar."""
        found = self._scalars.get((dtype, number))
        if found is None:
            found = self._scalars[dtype, number] = self.constant(Tensor.of(np.asarray(number).astype(dtype.numpy)))
        return found

    def number(self, size: Known) -> View:
        """A size as an i64 scalar in memory."""
        if isinstance(size, int):
            return self.scalar(size, dtypes.i64)
        view = self.temporary(dtypes.i64, ())
        self.groups.append(Fill((self.node,), view, (size,)))
        return view

    def indices(self, size: Known) -> View:
        """0, 1, ..., size - 1 as i64."""
        view = self.temporary(dtypes.i64, (size,))
        self.groups.append(Fill((self.node,), view, start=0, step=1))
        return view

    def temporary(self, dtype: DType, shape: Sequence[Known], value: Value | None = None) -> View:
        return views.dense(Storage("temporary", dtype, product(shape), value), shape)

    def take(self, value: Value) -> View:
        """Give an input of the part its storage."""
        shape = self.shape(value)
        view = views.dense(Storage("input", self.dtype(value), product(shape), value), shape)
        self.views[value] = view
        return view

    def make(self, value: Value) -> View:
        """Give a value a storage of its own."""
        view = self.kept.get(value) or self.temporary(self.dtype(value), self.shape(value), value)
        self.views[value] = view
        return view

    def share(self, past: Value, old: View, present: Value, new: View) -> None:
        """Record that the storages of an input and an output are the same memory."""
        self.views[past], self.kept[present] = old, new
        self._shared[old.storage] = new.storage

    def count(self) -> View:
        """An i64 scalar for a data-dependent size."""
        return self.temporary(dtypes.i64, ())

    def make_counted(self, value: Value, axis: int, most: Known, count: View) -> View:
        """A buffer for a value of at most ``most`` elements along an axis; the run writes their number to ``count``."""
        before, after = self.shape(value)[:axis], self.shape(value)[axis + 1 :]
        place = self.temporary(self.dtype(value), (product((*before, most, *after)),), value)
        found = dims.fresh(f"count{count.storage.number}")
        shape = (*before, found, *after)
        self.counted[value] = Counted(place, shape, str(found), count)
        self.views[value] = views.dense(place.storage, shape)
        return place

    def make_room(self, value: Value, count: View, rows: int) -> View:
        """A buffer for a value of ``ROOM`` rows; the run writes to ``count`` how many there are, and is repeated with
        more room if these are too few. ``rows`` is a good size for a start."""
        self.room = rows if self.room is None else min(self.room, rows)
        place = self.make_counted(value, 0, ROOM, count)
        return views.dense(place.storage, (ROOM, *self.shape(value)[1:]))

    def alias(self, value: Value, view: View) -> None:
        """Make a value a view of existing memory."""
        self.views[value] = view

    # -- contents of values

    def sizes(self, value: Value) -> list[Known]:
        """The elements of a value, all of which must follow from sizes."""
        found = self.facts.content(value)
        if found is None or any(d is None for d in found):
            raise DataDependent(f"the elements of {value.name!r} are not known before the run")
        return [d for d in found if d is not None]

    def numbers(self, value: Value) -> list[int]:
        """The elements of a value, all of which must be constants."""
        found = self.sizes(value)
        if not all(isinstance(d, int) for d in found):
            raise DataDependent(f"the elements of {value.name!r} are not constant")
        return [d for d in found if isinstance(d, int)]

    def one_size(self, value: Value) -> Known:
        """The only element of a value, which must follow from sizes."""
        found = self.sizes(value)
        if len(found) != 1:
            raise Refused(f"{value.name!r} has {len(found)} elements, not one")
        return found[0]

    def one_number(self, value: Value) -> int:
        """The only element of a value, which must be a constant."""
        self.one_size(value)
        return self.numbers(value)[0]

    # -- conditions

    def require(self, what: str, size: Known, *allowed: Known) -> None:
        """Require that a size is one of ``allowed``: refused if it cannot be, checked in every plan if it may be."""
        if size in allowed:
            return
        if all(dims.differ(size, other) for other in allowed):
            raise Refused(f"{what}: {size} is none of {', '.join(map(str, allowed))}")
        self.checks[Check(self.node, what, size, allowed)] = None

    def require_shape(self, what: str, shape: Sequence[Known], wanted: Sequence[Known]) -> None:
        """Require that two shapes are equal."""
        if len(shape) != len(wanted):
            raise Refused(f"{what}: there are {len(shape)} axes, not {len(wanted)}")
        for size, other in zip(shape, wanted, strict=True):
            self.require(what, size, other)

    def require_least(self, what: str, size: Known, least: int) -> None:
        if dims.at_least(size, least):
            return
        if isinstance(size, int):
            raise Refused(f"{what}: {size} is less than {least}")
        self.checks[Check(self.node, what, size, (), least)] = None

    def guard(self, what: str, guard: Guard) -> None:
        """Require that the sizes select the branch of an If that is lowered."""
        self.guarded = True
        if guard.least is None:
            self.require(what, guard.size, *guard.allowed)
        else:
            self.require_least(what, guard.size, guard.least)

    def fit(self, view: View, box: Sequence[Known]) -> View:
        """A view broadcast to a box by ONNX's rules."""
        lead = len(box) - len(view.shape)
        if lead < 0:
            raise Refused("an operand has more axes than the result")
        strides: list[Known] = [0] * lead
        for size, extent, stride in zip(view.shape, box[lead:], view.strides, strict=True):
            factor = broadcast_factor(size, extent)
            if size not in (1, extent):
                allowed = (extent,) if factor == 1 else (extent, 1)
                self.require("the shapes of the operands do not broadcast together", size, *allowed)
            strides.append(mul(factor, stride))
        return View(view.storage, tuple(box), tuple(strides), view.offset)

    # -- groups

    def loop(
        self,
        extents: Iterable[Known],
        body: ExpressionBuilder,
        stores: Sequence[tuple[Handle, View]],
        *,
        reduced: int = 0,
    ) -> None:
        """Append a loop that stores values of an expression, each over all axes or only over those not reduced."""
        expression = body.expression([h for h, _ in stores])
        outputs = tuple(view for _, view in stores)
        for number, view in zip(expression.results, outputs, strict=True):
            if expression.dtype_of(number) is not view.dtype:  # a wider store would overwrite its neighbours
                raise Refused(
                    f"{self.node.op_type} computes {expression.dtype_of(number)} for a result of {view.dtype}"
                )
        self.groups.append(Loop((self.node,), tuple(extents), reduced, tuple(body.views), expression, outputs))

    def copy(self, source: View, target: View) -> None:
        if replace(source, storage=self._shared.get(source.storage, source.storage)) == target:
            return
        body = ExpressionBuilder()
        self.loop(target.shape, body, [(body.operand(self.fit(source, target.shape)), target)])

    def reshaped(self, view: View, shape: Sequence[Known]) -> View:
        """A view under another shape; copied if its strides do not allow that."""
        found = views.reshaped(view, shape)
        if found is None:
            dense = self.temporary(view.dtype, view.shape)
            self.copy(view, dense)
            found = views.reshaped(dense, shape)
            assert found is not None
        return found


Rule = Callable[[Lowering, Node], None]
RULES: dict[tuple[str, str], Rule] = {}
OTHER = ""
"""The key of the rule for operators that have none of their own."""

FOREIGN = "*"
"""The key of all domains other than ai.onnx in the rule for other operators."""


def rule(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Register the lowering rule of operators, by default of ai.onnx. A rule raises ``Refused`` for nodes it cannot
    lower."""

    def register(fn: Rule) -> Rule:
        for op_type in op_types:
            assert (domain, op_type) not in RULES, op_type
            RULES[domain, op_type] = fn
        return fn

    return register


def rule_of(node: Node) -> Rule | None:
    """The lowering rule of a node's operator, if it has one of its own."""
    FAMILIES.load(node.domain, node.op_type)
    return RULES.get((node.domain, node.op_type))


def _other(domain: str) -> Rule:
    """The rule for operators of a domain that have none of their own."""
    FAMILIES.load_family("custom" if domain else "pointwise")
    return RULES[FOREIGN if domain else "", OTHER]


def axis_of(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise Refused(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def axes_of(axes: Iterable[int], rank: int) -> list[int]:
    """Axes as non-negative numbers, no axis twice."""
    found = [axis_of(a, rank) for a in axes]
    if len(set(found)) < len(found):
        raise Refused("an axis is given twice")
    return found
