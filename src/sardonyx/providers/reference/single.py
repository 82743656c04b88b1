"""A part of one node that makes maps: what most classifiers of ai.onnx.ml end in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.interpret.program import Program, located
from sardonyx.ir.types import MapType, SequenceType
from sardonyx.partition.provider import Part, RunContext


def is_single(part: Part) -> bool:
    """Whether a part takes and gives what its only node does, and that is maps of Python's own numbers."""
    if len(part.nodes) != 1 or len(part.outputs) != 1:
        return False
    node, made = part.nodes[0], part.outputs[0].type
    is_maps = isinstance(made, SequenceType) and isinstance(made.elem, MapType)
    return is_maps and tuple(node.inputs) == part.inputs and not any(node.subgraphs())


class Single:
    """Runs it. Maps share memory with nothing, so that a run needs neither a frame nor a copy."""

    def __init__(self, program: Program) -> None:
        self.program = program
        (step,) = program.steps
        self._kernel, self._node = step.kernel, step.node

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        return self.program.run(args, context)

    def run_again(self, args: Sequence[Any]) -> list[Any] | None:
        try:
            return [self._kernel(*args)]
        except Exception as e:
            raise located(e, self._node, list(args)) from e
