"""What kernels of If, Loop, Scan and SequenceMap do: they run compiled bodies.

The positional arguments are the node's inputs, followed by the values that each body captures, body by body; the
keywords are plain values, and the bodies by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidArgument, OutOfBudget
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.live import HeldValues, nbytes_of
from sardonyx.ops.limits import check_nbytes

ENDLESS = 2**31
"""A loop with this many trips and no way to end early is refused: it would run for hours."""


class Runnable(Protocol):
    """A compiled body as kernels call it."""

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]: ...


Runnables = Mapping[str, Runnable]

Row = tuple[str, tuple[int, ...]]
"""The element type and shape of a row of a scan output, should no trip make one."""


def run_if(
    cond: Any,
    *captured: Any,
    context: RunContext,
    bodies: Runnables,
    then_takes: tuple[int, int],
    else_takes: tuple[int, int],
) -> tuple[Any, ...]:
    """``then_takes`` and ``else_takes`` say which of the captured values a branch takes."""
    if cond.size != 1:
        raise InvalidArgument("If needs one condition", got=f"shape {list(cond.shape)}")
    is_then = bool(cond.reshape(()))
    start, end = then_takes if is_then else else_takes
    taken, given = bodies["then_branch" if is_then else "else_branch"], captured[start:end]
    planned = _planned(taken, context)
    made = None if planned is None else planned(given)
    return tuple(taken.run(given, context) if made is None else made)


def run_loop(
    *args: Any,
    context: RunContext,
    bodies: Runnables,
    given: int,
    states: int,
    scans: Sequence[Row],
    ends_early: bool,
) -> tuple[Any, ...]:
    """``given`` counts the trip count and the condition, as far as they are inputs; ``states`` follow them."""
    body = bodies["body"]
    trips, cond = (*args[:given], None, None)[:2]
    carried, captured = list(args[given : given + states]), args[given + states :]
    limit = None if trips is None else int(trips.reshape(()))
    going = True if cond is None else bool(cond.reshape(()))
    collected: list[list[Any]] = [[] for _ in scans]
    i = nbytes = 0
    held = HeldValues(context.budget)
    planned = _planned(body, context)
    again = np.array(going)
    while going and (limit is None or i < limit):
        if context.stop or planned is None:
            context.check()
        fed = [np.array(i, np.int64), again, *carried, *captured]
        out = None if planned is None else planned(fed)
        if out is None:
            out = body.run(fed, context)
        again = out[0].reshape(())
        going = bool(again)
        if i == 0 and going and not ends_early and (limit is None or limit >= ENDLESS):
            raise OutOfBudget("a Loop whose condition never changes has no reachable end", got=f"{limit} trips")
        carried = _carried(carried, out[1 : states + 1]) if i == 0 or planned is None else list(out[1 : states + 1])
        if collected:
            for rows, row in zip(collected, out[states + 1 :], strict=True):
                nbytes += _collected(rows, row)
            check_nbytes(nbytes, f"{i + 1} trips of a Loop have collected too much")
        if context.budget is not None:
            held.set(carried, nbytes)
        i += 1
    held.release()
    return (*carried, *(_stacked(rows, empty) for rows, empty in zip(collected, scans, strict=True)))


def _planned(body: Runnable, context: RunContext) -> Callable[[Sequence[Any]], Sequence[Any] | None] | None:
    """How a body runs without the context, if it can and nobody would miss it."""
    is_alone = context.is_undisturbed and context.budget is None
    planned: Callable[[Sequence[Any]], Sequence[Any] | None] | None = getattr(body, "planned_run", None)
    return planned if is_alone else None


def run_scan(
    *args: Any,
    context: RunContext,
    bodies: Runnables,
    states: int,
    read: Sequence[tuple[int, int]],
    write: Sequence[tuple[int, int]],
    scans: Sequence[Row],
) -> tuple[Any, ...]:
    """``read`` and ``write`` are the axis and direction of each scan input and output."""
    body, end = bodies["body"], states + len(read)
    carried, captured = list(args[:states]), args[end:]
    sources = [_rows_of(array, *side) for array, side in zip(args[states:end], read, strict=True)]
    lengths = {len(s) for s in sources}
    if len(lengths) > 1:
        raise InvalidArgument("scan inputs differ in length", got=sorted(lengths))
    collected: list[list[Any]] = [[] for _ in write]
    held, nbytes = HeldValues(context.budget), 0
    for i in range(lengths.pop() if lengths else 0):
        context.check()
        out = body.run([*carried, *(np.asarray(s[i]) for s in sources), *captured], context)
        carried = _carried(carried, out[:states])
        for rows, row in zip(collected, out[states:], strict=True):
            nbytes += _collected(rows, row)
        held.set(carried, nbytes)
    held.release()
    results = zip(collected, scans, write, strict=True)
    return (*carried, *(_stacked_along(rows, empty, *side) for rows, empty, side in results))


def _rows_of(array: Any, axis: int, back: int) -> Any:
    """A scan input with its rows along the first axis, in the order in which they are read."""
    if not -array.ndim <= axis < array.ndim:
        raise InvalidArgument("a scan axis is out of range", expected=f"rank {array.ndim}", got=axis)
    moved = np.moveaxis(array, axis, 0)
    return moved[::-1] if back else moved


def _stacked_along(rows: list[Any], empty: Row, axis: int, back: int) -> Any:
    """A scan output whose rows were made in this direction, and lie along this axis."""
    stacked = _stacked(rows[::-1] if back else rows, empty)
    return np.moveaxis(stacked, 0, axis) if axis else stacked


def run_sequence_map(
    *args: Any, context: RunContext, bodies: Runnables, own: int, results: int
) -> tuple[list[Any], ...]:
    """The first ``own`` inputs are the node's."""
    inputs, captured = args[:own], args[own:]
    if not isinstance(inputs[0], list):
        raise InvalidArgument("SequenceMap needs a sequence as its first input")
    lengths = {len(x) for x in inputs if isinstance(x, list)}
    if len(lengths) > 1:
        raise InvalidArgument("SequenceMap's sequences differ in length", got=sorted(lengths))
    made: list[list[Any]] = [[] for _ in range(results)]
    held, nbytes = HeldValues(context.budget), 0
    for i in range(len(inputs[0])):
        context.check()
        out = bodies["body"].run([*(x[i] if isinstance(x, list) else x for x in inputs), *captured], context)
        for items, item in zip(made, out, strict=True):
            items.append(item)
            nbytes += nbytes_of(item)
        held.set((), nbytes)
    held.release()
    return tuple(made)


