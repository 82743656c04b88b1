"""Work of a user's own."""

from __future__ import annotations

from typing import Any

from sardonyx.lower.groups.base import Group, View


class Custom(Group):
    """One node, carried out by a kernel that the user wrote for a provider. Inputs and outputs are dense."""

    inputs: tuple[View | None, ...]
    outputs: tuple[View, ...]
    kernel: Any
    args: dict[str, Any]
    """By name: views, and numbers that may follow from the shapes."""

    @property
    def reads(self) -> tuple[View, ...]:
        return tuple(v for v in self.inputs if v is not None)

    @property
    def writes(self) -> tuple[View, ...]:
        return self.outputs
