"""Numbers from streams."""

from __future__ import annotations

from sardonyx.lower.groups import Draw
from sardonyx.lower.interpret.memory import Memory, meaning


@meaning(Draw)
def draw(memory: Memory, group: Draw) -> None:
    """The stream stands still: its words are a constant here."""
    memory.at(group.out)[...] = memory.at(group.stream)
