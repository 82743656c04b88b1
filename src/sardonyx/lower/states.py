"""States: outputs of a part that are inputs with more behind them, appended in one memory.

The memory has room for ``capacity`` along the axis of growth, so what is there stays where it is when more comes. Past
and present are views of it with the same strides. Copying the one to the beginning of the other is then nothing to do,
and only what is new is written. A part that does anything else to its past is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.ir import dims
from sardonyx.ir.graph import Value
from sardonyx.lower import views
from sardonyx.lower.groups import Storage, View
from sardonyx.lower.lowering import Lowering
from sardonyx.lower.sizes import Refused, mul, product, sub


@dataclass(frozen=True)
class State:
    """An input and the output that is it with more behind it along an axis."""

    past: Value
    present: Value
    axis: int
    capacity: int


def hold(low: Lowering, state: State) -> None:
    """Give past and present their place."""
    old, new = low.shape(state.past), low.shape(state.present)
    if len(old) != len(new) or not 0 <= state.axis < len(new) or low.dtype(state.past) is not low.dtype(state.present):
        raise Refused(f"{state.present.name} is not {state.past.name} with more behind it")
    room = (*new[: state.axis], state.capacity, *new[state.axis + 1 :])
    strides, elements = views.dense_strides(room), product(room)
    kept = [Storage(kind, low.dtype(v), elements, v) for kind, v in (("input", state.past), ("output", state.present))]
    low.share(state.past, View(kept[0], old, strides), state.present, View(kept[1], new, strides))


def require_appended(low: Lowering, state: State) -> None:
    """Refuse a part that writes anything but what lies behind the past."""
    whole = low.view(state.present)
    if whole is not low.kept.get(state.present):
        raise Refused(f"{state.present.name} is not computed in a place of its own")
    start = mul(low.shape(state.past)[state.axis], whole.strides[state.axis])
    for view in (v for g in low.groups for v in g.writes if v.storage is whole.storage):
        beside = [i for i in range(len(whole.shape)) if i != state.axis]
        is_behind = (
            view.strides == whole.strides
            and all(view.shape[i] == whole.shape[i] for i in beside)
            and dims.at_least(sub(view.offset, start), 0)
        )
        if not is_behind:
            raise Refused(f"{state.present.name} is not {state.past.name} with more behind it")
