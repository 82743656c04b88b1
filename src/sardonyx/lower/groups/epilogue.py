"""Groups that apply a scalar expression to their results before storing them."""

from __future__ import annotations

from abc import abstractmethod

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import Group, View
from sardonyx.lower.groups.expression import Expression


class EpilogueGroup(Group):
    """``epilogue`` is applied to each result (its operand 0) and to the elements of ``extra`` at the same index.

    ``extra`` and ``outputs`` have the axes of ``box``. An epilogue without steps stores the result unchanged.
    """

    epilogue: Expression
    extra: tuple[View, ...]
    outputs: tuple[View, ...]

    @property
    def box(self) -> tuple[Known, ...]:
        return self.outputs[0].shape

    @property
    @abstractmethod
    def operands(self) -> tuple[View, ...]:
        """Inputs other than those of the epilogue."""

    @property
    def reads(self) -> tuple[View, ...]:
        return (*self.operands, *self.extra)

    @property
    def writes(self) -> tuple[View, ...]:
        return self.outputs
