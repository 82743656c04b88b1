"""Matrix products."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.groups import Contraction
from sardonyx.lower.interpret.expression import finish, wide
from sardonyx.lower.interpret.memory import Array, Memory, meaning


@meaning(Contraction)
def contraction(memory: Memory, group: Contraction) -> None:
    a, b = (_summed(memory.at(v)) for v in (group.a, group.b))
    finish(memory, group, np.matmul(a, b))


def _summed(x: Array) -> Array:
    """Operands converted to the type of the sums."""
    return x.astype(np.int32) if x.dtype in (np.int8, np.uint8) else wide(x)
