"""Events of a trace, in onnxruntime's terms: Session, Node, Kernel; and Barrier, counters and names of threads.

A Node event reaches from the begin of a node's first step to that of the next node's, so that the events of a part
add up to its run. Kernel and Barrier events lie within them, each on the thread that it was on. Times are in
microseconds, with three decimals.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import dtypes
from sardonyx.session.trace_timeline import Timeline, wall_ns

if TYPE_CHECKING:
    from sardonyx.interpret.profile import PartRun, StepRun
    from sardonyx.ir.graph import Node
    from sardonyx.providers.cpu.codegen.rates import Rates

Event = dict[str, Any]

CPU = "CPUExecutionProvider"
REFERENCE, COMPILED = "reference", "cpu"
"""What ran a node, as ``session.explain()`` names it; onnxruntime's field ``provider`` is the same for both."""
FINISHED, COUNTER, METADATA = "X", "C", "M"
"""Phases of events."""


class Scribe:
    """Makes the events of one trace."""

    def __init__(self, epoch_ns: int, precision: str) -> None:
        self._epoch_ns, self._precision, self._pid = epoch_ns, precision, os.getpid()
        self._names: dict[int, str] = {}
        """Of threads."""
        self._rates: dict[int, Rates] = {}
        """By number of threads."""

    def event(
        self,
        category: str,
        name: str,
        tid: int,
        start_ns: int,
        duration_ns: int,
        args: Mapping[str, Any],
        phase: str = FINISHED,
    ) -> Event:
        return {
            "cat": category,
            "pid": self._pid,
            "tid": tid,
            "dur": duration_ns / 1000,
            "ts": max(0, start_ns - self._epoch_ns) / 1000,
            "ph": phase,
            "name": name,
            "args": dict(args),
        }

    def metadata(self, left_out: int) -> Iterator[Event]:
        """The names of process and threads; the machine's rates, and what the trace was too long for."""
        yield self.event("__metadata", "process_name", self._pid, 0, 0, {"name": "sardonyx"}, METADATA)
        machine = {"rates": [known.to_json() for known in self._rates.values()], "left_out": left_out}
        yield self.event("__metadata", "machine", self._pid, 0, 0, machine, METADATA)
        for tid, name in sorted(self._names.items()):
            yield self.event("__metadata", "thread_name", tid, 0, 0, {"name": name}, METADATA)

    def of_part(self, run: PartRun, caller: int, indices: Mapping[Node, int]) -> list[Event]:
        """The events of a run of a compiled part, called by a thread."""
        steps = run.steps()
        if not steps:
            return []
        tids = [w or (caller if i == 0 else -i) for i, w in enumerate(run.workers)]
        self._names.update({tid: f"sardonyx worker {i}" for i, tid in enumerate(tids) if i})
        self._names.setdefault(caller, "caller")
        lines = [Timeline(t, run.has_loops) for t in range(len(tids))]
        for each in steps:
            for line in lines:
                line.add(each)
        end = max(line.end_ns for line in lines)
        lines[0].wait_until(end)
        walls = wall_ns(steps, run.has_loops)
        args = [self._kernel_args(step, wall) for step, wall in zip(steps, walls, strict=True)]
        events = self._nodes(steps, lines[0], tids[0], indices)
        told: set[int] = set()
        for line, tid in zip(lines, tids, strict=True):
            for is_wait, i, start_ns, duration_ns in line.spans:
                if is_wait:
                    step = {"part": steps[i].facts.part, "step": str(steps[i].facts.step)}
                    events.append(self.event("Barrier", "barrier", tid, start_ns, duration_ns, step))
                else:
                    own = _brief(args[i]) if i in told else args[i]
                    events.append(self.event("Kernel", steps[i].facts.kernel, tid, start_ns, duration_ns, own))
                    told.add(i)
        events += self._occupancy(steps, lines[0], tids[0])
        # Parents come before their children, and counters before the event whose line they share.
        return sorted(events, key=lambda e: (e["ts"], e["ph"], -e["dur"]))

    def _nodes(self, steps: Sequence[StepRun], line: Timeline, tid: int, indices: Mapping[Node, int]) -> list[Event]:
        """One event for the steps in a row that are of one node."""
        begins = line.begins
        made = []
        numbered = [(i, step) for i, step in enumerate(steps) if i in begins and step.facts.node is not None]
        groups = [(node, list(of_node)) for node, of_node in groupby(numbered, key=lambda pair: pair[1].facts.node)]
        for (node, of_node), after in zip(groups, [*groups[1:], None], strict=True):
            assert node is not None
            start = begins[of_node[0][0]]
            end = line.end_ns if after is None else begins[after[1][0][0]]
            facts = of_node[0][1].facts
            args = node_args(indices.get(node, -1), node, facts.inputs, facts.outputs, COMPILED)
            args["kernels"] = [step.facts.kernel for _, step in of_node]
            made.append(self.event("Node", node_name(node), tid, start, end - start, args))
        return made

    def _kernel_args(self, step: StepRun, wall: float) -> dict[str, Any]:
        facts = step.facts
        ran = [t for t in step.times if t.start_ns]
        busy = max((t.busy_ns for t in ran), default=0)
        roofline = self._roofline(step)
        operators = list(dict.fromkeys(n.op_type for n in facts.nodes))
        told: dict[str, Any] = {
            "op_name": facts.node.op_type if facts.node is not None else facts.kernel,
            "provider": CPU,
            "part": facts.part,
            "step": str(facts.step),
            "variant": facts.variant,
            "operators": operators,
            "nodes": [node.name or node.outputs[0].name for node in facts.nodes],
            "origins": list(dict.fromkeys(name for node in facts.nodes for name in node.origin)),
            "threads": len(ran),
            "wall_us": round(wall / 1000, 3),
            "flops": facts.flops,
            "bytes": facts.nbytes,
            "weight_bytes": facts.weights_nbytes,
            "arithmetic": facts.arithmetic,
        }
        if roofline is not None and busy:
            arithmetic_s, memory_s = roofline
            told["bound"] = "memory" if memory_s > arithmetic_s else "arithmetic"
            told["roofline_us"] = round(max(roofline) * 1e6, 3)
            told["roofline_share"] = round(max(roofline) * 1e9 / busy, 4)
        return told

    def _roofline(self, step: StepRun) -> tuple[float, float] | None:
        """The least seconds for a step's arithmetic and for its bytes on the threads that it had."""
        facts, ran = step.facts, sum(1 for t in step.times if t.start_ns)
        if not ran or not (facts.flops or facts.nbytes):
            return None
        if ran not in self._rates:
            from sardonyx.providers.cpu.codegen.rates import rates

            try:
                self._rates[ran] = rates(ran)
            except RuntimeError:  # no thread can be started while the interpreter ends
                return None
        return self._rates[ran].seconds(facts.flops, facts.nbytes, facts.arithmetic, self._precision)

    def _occupancy(self, steps: Sequence[StepRun], line: Timeline, tid: int) -> Iterator[Event]:
        """A counter of the arena's bytes that are in use."""
        before = -1
        for i, start in line.begins.items():
            live = steps[i].facts.live_nbytes
            if live != before:
                yield self.event("Memory", "arena", tid, start, 0, {"live_bytes": live}, COUNTER)
            before = live


