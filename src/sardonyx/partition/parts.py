"""A graph as compiled parts, each run by its provider, in order. Bodies of control flow are compiled the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx import knobs
from sardonyx.errors import EngineError
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.report import Report
from sardonyx.partition.assign import Owner, assign, cut, prepare
from sardonyx.partition.chain import Chain, Link, PlannedRun
from sardonyx.partition.provider import Declined, Executable, Part, Provider, RunContext, RunsPlanned


def chain_of(inputs: Sequence[Value], compiled: Sequence[tuple[Part, Executable]], outputs: Sequence[Value]) -> Chain:
    """A chain of compiled parts from these inputs to these outputs, some of which may be constants."""
    made = [v for part, _ in compiled for v in part.outputs]
    slots = {v: i for i, v in enumerate((*inputs, *made))}
    links = [Link(executable, tuple(slots[v] for v in part.inputs)) for part, executable in compiled]
    constants = [(i, v.numpy()) for i, v in enumerate(outputs) if v not in slots]
    return Chain(len(inputs), links, [slots[v] for v in outputs if v in slots], constants)


def _report(owner: Provider, last: Provider, defect: EngineError) -> None:
    """Log a defect that another provider makes up for; with ``SARDONYX_VERIFY``, raise it."""
    if owner is last or knobs.VERIFY.get():
        raise defect
    import logging  # 3 ms of a start that logs nothing

    logging.getLogger("sardonyx").error("%s cannot compile a part, which %s runs: %s", owner.name, last.name, defect)


class Parts:
    """The compiled parts of a graph between its inputs and outputs."""

    def __init__(self, graph: Graph, owners: dict[Node, Owner], last: Provider) -> None:
        """``owners`` comes from ``assign``; ``last`` runs what other providers decline to compile."""
        self.report = prepare(graph, owners)
        """What the providers rewrote, and where they declined to."""
        captured = [v for v in graph.captures() if not v.is_const] if graph.parent is not None else []
        self.inputs = (*graph.inputs, *captured)
        self._outputs = tuple(graph.outputs)
        self.compiled: list[tuple[Part, Executable]] = []
        for owner, part in cut(graph, owners):
            try:
                self.compiled.append((part, owner.compile(part)))
            except (Declined, EngineError) as why:
                if isinstance(why, EngineError):
                    _report(owner, last, why)
                self.compiled.append((part, last.compile(part)))
                owners.update(dict.fromkeys(part.nodes, Owner(last, f"{owner.name}: {why}")))
        self.chain = chain_of(self.inputs, self.compiled, self._outputs)
        whole = self.whole
        self.planned_run: PlannedRun | None = (
            whole.run_planned if isinstance(whole, RunsPlanned) else self.chain.planned_run
        )
        """Runs all parts without a context; None unless each part can and all outputs are distinct."""

    @property
    def whole(self) -> Executable | None:
        """The only part's executable, where that part takes exactly the inputs and gives exactly the outputs."""
        if len(self.compiled) != 1:
            return None
        part, executable = self.compiled[0]
        return executable if part.inputs == self.inputs and part.outputs == self._outputs else None

    @property
    def copied_run(self) -> PlannedRun | None:
        """See ``Chain.copied_run``."""
        return self.chain.copied_run

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        return self.chain.run(args, context)


LEAST_NODES = 4
"""A body of fewer nodes is run by the last provider, which needs no compilation; unless it has ``COSTLY`` ones."""

COSTLY = frozenset((
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "ConvTransposeInteger", "DynamicQuantizeLSTM", "Einsum",
    "GRU", "Gemm", "LSTM", "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN", "Resize",
))  # fmt: skip
"""Operators that are worth a compilation wherever they are."""


class Bodies:
    """Compiles bodies for the providers of the enclosing graph."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        self.providers = providers
        self.owners: dict[Node, Owner] = {}
        """The owner of each node of each body."""
        self.report = Report()
        """What the providers rewrote in the bodies, and where they declined to."""

    def __call__(self, graph: Graph) -> Parts:
        is_compiled = len(graph) >= LEAST_NODES or any(node.op_type in COSTLY for node in graph.nodes)
        owners = assign(graph, self.providers if is_compiled else self.providers[-1:])
        made = Parts(graph, owners, self.providers[-1])
        self.owners |= owners
        self.report.extend(made.report)
        return made
