"""The pipeline from groups to steps: layout passes, the choice of kernels, and the steps of each group.

Control flow becomes jumps in one flat table.

    If       skip_unless THEN jump ELSE
    Loop     set_base... enter_loop BODY swap_bases... advance_base... next_iteration

Loop-carried memory is addressed through words of the run, so a body's steps are the same in every trip.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sardonyx.interpret.bodies import ENDLESS
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.limits import check_time
from sardonyx.lower.analysis.signs import never_negative
from sardonyx.lower.groups import Attention, Branch, Group, IndirectStorage, Repeat, Storage, View
from sardonyx.lower.groups.control import Row
from sardonyx.lower.sizes import add, mul, sub
from sardonyx.providers.cpu.kernels.common import control
from sardonyx.providers.cpu.kernels.gemm import pack
from sardonyx.providers.cpu.kernels.split import bf16, int8_slices
from sardonyx.providers.cpu.layout import bodies, byte_tables, folded_scales, of_convolutions, packed_operands
from sardonyx.providers.cpu.layout.in_place import in_place
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from sardonyx.providers.cpu.program.steps import Holds, Ref, Slot, Step
from sardonyx.providers.cpu.select import choose, steps_of
from sardonyx.records import replace

USUAL_TRIPS = 16
"""The number of trips that is assumed, in estimates of work, for a loop that data ends."""
JUMP_BACK_NBYTES = 100
"""The bytes that a jump back counts as in estimates, so that long loops of little work count as long."""
MOST_TRIPS = (1 << 63) - 1


Groups = Sequence[Group]
Shared = Mapping[int, frozenset[Storage]]
"""The storages of bodies that are accessed outside of them, by the body's ``id``."""
CONTROL = (Branch, Repeat)
"""Groups that become jumps between the steps of their bodies."""
PACKING = (pack.pack_panels, pack.pack_rows, bf16.split_bf16, int8_slices.split_int8_slices)
"""Kernels that only pack an operand."""


class Pass(NamedTuple):
    """A pass over the groups of a part: it may rewrite them, or add to what is known of them."""

    name: str
    apply: Callable[[Groups, Analysis], tuple[Groups, Analysis]]


def _layout(name: str, rewrite: Callable[[Groups, Analysis], Groups]) -> Pass:
    """A pass that rewrites groups, and those of the bodies of control flow among them."""
    return Pass(name, lambda groups, analysis: (bodies.everywhere(rewrite, groups, analysis), analysis))


def _finding(name: str, find: Callable[[Groups, Analysis], Any], *, field: str | None = None) -> Pass:
    """A pass that computes a field of the analysis, by default the one that it is named for."""
    field = field or name.replace("-", "_")
    return Pass(name, lambda groups, analysis: (groups, replace(analysis, **{field: find(groups, analysis)})))


LAYOUT = (
    _layout("centre", of_convolutions.centred),
    Pass("place-inside", of_convolutions.inside),
    _layout("widen", of_convolutions.widened),
    _layout("unit-axes-first", of_convolutions.unit_axes_first),
    _layout("nhwc", of_convolutions.to_nhwc),
    _layout("centre-rest", of_convolutions.centred_rest),
    _layout("batch-as-depth", of_convolutions.batch_as_depth),
    _layout("byte-tables", byte_tables.with_byte_tables),
    _layout("folded-scales", folded_scales.with_folded_scales),
    _finding("is-stepwise", lambda groups, _: any(_sees_more(group) for group in groups)),
)
"""The passes over a part, in order. ``place-inside`` writes results where a Concat would copy them, outside of bodies;
``widen`` stores narrow floats as f32, on chips that multiply nothing narrower; those up to ``batch-as-depth`` choose
the layout of images."""

SELECTION = (
    _finding("choices", lambda groups, a: {id(g): choose(g, a) for g in groups if not isinstance(g, CONTROL)}),
    _finding("packed-operands", packed_operands.packed_operands),
    _finding("fused-pairs", of_convolutions.fused_pairs),
    _finding("summed-pairs", of_convolutions.summed_pairs),
    _finding("choices-of-pairs", of_convolutions.choices_of_pairs, field="choices"),
    _finding("unsigned", lambda groups, a: never_negative(groups) if a.isa.amx else frozenset()),
    _finding("images", of_convolutions.images),
)
"""The passes over a part, and over each body of control flow in it: which kernels carry out the groups, and what they
pack for each other."""


def steps_for(groups: Groups, target: Target, unrepresentable: frozenset[object] = frozenset()) -> list[Step]:
    """The steps of a part's groups, in order."""
    return in_place(_steps(*_after(LAYOUT, groups, Analysis(target, unrepresentable))))


def _after(passes: Sequence[Pass], groups: Groups, analysis: Analysis) -> tuple[Groups, Analysis]:
    for one in passes:
        groups, analysis = one.apply(groups, analysis)
    return groups, analysis


