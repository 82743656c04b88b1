"""Fused loops."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.lower.groups.base import Group, View
from sardonyx.lower.groups.expression import Expression


@dataclass(frozen=True)
class Loop(Group):
    """An expression over every index of a box. The last ``reduced`` axes are what its reductions run over.

    Inputs have one axis for each extent. An output has either all axes or, when its result is one number for each row,
    only those that are not reduced. One number for each row are reductions, counts, operands of stride 0 along all
    reduced axes, and what is applied to these alone. An expression without steps is a copy. A box has at least one
    axis, and at least one reduced axis where something is reduced. Outputs do not overlap.
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
        """Whether results are operands."""
        return not self.expression.steps

    @property
    def reads(self) -> tuple[View, ...]:
        return self.inputs

    @property
    def writes(self) -> tuple[View, ...]:
        return self.outputs
