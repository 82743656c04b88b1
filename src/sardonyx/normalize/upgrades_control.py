"""Scan of opset 8, which has a batch axis; the newer one runs on one sequence."""

from __future__ import annotations

from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.normalize.edits import required_attribute, required_input
from sardonyx.normalize.registry import Result, upgrade


@upgrade("Scan", to=9)
def scan_batches(op: Builder, node: Node) -> Result:
    """A Scan over the batch whose body is the old Scan on one sequence, sliced to its length and padded again."""
    count = required_attribute(node, "num_scan_inputs")
    if not isinstance(node.attrs.get("body"), Graph) or not 0 < count < len(node.inputs):
        raise InvalidGraph("Scan needs a body and at least one scan input", where=node.label)
    lengths, args = node.input(0), [required_input(node, i) for i in range(1, len(node.inputs))]
    states = len(args) - count
    batch = Graph(f"{op.prefix}/batch", [_one_of(v, f"{op.prefix}/in_{i}") for i, v in enumerate(args)])
    inner = Builder(batch, prefix=f"{op.prefix}/batch", origin=op.origin)
    inputs, sequences = list(batch.inputs[:states]), list(batch.inputs[states:])
    length = None
    if lengths is not None:
        length = Value(f"{op.prefix}/length", TensorType(lengths.dtype, ()) if lengths.dtype else None)
        batch.inputs.append(length)
        whole = inner.Shape(sequences[0], start=0, end=1)
        length = inner.Unsqueeze(length, [0])
        missing = inner.Sub(whole, length)
        sequences = [inner.Slice(x, [0], length, [0]) for x in sequences]
    outs = inner.call(
        "", "Scan", *inputs, *sequences, outputs=[Value(f"{op.prefix}/out_{i}") for i in range(len(node.outputs))],
        body=node.attrs.pop("body"), num_scan_inputs=count, scan_input_directions=node.attrs.get("directions"),
    )  # fmt: skip
    for i, out in enumerate(outs):
        if length is not None and i >= states:
            out = inner.Pad(out, inner.Concat([0], missing, axis=0), None, [0])
        batch.add_output(out)
    results = op.call(
        "", "Scan", *args, *([] if lengths is None else [lengths]),
        outputs=[Value(f"{op.prefix}/batch_{i}") for i in range(len(node.outputs))],
        body=batch, num_scan_inputs=len(batch.inputs),
    )  # fmt: skip
    op.made[:0] = inner.made
    return results


def _one_of(batched: Value, name: str) -> Value:
    """The type of one batch element of a value."""
    if not isinstance(batched.type, TensorType):
        return Value(name)
    shape = batched.type.shape
    return Value(name, TensorType(batched.type.dtype, shape[1:] if shape else None))
