"""A model as a list of layers: what computes each tensor, and of which weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.graph import Model, Node, Value
from sardonyx.normalize.edits import constant
from sardonyx.quantization.diagnosis.grids import Array, Grid, grid_of
from sardonyx.quantization.diagnosis.operators import CARRIERS, DYNAMIC, INTEGER, UNSCALED, WEIGHTED
from sardonyx.quantization.weight_only.pack import Blocked, Blocks

REALS = (dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.f64)
SUFFIXES = (
    "_QuantizeLinear_Input", "_QuantizeLinear_Output", "_DequantizeLinear_Output", "_QuantizeLinear",
    "_DequantizeLinear", "_quantized", "_scaled_output", "_dequantized",
)  # fmt: skip
"""What quantizers add to the names of tensors."""


@dataclass
class Constant:
    """A weight or a bias, as reals; with its codes if it is quantized."""

    name: str
    array: Array
    codes: Array | None = None
    grid: Grid | None = None


@dataclass
class Tensor:
    """A tensor of a model: its computed value, and every integer or rounded form of it."""

    source: Value
    names: list[str]
    is_given: bool = False
    """Whether it is an input of the model."""
    quantize: list[Grid] = field(default_factory=list)
    """How QuantizeLinear nodes or an integer operator round it."""
    read: list[tuple[Value, Grid]] = field(default_factory=list)
    """Its values after DequantizeLinear."""
    read_as: list[Grid] = field(default_factory=list)
    """How its readers take its integers."""
    forms: list[tuple[Value, Grid]] = field(default_factory=list)
    """Its values as integers."""
    is_dynamic: bool = False
    """Whether some reader quantizes it by its own range in every run."""

    @property
    def point(self) -> tuple[Value, Grid | None]:
        """The value that readers see, and how it is dequantized if it is of integers."""
        if self.read:
            return self.read[0][0], None
        return (self.source, None) if not self.forms else self.forms[-1]


@dataclass
class Layer:
    """A node that computes a tensor."""

    kind: str
    node: Node
    tensor: Tensor
    inputs: list[Tensor]
    weight: Constant | None = None
    bias: Constant | None = None

    @property
    def label(self) -> str:
        return self.node.name or f"{self.node.op_type} -> {self.tensor.source.name}"


class Layers:
    """All layers of a model's main graph, in order."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.layers: list[Layer] = []
        self.given: list[Tensor] = []
        self._tensor: dict[Value, Tensor] = {}
        self._constant: dict[Value, Constant] = {}
        self._grid: dict[Value, Grid] = {}
        for value in model.graph.inputs:
            if value.const is None:
                self._tensor[value] = made = Tensor(value, [value.name], True)
                self.given.append(made)
        for node in model.graph.nodes:
            self._read(node)
        self.tensors = [*self.given, *(layer.tensor for layer in self.layers)]

    def _read(self, node: Node) -> None:
        if node.op_type == "QuantizeLinear":
            self._quantize(node)
        elif node.op_type == "DequantizeLinear":
            self._dequantize(node)
        elif node.op_type == "DynamicQuantizeLinear":
            tensor = self._of(node.input(0))
            if tensor is not None:
                tensor.is_dynamic = True
                self._tensor.update(dict.fromkeys(node.outputs, tensor))
        elif node.op_type in ("Transpose", "Identity") and self._constant_of(node.input(0)) is not None:
            self._move_constant(node)
        elif node.op_type != "Constant" and node.outputs:
            self._layer(node)

    def _quantize(self, node: Node) -> None:
        grid, tensor = grid_of(node, 1, 2, axis=node.attrs.get("axis", 1)), self._of(node.input(0))
        if grid is None:
            return
        if tensor is not None:
            tensor.quantize.append(grid)
            tensor.names.append(_plain(node.output.name))
            tensor.forms.append((node.output, grid))
            self._tensor[node.output], self._grid[node.output] = tensor, grid
            return
        weight = self._constant_of(node.input(0))
        if weight is not None:
            self._constant[node.output] = Constant(weight.name, weight.array, grid.codes(weight.array), grid)

    def _dequantize(self, node: Node) -> None:
        codes = node.inputs[0]
        grid, tensor = grid_of(node, 1, 2, codes, axis=node.attrs.get("axis", 1)), self._of(codes)
        if grid is None or codes is None:
            return
        if tensor is not None:
            tensor.read.append((node.output, grid))
            tensor.read_as.append(grid)
            tensor.names.append(_plain(node.output.name))
            self._tensor[node.output] = tensor
            return
        known = self._constant.get(codes)
        array = known.codes if known is not None else constant(codes)
        if array is not None:
            name = known.name if known is not None else _plain(codes.name)
            self._constant[node.output] = Constant(name, grid.reals(array), array, grid)

    def _move_constant(self, node: Node) -> None:
        found = self._constant_of(node.inputs[0])
        assert found is not None
        array = found.array
        if node.op_type == "Transpose":
            array = array.transpose(node.attrs.get("perm"))
        keeps = node.op_type == "Identity"
        self._constant[node.output] = Constant(
            found.name, array, found.codes if keeps else None, found.grid if keeps else None
        )

    def _layer(self, node: Node) -> None:
        kind, weight, bias = node.op_type, None, None
        reads: Sequence[Value | None] = node.inputs
        spec = INTEGER.get(kind)
        if spec is not None:
            kind = spec.kind
            weight, bias = self._integer_operands(node)
        elif kind in DYNAMIC:
            kind, at = DYNAMIC[kind]
            weight = self._integer_constant(node, at)
            self._mark_dynamic(node.input(0))
        elif kind == "MatMulNBits":
            kind, weight = "MatMul", _nbits(node)
        elif kind in WEIGHTED:
            weight, bias = self._constant_of(node.input(1)), self._constant_of(node.input(2))
        elif kind == "Gather":
            weight = self._table(node)
        elif kind in ("Mul", "Add"):
            scaled = self._scaled_product(node)
            if scaled is not None:
                kind, weight, reads = scaled
        inputs = [t for t in (self._of(v) for v in reads) if t is not None]
        if not inputs:
            return  # computed of constants, such as a bias that is reshaped
        for i, out in enumerate(node.outputs):
            if not out.name:
                continue
            tensor = Tensor(out, [_plain(out.name)])
            self._tensor[out] = tensor
            grid = self._result_grid(node, i)
            if grid is not None:
                tensor.forms.append((out, grid))
                self._grid[out] = grid
                if spec is not None:
                    tensor.quantize.append(grid)
            self.layers.append(Layer(kind, node, tensor, inputs, weight, bias))

    def _result_grid(self, node: Node, i: int) -> Grid | None:
        spec = INTEGER.get(node.op_type)
        if spec is not None:
            return None if spec.result is None or i else grid_of(node, *spec.result, node.outputs[0])
        first = node.input(0)
        if node.op_type == "Gather" and node.outputs[i].dtype in (dtypes.i8, dtypes.u8) and first not in self._grid:
            table = self._table(node)
            return None if table is None else table.grid
        if node.op_type in CARRIERS and first is not None and node.outputs[i].dtype in (first.dtype, None):
            return self._grid.get(first)  # onnx infers no types of results of com.microsoft operators
        return None

    # -- operands

    def _of(self, value: Value | None) -> Tensor | None:
        return None if value is None else self._tensor.get(value)

    def _constant_of(self, value: Value | None) -> Constant | None:
        if value is None:
            return None
        if value not in self._constant and value.dtype in REALS:
            array = constant(value)
            if array is not None:
                self._constant[value] = Constant(value.name, np.asarray(array))
        return self._constant.get(value)

    def _integer_operands(self, node: Node) -> tuple[Constant | None, Constant | None]:
        """Weight and bias; the grids by which other operands are read are noted."""
        spec = INTEGER[node.op_type]
        weight: Constant | None = None
        reads: list[Grid | None] = []
        triples = spec.operands or tuple((i, i + 1, i + 2) for i in range(2, len(node.inputs) - 2, 3))
        for at in triples:
            tensor, grid = self._of(node.input(at[0])), grid_of(node, at[1], at[2], node.input(at[0]))
            reads.append(grid)
            if tensor is not None and grid is not None:
                tensor.read_as.append(grid)
            elif tensor is None:
                weight = self._integer_constant(node, at, axis=WEIGHTED.get(spec.kind, 1)) or weight
        bias = None if spec.bias is None else constant(node.input(spec.bias))
        if bias is None or weight is None or weight.grid is None or not reads or reads[0] is None:
            return weight, None
        if bias.dtype != np.int32:
            return weight, Constant(_name(node, spec.bias), bias)
        scale = (reads[0].scale.reshape(-1) * weight.grid.scale.reshape(-1)).astype(np.float32)
        grid = Grid(scale, np.zeros(scale.shape, np.int32), dtypes.i32, 0)
        scaled = bias.astype(np.float64) * scale
        return weight, Constant(_name(node, spec.bias), scaled.astype(np.float32), bias, grid)

    def _integer_constant(self, node: Node, at: tuple[int, int, int], *, axis: int = -1) -> Constant | None:
        value = node.input(at[0])
        codes = constant(value)
        if codes is None or value is None:
            return None
        grid = grid_of(node, at[1], at[2], value, axis=axis % codes.ndim if codes.ndim else 0)
        return None if grid is None else Constant(_plain(value.name), grid.reals(codes), codes, grid)

    def _table(self, node: Node) -> Constant | None:
        """The table of a Gather; one of integers has the scale by which the rows are read."""
        value = node.input(0)
        found = self._constant_of(value)
        codes = constant(value) if found is None else None
        if value is None or codes is None or codes.dtype not in (np.int8, np.uint8):
            return found
        grid = next((g for reader, i in node.outputs[0].uses if (g := _read_by(reader, i, value)) is not None), None)
        return None if grid is None else Constant(_plain(value.name), grid.reals(codes), codes, grid)

    def _mark_dynamic(self, value: Value | None) -> None:
        tensor = self._of(value)
        if tensor is not None:
            tensor.is_dynamic = True

    def _scaled_product(self, node: Node) -> tuple[str, Constant | None, list[Value | None]] | None:
        """What a Mul stands for that scales a product of integers: its kind, weight and operand."""
        if node.op_type != "Mul":
            return None
        for product, scales in (node.inputs, node.inputs[::-1]):
            cast = None if product is None else product.producer
            core = cast.inputs[0].producer if cast is not None and cast.op_type == "Cast" and cast.inputs[0] else None
            if core is None or core.op_type not in UNSCALED or scales is None:
                continue
            return UNSCALED[core.op_type], self._unscaled_weight(core, scales), [core.input(0)]
        return None

    def _unscaled_weight(self, core: Node, scales: Value) -> Constant | None:
        value, maker = core.input(1), scales.producer
        codes = constant(value)
        if codes is None or value is None:
            return None
        zero = constant(core.input(3))
        known = [constant(scales)] if maker is None else [constant(v) for v in maker.inputs]
        found = [np.asarray(s) for s in known if s is not None]
        if not found:
            return None
        # that of the left operand is a constant, too, where this is a row of a quantized table
        scale = max(reversed(found), key=lambda s: zero is not None and s.size == zero.size)
        zero = np.zeros(scale.shape, codes.dtype) if zero is None else zero
        axis = 0 if core.op_type == "ConvInteger" else codes.ndim - 1
        flat = scale.reshape(-1) if scale.size > 1 else scale.reshape(())
        grid = Grid(flat, np.broadcast_to(zero.reshape(-1), flat.reshape(-1).shape).reshape(flat.shape),
                    dtypes.of_numpy(codes.dtype), axis)  # fmt: skip
        return Constant(_plain(value.name), grid.reals(codes), codes, grid)


