"""A program of a single node that returns maps: the last part of most ai.onnx.ml classifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.interpret.context import ModelNeeded, RunContext
from sardonyx.interpret.program import Program, located


class Single:
    """Runs such a program. Maps share no memory, so a run needs neither a frame nor copies."""

    def __init__(self, program: Program) -> None:
        self.program = program
        (step,) = program.steps
        self._kernel, self._node = step.kernel, step.node

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        return self.program.run(args, context)

    def run_planned(self, args: Sequence[Any], places: Mapping[int, Any] | None = None) -> list[Any] | None:
        try:
            return [self._kernel(*args)]
        except ModelNeeded:
            raise
        except Exception as e:
            raise located(e, self._node, list(args)) from e
