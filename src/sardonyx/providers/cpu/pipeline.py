"""The pipeline from groups to steps: layout passes, then the kernels of each group.

Control flow becomes jumps in one flat table.

    If       unless(condition) THEN jump ELSE
    Loop     place... enter BODY swap... advance... turn

Loop-carried memory is addressed through words of the run, so a body's steps are the same in every trip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sardonyx.interpret.control import ENDLESS
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.limits import check_time
from sardonyx.lower.analysis.signs import never_negative
from sardonyx.lower.fusion.inside import placed_inside
from sardonyx.lower.groups import Attention, Branch, Group, IndirectStorage, Repeat, Storage
from sardonyx.lower.groups.control import Row
from sardonyx.lower.sizes import add, mul, sub
from sardonyx.providers.cpu.kernels.common import control
from sardonyx.providers.cpu.kernels.conv import pointwise_depthwise, summed_pair
from sardonyx.providers.cpu.kernels.gemm import pack
from sardonyx.providers.cpu.kernels.split import bf16, int8_slices
from sardonyx.providers.cpu.layout import long_rows, nhwc, packed_images, packed_operands, widen
from sardonyx.providers.cpu.layout.in_place import in_place
from sardonyx.providers.cpu.program.steps import Holds, Ref, Slot, Step, Target
from sardonyx.providers.cpu.select import steps_of

USUAL_TRIPS = 16
"""The number of trips that is assumed, in estimates of work, for a loop that data ends."""
TURN_NBYTES = 100
"""The bytes that a jump back counts as in estimates, so that long loops of little work count as long."""
MOST_TRIPS = (1 << 63) - 1


PACKING = (pack.pack_panels, pack.pack_rows, bf16.split_bf16, int8_slices.split_int8_slices)
"""Kernels that only pack an operand."""


class Pass(NamedTuple):
    """A layout pass: a rewrite of a part's groups."""

    name: str
    apply: Callable[[Sequence[Group], Target], Sequence[Group]]


LAYOUT = (
    Pass("place-inside", lambda groups, target: placed_inside(groups, packed_images.packed_inputs(groups, target))),
    Pass("widen", widen.widened),
    Pass("unit-axes-first", lambda groups, _: long_rows.unit_axes_first(groups)),
    Pass("nhwc", nhwc.to_nhwc),
    Pass("batch-as-depth", lambda groups, _: long_rows.batch_as_depth(groups)),
)
"""In order. ``place-inside`` writes results where a Concat would copy them; ``widen`` stores narrow floats as f32, on
chips that multiply nothing narrower; the others choose the layout of images."""


class Analysis(NamedTuple):
    """A field of the target, computed from a part's groups before kernels are chosen."""

    name: str
    find: Callable[[Sequence[Group], Target], Any]


WHOLE_PART = (
    Analysis("is_stepwise", lambda groups, _: any(_sees_more(group) for group in groups)),
    Analysis("packed_operands", lambda groups, target: packed_operands.packed_operands(groups, target)),
)
"""Of all groups of a part."""
EACH_BODY = (
    Analysis("fused_pairs", pointwise_depthwise.fusable_pairs),
    Analysis(
        "summed_pairs", lambda groups, target: {} if target.is_inside else summed_pair.summed_pairs(groups, target)
    ),
    Analysis("unsigned", lambda groups, target: never_negative(groups) if target.isa.amx else frozenset()),
    Analysis("images", packed_images.images),
)
"""Of the groups of a part, and of each body of control flow in it."""


def steps_for(groups: Sequence[Group], target: Target) -> list[Step]:
    """The steps of a part's groups, in order."""
    for layout in LAYOUT:
        groups = layout.apply(groups, target)
    return in_place(_steps(groups, _analyzed(groups, target, WHOLE_PART)))


def _analyzed(groups: Sequence[Group], target: Target, analyses: Sequence[Analysis]) -> Target:
    for analysis in analyses:
        found: dict[str, Any] = {analysis.name: analysis.find(groups, target)}
        target = replace(target, **found)
    return target


def _sees_more(group: Group) -> bool:
    """Whether this is attention over a KV cache: more keys than new rows, whose number only the run tells."""
    return isinstance(group, Attention) and isinstance(group.q.shape[2], str) and group.k.shape[2] != group.q.shape[2]


