"""How a quantized weight is written: MatMulNBits, blocked DequantizeLinear or GatherBlockQuantized, with onnxruntime's
names of tensors and nodes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.quantization.weight_only.pack import Array, Blocked
from sardonyx.quantization.weight_only.tables import BlockedTable
from sardonyx.records import Record

MICROSOFT = "com.microsoft"


class Suffixes(Record):
    """What the names of a weight's tensors end with; ``codes`` is completed by bits and block size."""

    codes: str
    scales: str
    zeros: str
    flat: bool = False
    """Whether scales and zero points are vectors."""


BY_KERNEL = Suffixes("_Q{bits}", "_scales", "_zero_points")
BY_HQQ = Suffixes("_Q{bits}", "_scales", "_zero_points", flat=True)
BY_COMPRESSOR = Suffixes("_Q{bits}G{size}", "_scale", "_zp")
"""RTN, k-quant and GPTQ, which onnxruntime took from another tool."""
DEQUANTIZED = Suffixes("_DQ_Q{bits}", "_DQ_scales", "_DQ_zero_points")


class Written:
    """The constants that stand for one weight, in the graph that had it; shared by all nodes that read it."""

    def __init__(self, home: Graph, name: str) -> None:
        self._home, self._name = home, name
        self.values: list[Value] = []

    def add(self, array: Array, suffix: str) -> Value:
        value = self._home.add_const(Tensor.of(np.ascontiguousarray(array)), f"{self._name}{suffix}")
        self.values.append(value)
        return value


def write_nbits(written: Written, found: Blocked, suffixes: Suffixes) -> None:
    """The operands B, scales and zero points of MatMulNBits."""
    blocks, shape = found.blocks, -1 if suffixes.flat else (found.n, len(found.scales))
    written.add(found.packed(), suffixes.codes.format(bits=blocks.bits, size=blocks.size))
    written.add(found.scales.T.reshape(shape), suffixes.scales)
    if not blocks.symmetric or found.has_real_zeros:
        zeros = found.packed_zeros()
        written.add(zeros.reshape(-1) if suffixes.flat else zeros, suffixes.zeros)


def nbits_node(node: Node, out: Value, written: Written, found: Blocked, accuracy_level: int | None) -> Node:
    blocks = found.blocks
    attrs = {"K": found.k, "N": found.n, "bits": blocks.bits, "block_size": blocks.size}
    if accuracy_level:
        attrs["accuracy_level"] = accuracy_level
    inputs = [node.inputs[0], *written.values]
    return Node("MatMulNBits", inputs, [out], attrs, domain=MICROSOFT, name=_named(node, f"_Q{blocks.bits}"),
                origin=node.origin)  # fmt: skip


def write_dequantized(written: Written, found: Blocked, *, transposed: bool) -> None:
    """The operands of a DequantizeLinear in blocks along the first axis; along the second if ``transposed``."""
    blocks, middle = found.blocks, found.blocks.middle
    codes, zeros = found.codes.reshape(-1, found.n)[: found.k], found.zeros
    kind = np.dtype(np.uint8 if blocks.bits == 8 else ml_dtypes.uint4)
    if blocks.symmetric:
        codes = codes.astype(np.int16) - middle
        kind = np.dtype(np.int8 if blocks.bits == 8 else ml_dtypes.int4)
    turn = np.transpose if transposed else np.asarray
    suffix = DEQUANTIZED.codes.format(bits=blocks.bits)
    written.add(turn(codes.astype(np.int8 if blocks.symmetric else np.uint8)).astype(kind), suffix)
    written.add(turn(found.scales), DEQUANTIZED.scales)
    if not blocks.symmetric:
        written.add(turn(zeros).astype(kind), DEQUANTIZED.zeros)


def dequantize_nodes(node: Node, out: Value, written: Written, found: Blocked, *, transposed: bool) -> list[Node]:
    """DequantizeLinear, Transpose if the weight is stored transposed, MatMul."""
    bits, codes = found.blocks.bits, written.values[0]
    attrs = {"axis": int(transposed), "block_size": found.blocks.size}
    real = Value(f"{codes.name}_output")
    made = [
        Node("DequantizeLinear", written.values, [real], attrs, name=_named(node, f"_DQ_Q{bits}"), origin=node.origin)
    ]
    if transposed:
        flipped = Value(f"{real.name}_transposed")
        made.append(Node("Transpose", [real], [flipped], {"perm": [1, 0]}, origin=node.origin))
        real = flipped
    name = _named(node, f"_matmul_Q{bits}")
    return [*made, Node("MatMul", [node.inputs[0], real], [out], name=name, origin=node.origin)]


def write_table(written: Written, found: BlockedTable) -> None:
    """The operands data, scales and zero points of GatherBlockQuantized."""
    written.add(found.codes, f"_Q{found.bits}")
    written.add(found.scales, "_scales")
    if found.zeros is not None:
        written.add(found.zeros, "_zero_points")


def gather_node(node: Node, out: Value, written: Written, found: BlockedTable) -> Node:
    attrs = {"gather_axis": node.attrs.get("axis", 0), "quantize_axis": found.axis, "block_size": found.size}
    if found.bits != 4:
        attrs["bits"] = found.bits
    codes, *rest = written.values
    inputs = [codes, node.inputs[1], *rest]
    return Node("GatherBlockQuantized", inputs, [out], attrs, domain=MICROSOFT, name=_named(node, f"_Q{found.bits}"),
                origin=node.origin)  # fmt: skip


def _named(node: Node, suffix: str) -> str:
    return f"{node.name}{suffix}" if node.name else ""
