"""Cross-layer equalization (Nagel et al., 2019): the ranges of two layers' weights made alike, channel by channel.

A positive factor passes through ReLU. So the channels that one layer writes can be divided by factors, and the next
layer's weights for them multiplied, and the float model computes what it did. Factors are chosen so that a channel has
the same range in both layers; weights that are quantized with one scale per tensor then lose less.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.quantization.edges import Edges, attribute, onnx_op, read_proto, write_proto

if TYPE_CHECKING:
    import onnx

Array = Any

ROUNDS = 40
"""Rounds over all pairs; a chain of layers needs several until all its ranges agree."""

CONVERGED = 1e-3
"""Factors nearer to 1 than this change nothing that 8 bits can show."""

MAX_FACTOR = 2.0**20
"""Limit of a channel's factor, far from where f32 overflows or becomes denormal."""

_HOMOGENEOUS = frozenset(
    (
        "Relu",
        "LeakyRelu",
        "PRelu",
        "Identity",
        "Dropout",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "GlobalMaxPool",
    )
)
"""Operators f with f(s * x) = s * f(x) for positive s, channel by channel."""


@dataclass(frozen=True)
class Pair:
    """Two layers whose weights were made alike."""

    first: str
    second: str
    channels: int
    largest_factor: float

    def __str__(self) -> str:
        return f"{self.first} -> {self.second}: {self.channels} channels, factors up to {self.largest_factor:.3g}"


@dataclass(frozen=True)
class Equalized:
    """An equalized model; ``pairs`` are what was changed, ``skipped`` says of other layers why they were not."""

    model: onnx.ModelProto
    pairs: tuple[Pair, ...]
    skipped: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.pairs)} pairs of layers equalized", *(f"  {pair}" for pair in self.pairs)]
        return "\n".join([*lines, *(f"  {name}: not equalized: {why}" for name, why in self.skipped.items())])


def equalize_layers(model_input: Any, model_output: str | os.PathLike[str] | None = None) -> Equalized:
    """Equalize a copy of a float model (a path or a ModelProto); with ``model_output``, write it there.

    Equalized are Conv, Gemm and MatMul (grouped and depthwise Conv too) whose result only one other such layer reads,
    through constant biases and operators that positive factors pass (Relu, LeakyRelu, PRelu, pooling, Flatten). Fold
    BatchNormalization first, with ``quant_pre_process``.
    """
    model = read_proto(model_input)
    edges = Edges(model.graph)
    links, skipped = _links(edges)
    largest = [1.0] * len(links)
    for _ in range(ROUNDS):
        moved = 0.0
        for i, link in enumerate(links):
            factors = link.factors()
            link.apply(factors)
            spread = float(np.abs(np.log(factors)).max(initial=0.0))
            moved, largest[i] = max(moved, spread), largest[i] * float(np.exp(spread))
        if moved < CONVERGED:
            break
    for link in links:
        link.write(edges)
    pairs = [Pair(link.first.name, link.second.name, link.channels, f) for link, f in zip(links, largest, strict=True)]
    if model_output is not None:
        write_proto(model, model_output)
    return Equalized(model, tuple(pairs), skipped)


