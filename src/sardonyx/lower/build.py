"""From the nodes of a part to groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.ir.graph import Value
from sardonyx.lower import views
from sardonyx.lower.analysis.facts import GraphFacts
from sardonyx.lower.check import Check
from sardonyx.lower.groups import Group, Storage, View
from sardonyx.lower.groups.control import checks_of
from sardonyx.lower.lowering import ROOM, Counted, Lowering
from sardonyx.lower.sizes import DataDependent
from sardonyx.lower.states import State, hold, require_appended
from sardonyx.partition.provider import Part
from sardonyx.plan.sizes import places_of
from sardonyx.records import Record


class Lowered(Record):
    """A part as groups, in an order in which they can run."""

    groups: tuple[Group, ...]
    views: dict[Value, View]
    """The memory of each value; fusion may have removed the storage of a value that only one group reads."""
    inputs: tuple[View, ...]
    """The part's inputs, each a whole storage."""
    outputs: tuple[View, ...]
    """The part's outputs, each a whole storage."""
    checks: tuple[Check, ...]
    """Conditions on sizes, to be checked for every new set of input shapes."""
    sizes: dict[str, tuple[int, int, int]]
    """For each named size: an input, an axis of it, and the factor by which that axis is a multiple of the size."""
    counted: dict[int, Counted] = field(default_factory=dict)
    """The outputs, by number, whose size depends on the data."""
    is_guarded: bool = False
    """Whether a check may fail because the sizes select another branch of an If."""
    room: int | None = None
    """If given, the last of ``inputs`` is an array of bytes, as many as there is room for rows (``ROOM``): the caller
    brings it, of this size at first."""


def lower(part: Part, facts: GraphFacts | None = None, states: Sequence[State] = ()) -> Lowered:
    """Groups for all nodes of a part; every one of them must be claimed.

    Raises ``DataDependent`` if the shapes of the inputs do not determine all sizes, and ``Refused`` if a state is
    changed otherwise than by appending.
    """
    if facts is None:
        graph = part.nodes[0].graph
        assert graph is not None
        facts = GraphFacts.of(graph)
    lowered = _lower(part, facts, states)
    if _unknown(lowered):
        lowered = _lower(part, facts.within(part), states)
    if unknown := _unknown(lowered):
        raise DataDependent(f"the shapes of the part's inputs do not determine {', '.join(sorted(unknown))}")
    return lowered


def _lower(part: Part, facts: GraphFacts, states: Sequence[State]) -> Lowered:
    low = Lowering(facts)
    for state in states:
        hold(low, state)
    inputs = tuple(low.views.get(v) or low.take(v) for v in part.inputs)
    low.emit(part.nodes)
    for state in states:
        require_appended(low, state)
    outputs = tuple(low.kept.get(v) or _output(low, v) for v in part.outputs)
    counted = {i: low.counted[v] for i, v in enumerate(part.outputs) if v in low.counted}
    if low.room is not None:
        inputs = (*inputs, views.dense(Storage("input", dtypes.u8, ROOM), (ROOM,)))
    known = {**low.inner_views, **low.views}
    sizes = places_of([v.shape for v in inputs])
    return Lowered(low.finished(), known, inputs, outputs, tuple(low.checks), sizes, counted, low.guarded, low.room)


def _output(low: Lowering, value: Value) -> View:
    """Make a value's storage an output; a value that shares its storage, or fills only a part of it, is copied."""
    assert value.producer is not None
    low.node = value.producer
    if value in low.counted:
        found = low.counted[value]
        found.place.storage.kind = found.count.storage.kind = "output"
        return found.place
    view = low.view(value)
    if view.storage.kind != "temporary" or not views.is_whole(view):
        target = low.make(value)
        low.copy(view, target)
        view = target
    view.storage.kind, view.storage.value = "output", value
    return view


def _unknown(lowered: Lowered) -> set[str]:
    """Named sizes that a plan needs and that the input shapes do not determine."""
    found: set[str] = set()
    for view in (*lowered.inputs, *(v for g in lowered.groups for v in (*g.reads, *g.writes))):
        for d in (*view.shape, *view.strides, view.offset, view.storage.elements):
            found.update(dims.names(d))
    for d in (d for check in (*lowered.checks, *checks_of(lowered.groups)) for d in (check.size, *check.allowed)):
        found.update(dims.names(d))
    return found - lowered.sizes.keys()
