"""Fused loops."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.lower.groups.base import Group, View
from sardonyx.lower.groups.expression import Expression


class Loop(Group):
    """An expression over every index of a box. The last ``reduced`` axes are what its reductions run over.

    Inputs have one axis for each extent. An output has all axes, or only those that are not reduced if its value is
    constant along a row. Constant along a row are reductions, counts, operands with stride 0 along all reduced axes,
    and expressions of these alone. An expression without steps is a copy. A box has at least one axis, and at least
    one reduced axis if the expression has a reduction. Outputs do not overlap.
    """

    extents: tuple[Known, ...]
    reduced: int
    inputs: tuple[View, ...]
    expression: Expression
    outputs: tuple[View, ...]

    @staticmethod
    def copying(nodes: tuple[Node, ...], source: View, target: View) -> Loop:
        """A copy of all elements of a view."""
        return Loop(nodes, source.shape, 0, (source,), Expression((source.dtype,), (), (0,)), (target,))

    @property
    def is_copy(self) -> bool:
        """Whether every result is an operand."""
        return not self.expression.steps

    @property
    def reads(self) -> tuple[View, ...]:
        return self.inputs

    @property
    def writes(self) -> tuple[View, ...]:
        return self.outputs