def dump(groups: Groups, target: Target, folder: str) -> None:
    """Write the groups of a part, and what is known of them, after every pass: a file for each (``SARDONYX_DUMP``)."""
    os.makedirs(folder, exist_ok=True)
    import tempfile

    analysis, where = Analysis(target), tempfile.mkdtemp(prefix="part-", dir=folder)
    for number, one in enumerate((*LAYOUT, *SELECTION)):
        groups, analysis = one.apply(groups, analysis)
        with open(os.path.join(where, f"{number:02}-{one.name}.txt"), "w", encoding="utf-8") as file:
            file.writelines(f"{_described(group, analysis)}\n" for group in groups)


def _described(group: Group, analysis: Analysis) -> str:
    """A group in a line: its kind and nodes, the views it reads and writes, and the variant that was chosen for it."""

    def memory(views: Iterable[View]) -> str:
        return ", ".join(f"{v.storage.kind}{v.storage.number}{list(v.shape)}:{list(v.strides)}" for v in views)

    choice = analysis.choices.get(id(group))
    name = "" if choice is None else f"  {choice.name}"
    nodes = ", ".join(node.label for node in group.nodes)
    return f"{type(group).__name__} ({nodes})  {memory(group.reads)} -> {memory(group.writes)}{name}"


def _sees_more(group: Group) -> bool:
    """Whether this is attention over a KV cache: more keys than new rows, whose number only the run tells."""
    return isinstance(group, Attention) and isinstance(group.q.shape[2], str) and group.k.shape[2] != group.q.shape[2]


def _steps(groups: Sequence[Group], analysis: Analysis, hoisted: list[Step] | None = None) -> list[Step]:
    """The steps of groups, in order. Packing that is invariant in a loop goes to ``hoisted``, if given."""
    steps: list[Step] = []
    groups, analysis = _after(SELECTION, groups, analysis)
    made, shared = {v.storage for g in groups for v in g.writes}, bodies.shared_storages(groups, analysis)
    for group in groups:
        check_time()
        if isinstance(group, Branch):
            steps += _branch(group, analysis, shared)
        elif isinstance(group, Repeat):
            steps += _repeat(group, analysis, shared)
        else:
            for step in steps_of(group, analysis):
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


def _inside(body: Groups, analysis: Analysis, shared: Shared, hoisted: list[Step] | None = None) -> list[Step]:
    """The steps of a body that may be skipped: operands that it splits are not available outside."""
    return _steps(body, replace(analysis, splits=dict(analysis.splits), shared=shared[id(body)]), hoisted)


def _branch(group: Branch, analysis: Analysis, shared: Shared) -> list[Step]:
    then, other = _inside(group.then, analysis, shared), _inside(group.other, analysis, shared)
    if other:
        then.append(_control(group, control.jump(), skip=len(other)))
    may_do, may_skip = Holds(group.then_checks), Holds(group.other_checks)
    unless = _control(
        group, control.skip_unless(), flag=Ref.of(group.condition), skip=len(then), may_do=may_do, may_skip=may_skip
    )
    return [unless, *then, *other]


def _repeat(group: Repeat, analysis: Analysis, shared: Shared) -> list[Step]:
    before = [_control(group, control.set_base(), m=_start(row), slot=Slot(row.place)) for row in group.rows]
    after = [
        _control(group, control.advance_base(), slot=Slot(row.place), nbytes=_stride_nbytes(row)) for row in group.rows
    ]  # fmt: skip
    for c in group.carried:
        before.append(_control(group, control.set_base(), m=Ref.of(c.first), slot=Slot(c.now)))
        before.append(_control(group, control.set_base(), m=Ref.of(c.second), slot=Slot(c.after)))
        after.append(_control(group, control.swap_bases(), one=Slot(c.now), two=Slot(c.after)))
    once: list[Step] = []
    inner = _inside(group.body, replace(analysis, is_repeated=True), shared, once)
    body = [_often(step, group.trips) for step in (*inner, *after)]
    count, limit = Ref.of(group.count), Ref.of(group.limit)
    most = ENDLESS - 1 if group.is_endless else MOST_TRIPS
    enter = _control(
        group, control.enter_loop(), count=count, limit=limit, flag=Ref.of(group.going), most=most, skip=len(body) + 1
    )
    room = MOST_TRIPS if group.room is None else group.room
    back = _control(
        group, control.next_iteration(), count=count, limit=limit, flag=Ref.of(group.again), most=room,
        repeats=len(body),
    )  # fmt: skip
    back = replace(back, repeats=len(body), is_bounded=group.trips is not None, nbytes=JUMP_BACK_NBYTES)
    return [*once, *before, enter, *body, _often(back, group.trips)]


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

    return replace(step, flops=all_of(step.flops), nbytes=all_of(step.nbytes), executions=all_of(step.executions))
