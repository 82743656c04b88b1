"""The exceptions that native code's error codes stand for. They name the node, as onnxruntime's do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sardonyx.errors import Fail, InvalidArgument, OutOfBudget
from sardonyx.plan.sizes import SizesDiffer
from sardonyx.providers.cpu.language.context import Code
from sardonyx.providers.cpu.runtime.profile import main_node

if TYPE_CHECKING:
    from sardonyx.providers.cpu.program.steps import Step


def failure(code: int, value: int, steps: Sequence[Step], number: int) -> Exception:
    """The exception for the code and the value that the step of this number left in the context."""
    if code == Code.TOO_LONG:
        return SizesDiffer("a size has more than 62 bits")
    kernel, where = steps[number].spec.name, main_node(steps[number].nodes).label
    returned = f"Non-zero status code returned while running {where}"
    if code == Code.SIZES:
        return SizesDiffer(f"a branch of {where} does not take them")
    if code == Code.ENDLESS:
        return OutOfBudget(
            "a Loop whose condition never changes has no reachable end", where=where, got=f"{value} trips"
        )
    if code == Code.INDEX:
        return InvalidArgument(f"{returned}: an index is out of bounds", where=where, got=value)
    if code == Code.REGION:
        return InvalidArgument(
            f"{returned}: rois must be finite, and nearer than 2^24", where=where, got=f"region {value}"
        )
    if code == Code.DIVISOR:
        return Fail(f"kernel {kernel} divides by {value}", where=where)
    return Fail(f"kernel {kernel} left its memory at byte {value}", where=where)