def _read_by(reader: Node, i: int, codes: Value) -> Grid | None:
    """The grid by which a node reads the integers at its input ``i``."""
    if reader.op_type == "DequantizeLinear" and i == 0:
        return grid_of(reader, 1, 2, codes)
    spec = INTEGER.get(reader.op_type)
    at = None if spec is None else next((at for at in spec.operands if at[0] == i), None)
    return None if at is None else grid_of(reader, at[1], at[2], codes)


def _nbits(node: Node) -> Constant | None:
    """The weight of a MatMulNBits."""
    packed, scales, zeros = (constant(node.input(i)) for i in (1, 2, 3))
    k, n, size = (int(node.attrs[name]) for name in ("K", "N", "block_size"))
    bits = int(node.attrs.get("bits", 4))
    value = node.input(1)
    if packed is None or scales is None or value is None or (zeros is None and node.input(3) is not None):
        return None
    count, blocks = -(-k // size), Blocks(bits, size, zeros is None)

    def unpacked(array: Any, width: int) -> Array:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        fields = (array.reshape(n, -1)[..., None] >> shifts) & np.uint8(blocks.most)
        return np.asarray(fields.reshape(n, -1)[:, :width])

    codes = unpacked(packed, count * size).reshape(n, count, size).transpose(1, 2, 0)
    if zeros is None:
        points = np.full((count, n), blocks.middle, np.uint8)
    elif zeros.dtype == np.uint8:
        points = unpacked(zeros, count).T
    else:
        points = zeros.reshape(n, count).T
    steps = scales.reshape(n, count).T
    made = Blocked(codes, steps, points, k, blocks)
    plain = codes.reshape(-1, n)[:k]
    grid = None
    if not made.has_real_zeros:
        grid = Grid(steps, points, dtypes.of_name(f"u{bits}"), 0, size)
    name = value.name.removesuffix(f"_Q{bits}").removesuffix(f"_Q{bits}G{size}")
    return Constant(name, made.dequantized(), plain, grid)


def _plain(name: str) -> str:
    """A tensor's name without what a quantizer added."""
    stem, _, number = name.rpartition("_")
    if stem.endswith(SUFFIXES) and number.isdigit():
        name = stem
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _name(node: Node, i: int | None) -> str:
    value = None if i is None else node.input(i)
    return "" if value is None else _plain(value.name)


def computed(layers: list[Layer]) -> Iterator[Layer]:
    """The layers whose tensors are reals or stand for reals, as far as types are known."""
    return (layer for layer in layers if layer.tensor.forms or layer.tensor.source.dtype in (*REALS, None))