def _carried(before: list[Any], after: Sequence[Any]) -> list[Any]:
    """The loop-carried values after a trip, checked to have the kind and element type that they had before."""
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        was, found = getattr(old, "dtype", None), getattr(new, "dtype", None)
        if was is not found and old is not None and was != found:
            raise InvalidArgument(
                "a body changes the type of a carried value",
                where=f"state {i}",
                expected=was or type(old).__name__,
                got=found or type(new).__name__,
            )
    return list(after)


def _collected(rows: list[Any], row: Any) -> int:
    """The bytes of one more row of a scan output, which must have the shape of the other rows."""
    if rows and row.shape != rows[0].shape:
        raise InvalidArgument(
            f"a scan output changes its shape in iteration {len(rows)}", expected=rows[0].shape, got=row.shape
        )
    rows.append(row)
    return int(row.nbytes)


def _stacked(rows: list[Any], empty: Row) -> Any:
    """Scan outputs stacked along a new first axis. Without trips, the shape comes from the body's types."""
    if rows:
        return np.stack(rows)
    name, shape = empty
    return np.zeros((0, *shape), dtypes.of_name(name).numpy)


FUNCTIONS = {function.__name__: function for function in (run_if, run_loop, run_scan, run_sequence_map)}
"""The functions that kernels are, by name."""