def _steps(groups: Sequence[Group], target: Target, hoisted: list[Step] | None = None) -> list[Step]:
    """The steps of groups, in order. Packing that is invariant in a loop goes to ``hoisted``, if given."""
    steps: list[Step] = []
    target = _analyzed(groups, target, EACH_BODY)
    made = {v.storage for g in groups for v in g.writes}
    for group in groups:
        check_time()
        if isinstance(group, Branch):
            steps += _branch(group, target)
        elif isinstance(group, Repeat):
            steps += _repeat(group, target)
        else:
            for step in steps_of(group, target):
                written, read = _touched(step)
                if hoisted is not None and _packs(step) and not any(_moves(s, made) for s in read):
                    hoisted.append(step)
                else:
                    made |= written
                    steps.append(step)
    return steps


def _packs(step: Step) -> bool:
    return any(step.spec.definition is definition for definition in PACKING)


def _touched(step: Step) -> tuple[set[Storage], set[Storage]]:
    """What a step writes, and what it reads."""
    refs = {name: arg.storage for name, arg in step.args.items() if isinstance(arg, Ref)}
    return {refs[name] for name in step.writes}, {s for name, s in refs.items() if name not in step.writes}


def _moves(storage: Storage, made: set[Storage]) -> bool:
    return storage in made or isinstance(storage, IndirectStorage)


def _inside(groups: Sequence[Group], target: Target, hoisted: list[Step] | None = None) -> list[Step]:
    """The steps of a body that may be skipped: operands that it splits are not available outside."""
    return _steps(groups, replace(target, splits=dict(target.splits), packed_operands={}, is_inside=True), hoisted)


def _branch(group: Branch, target: Target) -> list[Step]:
    then, other = _inside(group.then, target), _inside(group.other, target)
    if other:
        then.append(_control(group, control.jump(), skip=len(other)))
    may_do, may_skip = Holds(group.then_checks), Holds(group.other_checks)
    unless = _control(
        group, control.skip_unless(), flag=Ref.of(group.condition), skip=len(then), may_do=may_do, may_skip=may_skip
    )
    return [unless, *then, *other]


def _repeat(group: Repeat, target: Target) -> list[Step]:
    before = [_control(group, control.set_base(), m=_start(row), slot=Slot(row.place)) for row in group.rows]
    after = [
        _control(group, control.advance_base(), slot=Slot(row.place), nbytes=_stride_nbytes(row)) for row in group.rows
    ]  # fmt: skip
    for c in group.carried:
        before.append(_control(group, control.set_base(), m=Ref.of(c.first), slot=Slot(c.now)))
        before.append(_control(group, control.set_base(), m=Ref.of(c.second), slot=Slot(c.after)))
        after.append(_control(group, control.swap_bases(), one=Slot(c.now), two=Slot(c.after)))
    once: list[Step] = []
    inner = _inside(group.body, replace(target, is_repeated=True), once)
    body = [_often(step, group.trips) for step in (*inner, *after)]
    count, limit = Ref.of(group.count), Ref.of(group.limit)
    most = ENDLESS - 1 if group.is_endless else MOST_TRIPS
    enter = _control(
        group, control.enter_loop(), count=count, limit=limit, flag=Ref.of(group.going), most=most, skip=len(body) + 1
    )
    turn = _control(
        group, control.next_iteration(), count=count, limit=limit, flag=Ref.of(group.again), repeats=len(body)
    )
    turn = replace(turn, repeats=len(body), is_bounded=group.trips is not None, nbytes=TURN_NBYTES)
    return [*once, *before, enter, *body, _often(turn, group.trips)]


def _control(group: Group, spec: object, **args: object) -> Step:
    return Step(spec, args, frozenset(("count",)) & args.keys(), group.nodes, is_control=True)  # type: ignore[arg-type]


def _start(row: Row) -> Ref:
    """The source row of the first trip."""
    source = row.source
    index = sub(source.shape[row.axis], 1) if row.is_backward else 0
    return Ref(source.storage, add(source.offset, mul(index, source.strides[row.axis])))


def _stride_nbytes(row: Row) -> Known:
    nbytes = row.source.dtype.itemsize
    return mul(row.source.strides[row.axis], -nbytes if row.is_backward else nbytes)


def _often(step: Step, trips: Known | None) -> Step:
    """A step with the work of all its trips."""
    times = USUAL_TRIPS if trips is None else trips

    def all_of(amount: Known) -> Known:
        found = dims.mul(amount, times)
        return amount if found is None else found

    return replace(step, flops=all_of(step.flops), nbytes=all_of(step.nbytes), turns=all_of(step.turns))
