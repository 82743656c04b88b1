"""The state of lowering: where each value lies, the groups so far, and what sizes must satisfy."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

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
from sardonyx.lower.analysis.facts import Learned
from sardonyx.lower.body import Body, Handle
from sardonyx.lower.check import Check
from sardonyx.lower.fusion.fuse import fuse
from sardonyx.lower.fusion.simplify import simplify
from sardonyx.lower.groups import Branch, Fill, Group, Loop, Repeat, Storage, View
from sardonyx.lower.sizes import Later, Refused, certain, mul, product, stretch
from sardonyx.optimize.guards import Guard

TYPES = frozenset(
    t for t in dtypes.every() if t.kind in ("float", "int", "uint", "bool") and t.bits != 6
)  # fmt: skip


COUNTED = frozenset(("NonZero", "Compress", "NonMaxSuppression", "Unique", "Loop"))
"""Operators whose results are as long as they find out while they run."""


@dataclass(frozen=True)
class Counted:
    """A result in memory for as many elements as it may have; the first ones are there, in its shape, dense."""

    place: View
    shape: tuple[Known, ...]
    """With a name for the size that the run finds out."""
    name: str
    count: View
    """Where that size is written, an i64 without axes."""


class Inside:
    """What became of a body."""

    def __init__(self, kept: set[Storage]) -> None:
        self.kept = kept
        self.groups: tuple[Group, ...] = ()
        self.checks: dict[Check, None] = {}


class Lowering:
    """Groups are written node by node; ``node`` is the one at hand."""

    node: Node

    def __init__(self, learned: Learned) -> None:
        self.learned = learned
        self.groups: list[Group] = []
        self.views: MutableMapping[Value, View] = {}
        self.inner_views: dict[Value, View] = {}
        """Of values of bodies that are done."""
        self.checks: dict[Check, None] = {}
        self.kept: dict[Value, View] = {}
        """Places that outputs have before anything is computed."""
        self._shared: dict[Storage, Storage] = {}
        self.counted: dict[Value, Counted] = {}
        self.guarded = False
        """Whether sizes that are not lowered may be others that another branch of an If is for."""
        self._inside: set[View] = set()
        """Views that are known to lie inside their storages, or are checked to."""
        self._constants: dict[int, Storage] = {}
        self._scalars: dict[tuple[DType, object], View] = {}

    # -- nodes

    def emit(self, nodes: Iterable[Node]) -> None:
        """The groups of nodes; one whose elements follow from sizes needs none until they are read."""
        for node in nodes:
            check_time()
            self.node = node
            if not all(self.learned.is_shapely(out) for out in node.outputs):
                found = RULES.get((node.domain, node.op_type)) or RULES[FOREIGN if node.domain else "", OTHER]
                for size in (d for out in node.outputs if not out.is_dead for d in self.shape(out)):
                    self.require_least(f"{node.op_type}: a size is negative", size, 0)
                with Reporting("lower", node):
                    found(self, node)

    def finished(self, kept: Collection[Storage] = ()) -> tuple[Group, ...]:
        """The groups so far, fused; ``kept`` are storages that others will read."""
        groups = tuple(simplify(g) for g in fuse(self.groups, kept))
        for group in groups:
            if not isinstance(group, (Branch, Repeat)):
                self.node = group.nodes[0]
                for view in (*group.reads, *group.writes):
                    self._require_inside(view)
        return groups

    def _require_inside(self, view: View) -> None:
        """That a view lies inside its storage, whatever rule made it: certain, or checked in every plan."""
        if view in self._inside or views.is_whole(view):
            return
        self._inside.add(view)
        for free in views.room(view):
            if not dims.at_least(free, 0):
                empty = dims.neg(product(view.shape))
                self.require_least("a view reaches over its storage", certain(dims.maximum(free, empty)), 0)

    @contextmanager
    def inside(self, node: Node, kept: Collection[Storage]) -> Iterator[Inside]:
        """A body of the node: groups of its own, whose places nobody else knows. It writes the storages ``kept``.

        What it asks of sizes is handed to the caller.
        """
        outer, known, checks = self.groups, self.views, self.checks
        scope = Inside(set(kept))
        own: dict[Value, View] = {}
        self.groups, self.views, self.checks = [], ChainMap(own, known), scope.checks
        yield scope
        scope.groups = self.finished(scope.kept)
        self.inner_views.update(own)
        self.groups, self.views, self.checks, self.node = outer, known, checks, node

    # -- values

    def shape(self, value: Value) -> tuple[Known, ...]:
        return self.learned.shape(value)

    def dtype(self, value: Value) -> DType:
        found = value.dtype
        if found is None or found not in TYPES:
            raise Refused(f"elements of type {found} are not compiled")
        return found

    def input(self, i: int) -> Value:
        """Input ``i`` of the node at hand, which must be there."""
        value = self.node.input(i)
        if value is None:
            raise Refused(f"input {i} is absent")
        return value

    def view(self, value: Value) -> View:
        """Where a value lies; constants, and what follows from sizes, are given a place when first asked for."""
        found = self.views.get(value)
        if found is None:
            if value.is_const and value.const is not None:
                found = self.constant(value.const, value)
            elif self.learned.is_shapely(value):
                found = self.make(value)
                self.groups.append(Fill((self.node,), found, tuple(self.sizes(value))))
            else:
                raise Refused(f"{value.name!r} has no place")
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
        """A constant of one element, without axes."""
        found = self._scalars.get((dtype, number))
        if found is None:
            found = self._scalars[dtype, number] = self.constant(Tensor.of(np.asarray(number).astype(dtype.numpy)))
        return found

    def number(self, size: Known) -> View:
        """A size as an i64 without axes."""
        if isinstance(size, int):
            return self.scalar(size, dtypes.i64)
        view = self.temporary(dtypes.i64, ())
        self.groups.append(Fill((self.node,), view, (size,)))
        return view

    def indices(self, size: Known) -> View:
        """0, 1, ... below a size, as i64."""
        view = self.temporary(dtypes.i64, (size,))
        self.groups.append(Fill((self.node,), view, start=0, step=1))
        return view

    def temporary(self, dtype: DType, shape: Sequence[Known], value: Value | None = None) -> View:
        return views.dense(Storage("temporary", dtype, product(shape), value), shape)

    def take(self, value: Value) -> View:
        """The place of an input of the part."""
        shape = self.shape(value)
        view = views.dense(Storage("input", self.dtype(value), product(shape), value), shape)
        self.views[value] = view
        return view

    def make(self, value: Value) -> View:
        """Memory of its own for a value."""
        view = self.kept.get(value) or self.temporary(self.dtype(value), self.shape(value), value)
        self.views[value] = view
        return view

    def share(self, past: Value, old: View, present: Value, new: View) -> None:
        """An input and an output lie in the same memory, though in two storages."""
        self.views[past], self.kept[present] = old, new
        self._shared[old.storage] = new.storage

    def count(self) -> View:
        """A place for a size that the run finds out."""
        return self.temporary(dtypes.i64, ())

    def make_counted(self, value: Value, axis: int, most: Known, count: View) -> View:
        """Memory for a value of at most so many elements along an axis; ``count`` is where their number is written."""
        before, after = self.shape(value)[:axis], self.shape(value)[axis + 1 :]
        place = self.temporary(self.dtype(value), (product((*before, most, *after)),), value)
        found = dims.fresh(f"count{count.storage.number}")
        shape = (*before, found, *after)
        self.counted[value] = Counted(place, shape, str(found), count)
        self.views[value] = views.dense(place.storage, shape)
        return place

    def alias(self, value: Value, view: View) -> None:
        """A value that is a window of what is there already."""
        self.views[value] = view

    # -- elements that follow from sizes

    def sizes(self, value: Value) -> list[Known]:
        """The elements of a value that is a shape, or a part of one."""
        found = self.learned.content(value)
        if found is None or any(d is None for d in found):
            raise Later(f"the elements of {value.name!r} are not known before the run")
        return [d for d in found if d is not None]

    def numbers(self, value: Value) -> list[int]:
        """The elements of a value that is constant."""
        found = self.sizes(value)
        if not all(isinstance(d, int) for d in found):
            raise Later(f"the elements of {value.name!r} are not constant")
        return [d for d in found if isinstance(d, int)]

    def one_size(self, value: Value) -> Known:
        """The only element of a value that is a shape, or a part of one."""
        found = self.sizes(value)
        if len(found) != 1:
            raise Refused(f"{value.name!r} has {len(found)} elements, not one")
        return found[0]

    def one_number(self, value: Value) -> int:
        """The only element of a value that is constant."""
        self.one_size(value)
        return self.numbers(value)[0]

    # -- conditions

    def require(self, what: str, size: Known, *allowed: Known) -> None:
        """That a size is one of others; certain, checked in every plan, or, where it cannot be, refused."""
        if size in allowed:
            return
        if all(dims.differ(size, other) for other in allowed):
            raise Refused(f"{what}: {size} is none of {', '.join(map(str, allowed))}")
        self.checks[Check(self.node, what, size, allowed)] = None

    def require_shape(self, what: str, shape: Sequence[Known], wanted: Sequence[Known]) -> None:
        """That sizes are others, one by one."""
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
        """That sizes take the branch that is lowered."""
        self.guarded = True
        if guard.least is None:
            self.require(what, guard.size, *guard.allowed)
        else:
            self.require_least(what, guard.size, guard.least)

    def fit(self, view: View, box: Sequence[Known]) -> View:
        """A view repeated to a box, by ONNX's broadcasting."""
        lead = len(box) - len(view.shape)
        if lead < 0:
            raise Refused("an operand has more axes than the result")
        strides: list[Known] = [0] * lead
        for size, whole, stride in zip(view.shape, box[lead:], view.strides, strict=True):
            factor = stretch(size, whole)
            if size not in (1, whole):
                allowed = (whole,) if factor == 1 else (whole, 1)
                self.require("the shapes of the operands do not broadcast together", size, *allowed)
            strides.append(mul(factor, stride))
        return View(view.storage, tuple(box), tuple(strides), view.offset)

    # -- groups

    def loop(
        self, extents: Iterable[Known], body: Body, stores: Sequence[tuple[Handle, View]], *, reduced: int = 0
    ) -> None:
        """A loop that stores values of a body, each in all its axes or in those that are not reduced."""
        expression = body.expression([h for h, _ in stores])
        outputs = tuple(view for _, view in stores)
        for number, view in zip(expression.results, outputs, strict=True):
            if expression.dtype_of(number) is not view.dtype:  # it would be written over what lies behind
                raise Refused(f"{self.node.op_type} makes {expression.dtype_of(number)} for {view.dtype}")
        self.groups.append(Loop((self.node,), tuple(extents), reduced, tuple(body.views), expression, outputs))

    def copy(self, source: View, target: View) -> None:
        if replace(source, storage=self._shared.get(source.storage, source.storage)) == target:
            return
        body = Body()
        self.loop(target.shape, body, [(body.operand(self.fit(source, target.shape)), target)])

    def reshaped(self, view: View, shape: Sequence[Known]) -> View:
        """A view under another shape, copied where its strides do not allow that."""
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
"""The rule for operators of ai.onnx that have none by name."""

FOREIGN = "*"
"""The domain under which that rule stands for all other domains."""


def rule(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Register how operators, by default of ai.onnx, are lowered; a rule that cannot raises ``Refused``."""

    def register(fn: Rule) -> Rule:
        for op_type in op_types:
            assert (domain, op_type) not in RULES, op_type
            RULES[domain, op_type] = fn
        return fn

    return register


def axis_of(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise Refused(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def axes_of(axes: Iterable[int], rank: int) -> list[int]:
    """Counted from the front, each of them once."""
    found = [axis_of(a, rank) for a in axes]
    if len(set(found)) < len(found):
        raise Refused("an axis is given twice")
    return found
