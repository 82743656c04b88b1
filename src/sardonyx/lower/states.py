"""States, such as a KV cache: an output that is an input with elements appended, in the same memory.

The buffer has room for ``capacity`` elements along the axis that grows, so that elements stay where they are when
others are appended. Past and present are views of it with the same strides. The copy from past to present disappears,
and only new elements are written. A part that changes its past in any other way is refused.
"""

from __future__ import annotations

from sardonyx.ir import dims
from sardonyx.ir.graph import Value
from sardonyx.lower import views
from sardonyx.lower.groups import Storage, View
from sardonyx.lower.lowering import Lowering
from sardonyx.lower.sizes import Refused, mul, product, sub
from sardonyx.records import Record


class State(Record):
    """An input, and the output that is the same with elements appended along an axis."""

    past: Value
    present: Value
    axis: int
    capacity: int


def hold(low: Lowering, state: State) -> None:
    """Place past and present in one buffer."""
    old, new = low.shape(state.past), low.shape(state.present)
    if len(old) != len(new) or not 0 <= state.axis < len(new) or low.dtype(state.past) is not low.dtype(state.present):
        raise Refused(f"{state.present.name} is not {state.past.name} with elements appended")
    room = (*new[: state.axis], state.capacity, *new[state.axis + 1 :])
    strides, elements = views.dense_strides(room), product(room)
    kept = [Storage(kind, low.dtype(v), elements, v) for kind, v in (("input", state.past), ("output", state.present))]
    low.share(state.past, View(kept[0], old, strides), state.present, View(kept[1], new, strides))


def require_appended(low: Lowering, state: State) -> None:
    """Refuse a part that writes to the state anywhere but after its past elements."""
    whole = low.view(state.present)
    if whole is not low.kept.get(state.present):
        raise Refused(f"{state.present.name} does not have a storage of its own")
    start = mul(low.shape(state.past)[state.axis], whole.strides[state.axis])
    for view in (v for g in low.groups for v in g.writes if v.storage is whole.storage):
        others = [i for i in range(len(whole.shape)) if i != state.axis]
        is_appended = (
            view.strides == whole.strides
            and all(view.shape[i] == whole.shape[i] for i in others)
            and dims.at_least(sub(view.offset, start), 0)
        )
        if not is_appended:
            raise Refused(f"{state.present.name} is not {state.past.name} with elements appended")
