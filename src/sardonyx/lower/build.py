"""From the nodes of a part to groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sardonyx.ir import dims
from sardonyx.ir.graph import Value
from sardonyx.lower import rules, views
from sardonyx.lower.analysis.facts import Learned
from sardonyx.lower.check import Check
from sardonyx.lower.groups import Group, View
from sardonyx.lower.groups.control import checks_of
from sardonyx.lower.lowering import Counted, Lowering
from sardonyx.lower.sizes import Later
from sardonyx.lower.states import State, hold, require_appended
from sardonyx.partition.provider import Part
from sardonyx.plan.sizes import places_of

assert rules, "importing the families registers their rules"


@dataclass(frozen=True)
class Lowered:
    """A part as groups in an order in which they can run."""

    groups: tuple[Group, ...]
    views: dict[Value, View]
    """Where values lie; of those that fusion keeps out of memory the place is not used."""
    inputs: tuple[View, ...]
    """The part's inputs, each all of a storage of its own."""
    outputs: tuple[View, ...]
    """The part's outputs, likewise."""
    checks: tuple[Check, ...]
    """What must hold of sizes; look at it whenever they change."""
    sizes: dict[str, tuple[int, int, int]]
    """Where the size of each name is read: an input, an axis of it, and how many times the name that is."""
    counted: dict[int, Counted] = field(default_factory=dict)
    """The outputs, by number, whose size a run finds out."""
    is_guarded: bool = False
    """Whether a check may fail because sizes take another branch of an If."""


def lower(part: Part, learned: Learned | None = None, states: Sequence[State] = ()) -> Lowered:
    """Groups for all nodes of a part; every one of them must be claimed.

    Raises ``Later`` where sizes that the part works with cannot be told from its inputs, and ``Refused`` where a state
    is not appended to.
    """
    if learned is None:
        graph = part.nodes[0].graph
        assert graph is not None
        learned = Learned.of(graph)
    lowered = _lower(part, learned, states)
    if _unknown(lowered):
        lowered = _lower(part, learned.within(part), states)
    if unknown := _unknown(lowered):
        raise Later(f"no input of the part tells {', '.join(sorted(unknown))}")
    return lowered


def _lower(part: Part, learned: Learned, states: Sequence[State]) -> Lowered:
    low = Lowering(learned)
    for state in states:
        hold(low, state)
    inputs = tuple(low.views.get(v) or low.take(v) for v in part.inputs)
    low.emit(part.nodes)
    for state in states:
        require_appended(low, state)
    outputs = tuple(low.kept.get(v) or _output(low, v) for v in part.outputs)
    counted = {i: low.counted[v] for i, v in enumerate(part.outputs) if v in low.counted}
    known = {**low.inner_views, **low.views}
    sizes = places_of([v.shape for v in inputs])
    return Lowered(low.finished(), known, inputs, outputs, tuple(low.checks), sizes, counted, low.guarded)


def _output(low: Lowering, value: Value) -> View:
    """Memory of the caller's for a value: the storage it lies in, or a copy where that is not its own."""
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
    """Names that a plan must know and the inputs do not tell."""
    found: set[str] = set()
    for view in (*lowered.inputs, *(v for g in lowered.groups for v in (*g.reads, *g.writes))):
        for d in (*view.shape, *view.strides, view.offset, view.storage.elements):
            found.update(dims.names(d))
    for d in (d for check in (*lowered.checks, *checks_of(lowered.groups)) for d in (check.size, *check.allowed)):
        found.update(dims.names(d))
    return found - lowered.sizes.keys()
