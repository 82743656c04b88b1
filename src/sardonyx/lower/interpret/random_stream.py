"""Streams of random numbers."""

from __future__ import annotations

from sardonyx.lower.groups import RandomStream
from sardonyx.lower.interpret.memory import Memory, meaning


@meaning(RandomStream)
def random_stream(memory: Memory, group: RandomStream) -> None:
    """The stream is not advanced: here it is a constant."""
    memory.at(group.out)[...] = memory.at(group.stream)
