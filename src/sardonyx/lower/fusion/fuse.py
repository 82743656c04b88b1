"""Fusion of groups: a loop is fused into the groups that compute its operands.

The rules, tried for each loop in order, for the producers of its operands, the first operand first:

- Two loops are fused if the consumer reads every element of the producer at the index where it is computed. A value
  per row (a reduction) may be read anywhere in that row. The boxes of the two need not be equal: their axes are split
  to common sizes. A loop without reductions may run in any order of axes, so transposes between loops disappear.
  Loops with reductions must reduce the same axes.
- A loop without reductions is fused into the epilogue of an ``EpilogueGroup`` if it reads its results at the same index
  and its views can be expressed over the axes of that group.
- A loop without reductions is distributed over several groups with epilogues that each compute a part of an operand
  (the stride phases of a transposed convolution), if its other operands and its results are laid out as that operand,
  or are broadcast along the axes that the parts cut.
- A loop that reads the reduction of a single long row stays apart, so that threads can share it.
- A loop that dequantizes bytes is left to the loops that read its result, so that bytes are stored and not reals.
- What a fused producer computes is still stored if another group reads it; nothing is computed twice.
- Two groups are not fused if another group depends on the first and the second depends on that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from sardonyx import dtypes
from sardonyx.limits import check_time
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle
from sardonyx.lower.fusion.nest import Nest, common_split, matching_order
from sardonyx.lower.groups import EpilogueGroup, Expression, Group, Loop, Storage, View
from sardonyx.lower.sizes import Refused, product
from sardonyx.records import replace

MAX_VIEWS = 16
"""Views of one loop: more would not fit the address registers of a kernel."""

MAX_STEPS = 32
"""Steps of one expression: kernels stay short, and long chains are fused in linear time."""

BYTES = (dtypes.i8, dtypes.u8)
LONG_ROW = 1 << 15
"""Elements from which a single row is worth more than one thread."""


def fuse(groups: Sequence[Group], kept: Collection[Storage] = ()) -> list[Group]:
    """The groups after fusion, in an order in which they can run, without those that write only empty views.

    ``kept`` are storages other than outputs that groups elsewhere read.
    """
    return _Fusion([g for g in groups if any(0 not in v.shape for v in g.writes)], kept).run()


class _Fusion:
    def __init__(self, groups: Iterable[Group], kept: Collection[Storage]) -> None:
        self.kept = kept
        self.groups: list[Group | None] = list(groups)
        self.readers: dict[Storage, set[int]] = {}
        self.writers: dict[Storage, set[int]] = {}
        self.rank = list(range(len(self.groups)))
        """A group has a higher rank than the groups it depends on."""
        for i, group in enumerate(self.groups):
            if group is not None:
                self._register(i, group)

    def _register(self, i: int, group: Group) -> None:
        for view in group.reads:
            self.readers.setdefault(view.storage, set()).add(i)
        for view in group.writes:
            self.writers.setdefault(view.storage, set()).add(i)

    def _unregister(self, i: int) -> None:
        group = self.groups[i]
        assert group is not None
        for view in group.reads:
            self.readers[view.storage].discard(i)
        for view in group.writes:
            self.writers[view.storage].discard(i)
        self.groups[i] = None

    def run(self) -> list[Group]:
        for i in range(len(self.groups)):
            check_time()
            while self._fuse_with_producer(i) or self._distribute(i):
                pass
        return self._sorted()

    def _fuse_with_producer(self, i: int) -> bool:
        """Fuse the loop at ``i`` with the producer of one of its operands."""
        second = self.groups[i]
        if not isinstance(second, Loop) or self._is_left_to_readers(second):
            return False
        producers = dict.fromkeys(w for v in second.inputs for w in self.writers.get(v.storage, ()))
        for p in sorted(producers, key=lambda p: not self._is_left_to_readers(self.groups[p])):
            first = self.groups[p]
            if not isinstance(first, (Loop, EpilogueGroup)) or p == i:
                continue
            if any(len(self.writers[v.storage]) > 1 for v in second.inputs if p in self.writers.get(v.storage, ())):
                continue
            kept = [v for v in first.outputs if self._is_read(v.storage, i)]
            try:
                fused = _fused(first, second, kept)
            except Refused:
                continue
            if fused is not None and not self._depends_through_another(p, i):
                self._unregister(p)
                self._unregister(i)
                self.groups[i] = fused
                self._register(i, fused)
                self._raise_ranks(i)
                return True
        return False

    def _is_left_to_readers(self, loop: Group | None) -> bool:
        """Whether a loop only dequantizes bytes, for loops alone: it is fused into those, which then read bytes."""
        if not isinstance(loop, Loop):
            return False
        whole = [v for v in loop.inputs if any(v.strides)]
        if loop.reduced or len(whole) != 1 or len(loop.outputs) != 1 or whole[0].dtype not in BYTES:
            return False
        (out,) = loop.outputs
        readers = [self.groups[r] for r in self.readers.get(out.storage, ())]
        is_for_loops = bool(readers) and all(isinstance(g, Loop) for g in readers)
        is_stored = out.storage.kind == "output" or out.storage in self.kept
        return out.dtype.is_float and is_for_loops and not is_stored

    def _distribute(self, i: int) -> bool:
        """Distribute the loop at ``i`` over all the producers that each compute a part of one of its operands."""
        second = self.groups[i]
        if not isinstance(second, Loop) or second.reduced:
            return False
        for view in second.inputs:
            producers = sorted(self.writers.get(view.storage, ()))
            if len(producers) < 2 or self._is_read(view.storage, i):
                continue
            try:
                fused = [_fused_with_part(self.groups[p], second, view) for p in producers]
            except Refused:
                continue
            if None in fused:
                continue
            self._unregister(i)
            for p, group in zip(producers, fused, strict=True):
                assert group is not None
                self._unregister(p)
                self.groups[p], self.rank[p] = group, self.rank[i]
                self._register(p, group)
                self._raise_ranks(p)
            return True
        return False

    def _is_read(self, storage: Storage, i: int) -> bool:
        """Whether anything but the group at ``i`` reads a storage."""
        return storage.kind == "output" or storage in self.kept or bool(self.readers.get(storage, {i}) - {i})

    def _raise_ranks(self, i: int) -> None:
        """Raise the ranks of the groups that depend on a group above its own."""
        todo = [i]
        while todo:
            i = todo.pop()
            for g in self._after(i):
                if self.rank[g] <= self.rank[i]:
                    self.rank[g] = self.rank[i] + 1
                    todo.append(g)

    def _after(self, i: int) -> Iterator[int]:
        group = self.groups[i]
        assert group is not None
        for view in group.writes:
            yield from self.readers.get(view.storage, ())

    def _depends_through_another(self, p: int, i: int) -> bool:
        """Whether another group depends on ``p``, and ``i`` depends on that group."""
        todo = [g for g in self._after(p) if g != i]
        seen = set(todo)
        while todo:
            for g in self._after(todo.pop()):
                if g == i:
                    return True
                if g not in seen and self.rank[g] < self.rank[i]:
                    seen.add(g)
                    todo.append(g)
        return False

    def _sorted(self) -> list[Group]:
        """A topological order that otherwise keeps the given one."""
        done: set[int] = set()
        result: list[Group] = []
        for root, _ in enumerate(self.groups):
            todo = [root]
            while todo:
                group = self.groups[todo[-1]]
                waiting = self._before(group) - done if group is not None and todo[-1] not in done else set()
                if waiting:
                    todo += sorted(waiting, reverse=True)
                    continue
                i = todo.pop()
                if group is not None and i not in done:
                    done.add(i)
                    result.append(group)
        return result

    def _before(self, group: Group) -> set[int]:
        return {w for v in group.reads for w in self.writers.get(v.storage, ())}


def _fused(first: Loop | EpilogueGroup, second: Loop, kept: Sequence[View]) -> Loop | EpilogueGroup | None:
    """Both groups as one that still stores the views ``kept`` of the first; None if they cannot be fused."""
    before = first.expression if isinstance(first, Loop) else first.epilogue
    if len(before.steps) + len(second.expression.steps) > MAX_STEPS:
        return None
    if not isinstance(first, Loop):
        nest = _over_box(first, Nest.of(second))
        if nest is None:
            return None
        body = ExpressionBuilder(first.epilogue.operands[:1])
        handles = [~0, *(body.operand(v) for v in first.extra)]
        stores = _inline_both(body, handles, first.epilogue, first.outputs, kept, nest)
        return replace(
            first,
            nodes=tuple(dict.fromkeys(first.nodes + second.nodes)),
            epilogue=body.expression([h for h, _, _ in stores]),
            extra=tuple(body.views),
            outputs=tuple(v for _, v, _ in stores),
        )
    pair = _aligned(Nest.of(first), Nest.of(second))
    if pair is None:
        return None
    one, two = pair
    if one.reduced and all(one.rows) and not all(two.rows) and _is_long_row(one):
        return None
    kept_here = [v for v, old in zip(one.outputs, first.outputs, strict=True) if old in kept]
    body = ExpressionBuilder()
    stores = _inline_both(
        body, [body.operand(v) for v in one.inputs], one.expression, one.outputs, kept_here, two, one.rows
    )
    if len(body.views) + len(stores) > MAX_VIEWS:
        return None
    nest = Nest(
        one.extents,
        max(one.reduced, two.reduced),
        tuple(body.views),
        body.expression([h for h, _, _ in stores]),
        tuple(v for _, v, _ in stores),
        tuple(row for _, _, row in stores),
    )
    nodes = tuple(dict.fromkeys(first.nodes + second.nodes))
    return Loop(nodes, nest.extents, nest.reduced, nest.inputs, nest.expression, nest.stored())


def _fused_with_part(first: Group | None, second: Loop, whole: View) -> Loop | EpilogueGroup | None:
    """A producer of a part of ``whole``, fused with what the loop does to that part."""
    if not isinstance(first, EpilogueGroup) or len(first.outputs) != 1 or not views.is_whole(whole):
        return None
    part = first.outputs[0]

    def seen(view: View) -> View | None:
        if not any(s for d, s in zip(view.shape, view.strides, strict=True) if d != 1):
            return View(view.storage, part.shape, (0,) * len(part.shape), view.offset)
        if replace(view, storage=whole.storage) == whole:
            return replace(part, storage=view.storage)
        return _seen_by(part, whole, view)

    inputs, outputs = [seen(v) for v in second.inputs], [seen(v) for v in second.outputs]
    if None in inputs or None in outputs or any(v.storage.elements != whole.storage.elements for v in second.outputs):
        return None
    alone = replace(
        second, extents=part.shape, inputs=tuple(v for v in inputs if v), outputs=tuple(v for v in outputs if v)
    )
    return _fused(first, alone, ())


def _seen_by(part: View, whole: View, view: View) -> View | None:
    """What a part of ``whole`` reads of a view that broadcasts along the axes that the part cuts; None if it does
    not."""
    if not len(view.shape) == len(part.shape) == len(whole.shape):
        return None
    axes = zip(part.shape, part.strides, whole.shape, whole.strides, view.shape, view.strides, strict=True)
    if any((d, s) != (e, t) and n != 1 and step != 0 for d, s, e, t, n, step in axes):
        return None
    return View(view.storage, part.shape, view.strides, view.offset)


def _is_long_row(nest: Nest) -> bool:
    """Whether a nest reduces a single row that is so long that threads should share the loop over its elements."""
    *outer, length = product(nest.extents[: nest.outer]), product(nest.extents[nest.outer :])
    return outer == [1] and not (isinstance(length, int) and length < LONG_ROW)


def _inline_both(
    body: ExpressionBuilder,
    operands: list[Handle],
    expression: Expression,
    outputs: Sequence[View],
    kept: Sequence[View],
    second: Nest,
    rows: Sequence[bool] | None = None,
) -> list[tuple[Handle, View, bool]]:
    """Inline both expressions into a builder; returns what is stored, where, and whether once per row."""
    made = body.inline(expression, operands)
    by_storage = {v.storage: h for v, h in zip(outputs, made, strict=True)}
    inputs = [by_storage[v.storage] if v.storage in by_storage else body.operand(v) for v in second.inputs]
    results = body.inline(second.expression, inputs)
    first = zip(made, outputs, rows or [False] * len(made), strict=True)
    return [*((h, v, r) for h, v, r in first if v in kept), *zip(results, second.outputs, second.rows, strict=True)]


def _aligned(first: Nest, second: Nest) -> tuple[Nest, Nest] | None:
    """Both nests over one box, in which the second reads the first's results at the same index; None if there is
    none."""
    for one, two in _orders(first, second):
        cut = common_split(one.extents, two.extents)
        if cut is not None:
            one, two = one.split(cut[0]), two.split(cut[1])
            if len(one.extents) != len(two.extents):  # an axis of one element was kept for a reduction
                one, two = _padded(one, len(two.extents)), _padded(two, len(one.extents))
        elif one.reduced and not two.reduced:
            cut = common_split(one.extents[: one.outer], two.extents)
            if cut is None:
                continue
            inner = [(axis, one.extents[axis]) for axis in range(one.outer, len(one.extents))]
            one = one.split([*cut[0], *inner])
            two = two.split(cut[1]).over_rows_of(one)
        else:
            continue
        if one.reduced and two.reduced and one.reduced != two.reduced:
            continue
        if _reads_where_written(one.outputs, two.inputs):
            return one, two
    return None


def _padded(nest: Nest, rank: int) -> Nest:
    if len(nest.extents) >= rank:
        return nest
    one = tuple(views.inserted(v, len(v.shape)) for v in nest.inputs)
    return replace(
        nest,
        extents=(*nest.extents, 1),
        reduced=nest.reduced + (nest.reduced > 0),
        inputs=one,
        outputs=tuple(views.inserted(v, len(v.shape)) for v in nest.outputs),
    )


def _orders(first: Nest, second: Nest) -> Iterator[tuple[Nest, Nest]]:
    """The two nests as they are, and with axes permuted so that the consumer's order matches the producer's."""
    yield first, second
    made = {v.storage: v for v in first.outputs}
    read = next(v for v in second.inputs if v.storage in made)
    if not second.reduced:
        yield first, second.permuted(views.memory_order(read))
    if not first.reduced:
        order = matching_order(made[read.storage], read)
        if order is not None:
            yield first.permuted(order), second


def _reads_where_written(outputs: Sequence[View], inputs: Sequence[View]) -> bool:
    """Whether inputs that are read from the storages of ``outputs`` are read at the index where they are written."""
    made: dict[Storage, View] = {}
    for view in outputs:
        if view.storage in made and any(v.storage is view.storage for v in inputs):
            return False
        made[view.storage] = view
    return all(views.same_elements(made[v.storage], v) for v in inputs if v.storage in made)


def _over_box(first: EpilogueGroup, second: Nest) -> Nest | None:
    """A nest over the axes of a group whose results it reads at the same index; None if its views do not allow that."""
    if second.reduced:
        return None
    box = first.box
    read = next(v for v in second.inputs if any(v.storage is made.storage for made in first.outputs))
    for nest in (second, second.permuted(views.memory_order(read))):
        cut = common_split(box, nest.extents)
        if cut is None:
            continue
        parts = nest.split(cut[1])
        inputs = [_regrouped(v, cut[0], box) for v in parts.inputs]
        outputs = [_regrouped(v, cut[0], box) for v in parts.outputs]
        if None in inputs or None in outputs:
            continue
        whole = replace(
            parts,
            extents=box,
            inputs=tuple(v for v in inputs if v is not None),
            outputs=tuple(v for v in outputs if v is not None),
        )
        if _reads_where_written(first.outputs, whole.inputs):
            return whole
    return None


def _regrouped(view: View, sub_axes: Sequence[tuple[int, object]], box: Sequence[object]) -> View | None:
    """A view over sub-axes of a box as a view over the box itself; None if its strides do not allow that."""
    owners = [axis for axis, _ in sub_axes]
    for i in reversed(range(len(owners) - 1)):
        if owners[i] == owners[i + 1]:
            if not views.is_mergeable(view, i):
                return None
            view = views.merged(view, i)
            del owners[i]
    for axis in range(len(box)):
        if axis not in owners:
            view = views.inserted(view, axis)
            owners.insert(axis, axis)
    return view