def run_args(feeds: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
    """What the event of a run tells about its inputs and outputs. ``strided_bytes`` are copied before they are used."""
    arrays = [v for v in feeds.values() if isinstance(v, np.ndarray)]
    return {
        "inputs": {name: described(v) for name, v in feeds.items()},
        "input_bytes": sum(map(_nbytes, feeds.values())),
        "output_bytes": sum(map(_nbytes, results)),
        "strided_bytes": sum(_nbytes(v) for v in arrays if not v.flags.c_contiguous),
    }


def node_name(node: Node) -> str:
    return f"{node.name or node.outputs[0].name}_kernel_time"


def node_args(index: int, node: Node, inputs: Any, outputs: Any, engine: str) -> dict[str, Any]:
    """The fields that onnxruntime gives a node's event, and which of our providers ran it."""
    weights = sum(v.const.nbytes for v in node.inputs if v is not None and v.const is not None)
    total = sum(map(_nbytes, inputs))
    return {
        "op_name": node.op_type,
        "provider": CPU,
        "node_index": str(index),
        "parameter_size": str(weights),
        "activation_size": str(max(0, total - weights)),
        "output_size": str(sum(map(_nbytes, outputs))),
        "input_type_shape": [described(v) for v in inputs if v is not None],
        "output_type_shape": [described(v) for v in outputs if v is not None],
        "engine": engine,
    }


def described(value: Any) -> dict[str, Any]:
    """A value's type and shape, as onnxruntime writes them."""
    if isinstance(value, np.ndarray):
        return {dtypes.of_numpy(value.dtype).ort: list(value.shape)}
    if isinstance(value, list):
        return {"seq": [described(v) for v in value]}
    return {type(value).__name__: []}


def _nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return dtypes.of_numpy(value.dtype).nbytes(value.size)
    return sum(map(_nbytes, value)) if isinstance(value, list) else 0


def _brief(args: Mapping[str, Any]) -> dict[str, Any]:
    """What other threads' events tell of a step; that of the first thread, which is the caller if it ran, tells all."""
    return {name: args[name] for name in ("op_name", "provider", "part", "step")}
