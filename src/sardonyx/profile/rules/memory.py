"""Elements that are moved and not computed with, and memory that runs short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sardonyx.profile.facts import Facts
from sardonyx.profile.findings import OPPORTUNITY, Finding, Fix

if TYPE_CHECKING:
    from sardonyx.ir.graph import Node, Value
    from sardonyx.profile.records import KernelUse

LAYOUT_STEPS, LAYOUT_NBYTES, LAYOUT_SHARE = 3, 1 << 20, 0.1
"""Steps that change a layout, their bytes and their share of all bytes, from which on they are a problem."""
COPY_NBYTES, COPY_SHARE = 1 << 22, 0.25
"""Bytes of a step that only copies, and its share of all bytes, above which it is a problem."""
LARGE_OUTPUT_NBYTES = 1 << 25
MEMORY_SHARE = 0.8
TURNS = ("transpose", "interleave")
"""Kernels that change the order of axes."""
SHAPERS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
"""Operators that only give elements another shape."""
COPIES = frozenset(("Concat", "Expand", "Identity", "Pad", "Reshape", "Slice", "Split", "Tile"))
"""Operators that copy elements as they are."""


def layouts(facts: Facts) -> Iterator[Finding]:
    """Layouts that change back and forth because the model's Transposes ask for it."""
    transposes = [n for n in facts.nodes if n.op_type == "Transpose" and not _is_constant(n.inputs[0])]
    near = {name for n in transposes for name in _around(n)}
    turns = [k for k in facts.movers() if (k.kernel in TURNS or "Transpose" in k.operators) and near & {*k.nodes}]
    total, moved = facts.profile.nbytes, sum(k.nbytes for k in turns)
    if len(turns) < LAYOUT_STEPS or moved < max(LAYOUT_NBYTES, LAYOUT_SHARE * total):
        return
    yield Finding(
        "layouts",
        f"the layout changes {len(turns)} times in a run",
        {
            "kernels": len(turns),
            "bytes_moved": moved,
            "share_of_bytes": moved / total,
            "transposes_in_the_graph": len(transposes),
        },
        "Elements are written in one order and read in another, again and again.",
        Fix("keep one layout throughout: export without Transposes between layers, or move them to inputs and outputs"),
        tuple(dict.fromkeys(map(_label, transposes))),
        cost=facts.share(sum(k.seconds for k in turns)),
    )


def _around(transpose: Node) -> Iterator[str]:
    """The names of a Transpose and of the nodes next to it, past those that only change the shape."""
    yield _label(transpose)
    before = transpose.inputs[0]
    while before is not None and before.producer is not None:
        yield _label(before.producer)
        if before.producer.op_type not in SHAPERS:
            break
        before = before.producer.inputs[0]
    readers = [node for node, _ in transpose.outputs[0].uses]
    while readers:
        node = readers.pop()
        yield _label(node)
        if node.op_type in SHAPERS:
            readers += [user for user, _ in node.outputs[0].uses]


def _is_constant(value: Value | None) -> bool:
    return value is None or value.is_const


def _label(node: Node) -> str:
    return node.name or node.outputs[0].name


def copies(facts: Facts) -> Iterator[Finding]:
    """Steps that copy much and compute nothing."""
    total = facts.profile.nbytes
    large = [k for k in facts.movers() if k.nbytes >= max(COPY_NBYTES, COPY_SHARE * total)]
    for use in (k for k in large if set(k.operators) <= COPIES):
        states = tuple(_states(facts, use))
        text = "operate on the parts instead of the copy: operators broadcast without Expand and Tile"
        for given, made, axis in states[:1]:
            text = (
                f"let the state grow in place: binding.bind_state({given!r}, {made!r}, value, capacity=n, axis={axis})"
            )
        yield Finding(
            "copy",
            f"{use.op_type} {use.label} copies {use.nbytes / 2**20:.0f} MiB in each run",
            {"bytes": use.nbytes, "share_of_bytes": use.nbytes / total, "operations": use.flops},
            "The step computes nothing: it reads and writes memory.",
            Fix(text, states=states),
            use.nodes,
            cost=facts.share(use.seconds),
        )


def _states(facts: Facts, use: KernelUse) -> Iterator[tuple[str, str, int]]:
    """The inputs, outputs and axes of Concats that append to a state."""
    for node in facts.graph.nodes:
        if (node.name or node.outputs[0].name) in use.nodes and node.op_type == "Concat" and node.outputs[0].is_output:
            first, axis = node.inputs[0], node.attrs.get("axis")
            if first is not None and first in facts.graph.inputs and isinstance(axis, int):
                yield first.name, node.outputs[0].name, axis


def strided_inputs(facts: Facts) -> Iterator[Finding]:
    """Inputs that are copied because they are not contiguous."""
    runs = [r for r in facts.profile.runs if r.strided_nbytes]
    if not runs:
        return
    each = max(r.strided_nbytes for r in runs)
    yield Finding(
        "strided-inputs",
        f"inputs of {each / 2**10:.0f} KiB are copied before a run, because they are not contiguous",
        {"runs": len(runs), "bytes_copied_in_a_run": each, "input_bytes": max(r.input_nbytes for r in runs)},
        "A transposed or sliced array shares another one's memory; its elements must be put in order first.",
        Fix("feed np.ascontiguousarray(x), made once, or write to the array in its final order", is_contiguous=True),
    )


def large_outputs(facts: Facts) -> Iterator[Finding]:
    """Outputs so large that fresh memory for them costs."""
    each = max((r.output_nbytes for r in facts.profile.runs), default=0)
    if each >= LARGE_OUTPUT_NBYTES:
        yield Finding(
            "large-outputs",
            f"each run allocates {each / 2**20:.0f} MiB for its outputs",
            {"output_bytes": each},
            "Memory of this size comes fresh from the system, page by page.",
            Fix("bind outputs once: binding = session.io_binding(); binding.bind_ortvalue_output(...)"),
            kind=OPPORTUNITY,
        )


def memory_limit(facts: Facts) -> Iterator[Finding]:
    """A model that nearly fills the memory that the container has."""
    allowed = facts.environment.memory_nbytes
    needed = facts.profile.peak_nbytes + facts.weights_nbytes
    if allowed is not None and needed > MEMORY_SHARE * allowed:
        yield Finding(
            "memory",
            f"weights and intermediates take {100 * needed / allowed:.0f} % of the container's memory",
            {
                "weight_bytes": facts.weights_nbytes,
                "intermediate_bytes": facts.profile.peak_nbytes,
                "limit_bytes": allowed,
            },
            "The process is killed when the limit is reached.",
            Fix("run smaller batches, quantize the weights, or bound a session: InferenceSession(..., max_memory=n)"),
        )