@dataclass
class _Layer:
    """A layer's weights in f64, shared by the two pairs that it may belong to."""

    name: str
    weight_name: str
    weight: Array
    out_axis: int
    in_axis: int
    group: int
    is_conv: bool
    scaled: dict[str, Array] = field(default_factory=dict)
    """Constants with a number per channel that are added to the layer's result, by name."""

    @property
    def channels(self) -> int:
        return int(self.weight.shape[self.out_axis])

    def out_ranges(self) -> Array:
        axes = tuple(a for a in range(self.weight.ndim) if a != self.out_axis)
        return np.abs(self.weight).max(axis=axes)

    def by_input(self) -> Array:
        """The weights with the input channels of all groups on the first axis."""
        if not self.is_conv:
            return np.moveaxis(self.weight, self.in_axis, 0)
        outs, ins = self.weight.shape[:2]
        grouped = self.weight.reshape(self.group, outs // self.group, ins, -1)
        return grouped.transpose(0, 2, 1, 3).reshape(self.group * ins, -1)

    def scale_inputs(self, factors: Array) -> None:
        if not self.is_conv:
            shape = [1] * self.weight.ndim
            shape[self.in_axis] = -1
            self.weight = self.weight * factors.reshape(shape)
            return
        outs, ins = self.weight.shape[:2]
        per_out = np.repeat(factors.reshape(self.group, 1, ins), outs // self.group, axis=1).reshape(outs, ins)
        self.weight = self.weight * per_out.reshape(outs, ins, *[1] * (self.weight.ndim - 2))

    def scale_outputs(self, factors: Array) -> None:
        shape = [1] * self.weight.ndim
        shape[self.out_axis] = -1
        self.weight = self.weight * factors.reshape(shape)
        for name, constant in self.scaled.items():
            self.scaled[name] = (constant.reshape(-1) * factors).reshape(constant.shape)


@dataclass
class _Link:
    """A layer, and the one that reads its result: ``repeat`` inputs in a row for each channel (Flatten)."""

    first: _Layer
    second: _Layer
    repeat: int

    @property
    def channels(self) -> int:
        return self.first.channels

    def factors(self) -> Array:
        """What the second layer's weights are multiplied by, and the first one's divided by."""
        mine = self.first.out_ranges()
        theirs = np.abs(self.second.by_input()).reshape(self.channels, -1).max(axis=1)
        usable = (mine > 0) & (theirs > 0) & np.isfinite(mine) & np.isfinite(theirs)
        ratio = np.divide(mine, theirs, out=np.ones_like(mine), where=usable)
        return np.clip(np.sqrt(ratio), 1 / MAX_FACTOR, MAX_FACTOR)

    def apply(self, factors: Array) -> None:
        self.first.scale_outputs(1 / factors)
        self.second.scale_inputs(np.repeat(factors, self.repeat))

    def write(self, edges: Edges) -> None:
        for layer in (self.first, self.second):
            for name, array in ((layer.weight_name, layer.weight), *layer.scaled.items()):
                edges.replace(name, array.astype(edges.constant(name).dtype))


def _links(edges: Edges) -> tuple[list[_Link], dict[str, str]]:
    layers: dict[int, _Layer] = {}
    skipped: dict[str, str] = {}
    for node in edges.graph.node:
        layer = _layer_of(edges, node)
        if isinstance(layer, _Layer):
            layers[id(node)] = layer
        elif layer is not None:
            skipped[_name(node)] = layer
    links = []
    for node in edges.graph.node:
        if id(node) in layers:
            link = _link_of(edges, node, layers)
            if isinstance(link, _Link):
                links.append(link)
            else:
                skipped[_name(node)] = link
    return links, skipped


def _layer_of(edges: Edges, node: onnx.NodeProto) -> _Layer | str | None:
    """A node as a layer; why it is none; or None for other operators."""
    if onnx_op(node) not in ("Conv", "Gemm", "MatMul"):
        return None
    weight = edges.constant(node.input[1])
    if weight is None:
        return "its weights are not constant"
    if weight.dtype.kind != "f":
        return f"its weights are of type {weight.dtype}"
    if len(edges.readers(node.input[1])) > 1:
        return "other nodes read its weights too"
    is_conv = node.op_type == "Conv"
    if is_conv:
        out_axis, in_axis = 0, 1
    elif node.op_type == "Gemm":
        if attribute(node, "transA", 0):
            return "transA is set"
        out_axis, in_axis = (0, 1) if attribute(node, "transB", 0) else (1, 0)
    elif weight.ndim == 2:
        out_axis, in_axis = 1, 0
    else:
        return "its weights are not a matrix"
    group = attribute(node, "group", 1) if is_conv else 1
    return _Layer(_name(node), node.input[1], weight.astype(np.float64), out_axis, in_axis, group, is_conv)


def _link_of(edges: Edges, node: onnx.NodeProto, layers: dict[int, _Layer]) -> _Link | str:
    """The pair that a layer is the first of, or why there is none."""
    first = layers[id(node)]
    added: dict[str, Array] = {}
    if len(node.input) > 2 and node.input[2] and (why := _take(edges, node.input[2], first.channels, 0, added)):
        return why
    name, repeat, flat = node.output[0], 1, False
    while True:
        reader = edges.only_reader(name)
        if reader is None:
            return "its result is read by more than one node, by none, or returned"
        if id(reader) in layers and reader.input[0] == name:
            break
        if onnx_op(reader) == "Add":
            other = reader.input[1] if reader.input[0] == name else reader.input[0]
            if why := _take(edges, other, first.channels, first.weight.ndim - 2 if first.is_conv else 0, added):
                return why
        elif onnx_op(reader) == "Flatten" and attribute(reader, "axis", 1) == 1 and first.is_conv:
            flat = True
        elif not _passes(reader, name, first):
            return _refusal(reader)
        name = reader.output[0]
    second = layers[id(reader)]
    if second.is_conv != (first.is_conv and not flat):
        return f"channels of its result are not on the axis that {second.name} sums over"
    ins = second.by_input().shape[0]
    if ins % first.channels or (ins != first.channels and not flat):
        return f"{second.name} reads {ins} channels, not {first.channels}"
    first.scaled.update(added)
    repeat = ins // first.channels
    return _Link(first, second, repeat)


def _passes(reader: onnx.NodeProto, name: str, first: _Layer) -> bool:
    """Whether a node passes factors of the channels; pooling takes the second axis for them."""
    if onnx_op(reader) not in _HOMOGENEOUS or reader.input[0] != name:
        return False
    return first.is_conv or "Pool" not in reader.op_type


def _refusal(reader: onnx.NodeProto) -> str:
    if reader.op_type == "BatchNormalization":
        return "BatchNormalization follows; fold it first (quant_pre_process)"
    if reader.op_type == "Clip":
        return "Clip follows, whose bounds do not scale"
    return f"{reader.op_type} follows, which a factor does not pass"


def _take(edges: Edges, name: str, channels: int, tail: int, added: dict[str, Array]) -> str | None:
    """Note a constant that is added to a result, with ``tail`` axes after its channels; or why it cannot be scaled."""
    constant = edges.constant(name)
    if constant is None:
        return "something that is not constant is added to its result"
    if len(edges.readers(name)) > 1:
        return "other nodes read its bias too"
    axis = constant.ndim - 1 - tail
    if constant.size != channels or (channels > 1 and (axis < 0 or constant.shape[axis] != channels)):
        return "what is added to its result is not one number per channel"
    added[name] = constant.astype(np.float64)
    return None


def _name(node: onnx.NodeProto) -> str:
    return node.name or node.output[0]
