"""Groups whose results pass through an expression before they are stored."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import Group, View
from sardonyx.lower.groups.expression import Expression


@dataclass(frozen=True)
class Finished(Group):
    """Operand 0 of the epilogue is the result; ``extra`` are its further operands.

    They and the outputs have the axes of ``box``. An epilogue without steps stores the result.
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
        """What the result is made from."""

    @property
    def reads(self) -> tuple[View, ...]:
        return (*self.operands, *self.extra)

    @property
    def writes(self) -> tuple[View, ...]:
        return self.outputs
