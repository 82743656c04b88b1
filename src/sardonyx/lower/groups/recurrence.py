"""Recurrent layers."""

from __future__ import annotations

from sardonyx.lower.groups.base import Group, View
from sardonyx.lower.groups.expression import Expression
from sardonyx.records import Record


class Stage(Record):
    """A part of a time step: matrix-vector products with some gates of r, then a scalar expression for each unit.

    ``source`` is the vector that is multiplied: 0 is the first state before the step, i the result i - 1 of earlier
    stages. The operands of the expression are the projected inputs of every gate, the products of ``gates``, the
    states before the step, the constants of the units, and the results of earlier stages, all in the accumulator's
    type. The results of the last stage are the states after the step.
    """

    gates: tuple[int, ...]
    source: int
    expression: Expression


class Recurrence(Group):
    """For each direction and sequence, step by step: states = stages(x[direction, t, sequence], states).

    ``x``: (directions, steps, batch, gates, units), inputs with everything that does not depend on states; ``r``:
    (directions, gates, units, units), where r[d, g, u, j] is the weight of element j of the source in gate g of unit u;
    ``constants``: (directions, units) each; ``initial`` and ``finals``: (directions, batch, units) for every state, 0
    where it is absent; ``y``: (directions, steps, batch, units), the first state after each step. A backward direction
    begins at the end. With ``lengths``, one for each sequence, a sequence ends there: states stay, y is 0. Units have
    stride 1 except in ``r``. Lengths outside of 0 to steps are an error.

    With ``scale``, ``r`` holds i8 and the products are those of integers: before each stage, the source is quantized to
    u8 as by DynamicQuantizeLinear, with one scale for all sequences of a direction; the state of a sequence that has
    ended counts as 0. A sum of (source - its zero point) * (r - ``zero``) in i32 becomes a real by the product of both
    scales. ``scale`` (f32) and ``zero`` (i32; absent if all are 0): (directions, gates, units). The last states of a
    sequence without steps are 0.
    """

    x: View
    r: View
    constants: tuple[View, ...]
    lengths: View | None
    initial: tuple[View | None, ...]
    stages: tuple[Stage, ...]
    backward: tuple[bool, ...]
    """Whether each direction is backward; forward ones come first."""
    y: View | None
    finals: tuple[View | None, ...]
    scale: View | None = None
    zero: View | None = None

    @property
    def reads(self) -> tuple[View, ...]:
        optional = (self.lengths, *self.initial, self.scale, self.zero)
        return (self.x, self.r, *self.constants, *(v for v in optional if v is not None))

    @property
    def writes(self) -> tuple[View, ...]:
        return tuple(v for v in (self.y, *self.finals) if v is not None)
