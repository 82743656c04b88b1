"""Sums of products."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.groups import Contraction
from sardonyx.lower.interpret.expression import finish, wide
from sardonyx.lower.interpret.memory import Memory, meaning


@meaning(Contraction)
def contraction(memory: Memory, group: Contraction) -> None:
    a, b = wide(memory.at(group.a)), wide(memory.at(group.b))
    finish(memory, group, np.matmul(a, b))
