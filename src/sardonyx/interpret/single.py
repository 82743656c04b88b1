"""A program of one node that makes maps: what most classifiers of ai.onnx.ml end in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program, located


class Single:
    """Runs it. Maps share memory with nothing, so that a run needs neither a frame nor a copy."""

    def __init__(self, program: Program) -> None:
        self.program = program
        (step,) = program.steps
        self._kernel, self._node = step.kernel, step.node

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        return self.program.run(args, context)

    def run_planned(self, args: Sequence[Any], places: Mapping[int, Any] | None = None) -> list[Any] | None:
        try:
            return [self._kernel(*args)]
        except Exception as e:
            raise located(e, self._node, list(args)) from e
