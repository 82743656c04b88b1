"""SmoothQuant (Xiao et al., 2023): outliers in channels of activations are moved into the weights.

The input of a product is divided by a factor for each channel, and the rows of its weight are multiplied by it: the
product stays the same, but no channel needs much more range than the others. With ``folding``, the division is folded
into the operator that makes the input; otherwise, or where other nodes read the input too, a Mul does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Graph, Model, Node, Value
from sardonyx.quantization.calibrate.augment import values_by_name
from sardonyx.quantization.calibrate.runner import Providers, Runner, found_nan
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.settings import Settings
from sardonyx.quantization.source import drop_unused, is_real, is_weight, place_after

Array = np.ndarray[Any, Any]

_SMALLEST = 1e-5
"""Magnitudes below this count as it, so that factors of unused channels stay finite."""
Fold = Callable[[Graph, Node, Array, int], bool]


@dataclass
class Smoothed:
    """A tensor whose outliers were moved into the weights of the products that read it."""

    tensor: str
    products: tuple[str, ...]
    is_folded: bool
    """Whether the factors are in the operator before, not in a Mul of their own."""


@dataclass
class _Group:
    """Products with one input, whose factors they share."""

    source: Value
    axis: int
    products: list[Node]


def smooth(
    model: Model,
    settings: Settings,
    reader: object,
    *,
    alpha: float = 0.5,
    folding: bool = True,
    providers: Providers | None = None,
) -> list[Smoothed]:
    """Smooth the products of a model that are to be quantized, in place; the reader is read to its end."""
    groups = _groups(model.graph, settings)
    if not groups:
        return []
    found = _magnitudes(model, groups, reader, providers)
    done = [_smooth(model.graph, group, found[group.source.name], alpha, folding) for group in groups]
    drop_unused(model.graph)
    return [each for each in done if each is not None]


def muls_of(done: Iterable[Smoothed]) -> list[str]:
    """The names of the Muls that were added: they stay real."""
    return [_mul_name(each.tensor) for each in done if not each.is_folded]


def _mul_name(tensor: str) -> str:
    return f"{tensor}_smooth_mul"


def _groups(graph: Graph, settings: Settings) -> list[_Group]:
    found: dict[Value, _Group] = {}
    for node in graph.nodes:
        axis = _channel_axis(node)
        source = node.input(0)
        if axis is None or source is None or not settings.wants(node):
            continue
        group = found.setdefault(source, _Group(source, axis, []))
        if group.axis == axis:
            group.products.append(node)
    return list(found.values())


def _channel_axis(node: Node) -> int | None:
    """The axis of the input that a product with a constant sums over; None for other nodes."""
    if node.domain or not is_real(node.input(0)) or node.input(0).const is not None or not is_weight(node.input(1)):  # type: ignore[union-attr]
        return None
    weight = node.input(1)
    assert weight is not None and weight.const is not None
    if node.op_type == "MatMul" and len(weight.const.shape) == 2:
        return -1
    if node.op_type == "Gemm" and not node.attrs.get("transA", 0):
        return -1
    if node.op_type == "Conv" and node.attrs.get("group", 1) == 1:
        return 1
    return None


def _rows(node: Node) -> int:
    """The axis of the weight that is summed over."""
    return 1 if node.op_type == "Conv" or (node.op_type == "Gemm" and node.attrs.get("transB", 0)) else 0


def _magnitudes(
    model: Model, groups: Sequence[_Group], reader: object, providers: Providers | None
) -> dict[str, Array]:
    """The largest magnitude of each channel of the groups' inputs over the calibration data."""
    made = clone(model)
    values = values_by_name(made.graph)
    made.graph.drop_outputs()
    made.declared_outputs = {}
    names = [group.source.name for group in groups]
    for name in names:
        value = values[name]
        op = Builder(made.graph, place_after(made.graph, value), prefix=f"{name}/magnitude")
        made.graph.add_output(op.Abs(value), f"{name}_abs")
    largest: dict[str, Array] = {}

    def take(number: int, outputs: list[Any]) -> None:
        for i, (group, name) in enumerate(zip(groups, names, strict=True)):
            values, outputs[i] = outputs[i], None
            axis = group.axis % values.ndim
            found = values.max(axis=tuple(k for k in range(values.ndim) if k != axis), initial=0)
            if np.isnan(found).any():
                raise found_nan(name, number)
            largest[name] = np.maximum(largest[name], found) if name in largest else found

    if Runner(made, providers).run_all(reader, take) == 0:
        raise Misuse("the calibration data reader gave nothing: SmoothQuant needs data")
    return largest


def _smooth(graph: Graph, group: _Group, activation: Array, alpha: float, folding: bool) -> Smoothed | None:
    weight = np.max([_row_magnitudes(node) for node in group.products], axis=0)
    size = np.maximum(activation.astype(np.float64), _SMALLEST)
    factors = size**alpha / np.maximum(weight.astype(np.float64), _SMALLEST) ** (1 - alpha)
    if not np.isfinite(factors).all():
        return None
    for node in group.products:
        _multiply_rows(graph, node, factors)
    is_folded = folding and _is_only_read_by(group) and divide(graph, group.source, factors, group.axis)
    if not is_folded:
        _insert_mul(graph, group, factors)
    return Smoothed(group.source.name, tuple(node.name for node in group.products), is_folded)


def _weight_of(node: Node) -> Array:
    weight = node.inputs[1]
    assert weight is not None
    found: Array = weight.numpy()
    return found


def _row_magnitudes(node: Node) -> Array:
    weight, rows = _weight_of(node), _rows(node)
    return np.asarray(np.abs(weight).max(axis=tuple(i for i in range(weight.ndim) if i != rows)))


def _multiply_rows(graph: Graph, node: Node, factors: Array) -> None:
    weight, rows = node.inputs[1], _rows(node)
    assert weight is not None
    _replace(graph, node, 1, weight.numpy() * _along(factors, rows, weight.numpy().ndim))


def _along(factors: Array, axis: int, rank: int) -> Array:
    return factors.reshape([-1 if i == axis else 1 for i in range(rank)])


def _replace(graph: Graph, node: Node, i: int, array: Array) -> None:
    """Give a node another constant in place of an input."""
    old = node.inputs[i]
    assert old is not None and old.dtype is not None
    node.set_input(i, graph.add_const(array.astype(old.dtype.numpy), old.name))
    if old.is_dead and graph.initializers.get(old.name) is old:
        made = node.inputs[i]
        assert made is not None
        del graph.initializers[made.name], graph.initializers[old.name]
        made.name = old.name
        graph.initializers[made.name] = made


def _is_only_read_by(group: _Group) -> bool:
    readers = {node for node, i in group.source.uses if i == 0}
    others = [node for node, i in group.source.uses if i != 0]
    return not group.source.is_output and not others and readers == set(group.products)


def _insert_mul(graph: Graph, group: _Group, factors: Array) -> None:
    source, rank = group.source, None if group.axis == -1 else _weight_of(group.products[0]).ndim
    assert source.dtype is not None
    shape = factors if rank is None else _along(factors, 1, rank)[0]
    inverse = graph.add_const((1 / shape).astype(source.dtype.numpy), f"{source.name}_smooth_scale")
    result = Value(f"{source.name}_smoothed", source.type)
    node = Node("Mul", [source, inverse], [result], name=_mul_name(source.name))
    before = place_after(graph, source)
    if before is None:
        graph.append(node)
    else:
        graph.insert(node, before=before)
    for product in group.products:
        product.set_input(0, result)


# -- folding


def divide(graph: Graph, value: Value, factors: Array, axis: int) -> bool:
    """Divide the channels of a value, which lie on its last axis (-1) or on axis 1, by folding the factors into the
    operators that make it; False, and nothing is changed, where those cannot take them.
    """
    node = value.producer
    if node is None or node.graph is not graph or node.domain:
        return False
    fold = (_ON_LAST_AXIS if axis == -1 else _ON_AXIS_1).get(node.op_type)
    return fold is not None and fold(graph, node, factors, axis)


def _divide_source(graph: Graph, node: Node, i: int, factors: Array, axis: int) -> bool:
    source = node.inputs[i]
    if source is None or source.is_output or len(source.uses) != 1:
        return False
    return divide(graph, source, factors, axis)


def _vector(value: Value | None, factors: Array) -> bool:
    """Whether a constant has one number for each channel on its last axis, or on its only one."""
    return (
        value is not None and is_weight(value) and value.const is not None and value.const.shape[-1:] == factors.shape
    )


def _normalization(graph: Graph, node: Node, factors: Array, axis: int) -> bool:
    """Scale and bias of a normalization over the last axis."""
    if any(out.uses for out in node.outputs[1:]):
        return False
    parts = [i for i in (1, 2) if node.input(i) is not None]
    if 1 not in parts or not all(_vector(node.input(i), factors) for i in parts):
        return False
    for i in parts:
        value = node.inputs[i]
        assert value is not None
        _replace(graph, node, i, value.numpy() / factors)
    return True


def _product(graph: Graph, node: Node, factors: Array, axis: int) -> bool:
    """Columns of a MatMul's, Gemm's or Conv's weight, and its bias."""
    weight, bias = node.inputs[1], node.input(2)
    if weight is None or not is_weight(weight) or weight.const is None:
        return False
    rank = len(weight.const.shape)
    columns = 0 if node.op_type == "Conv" or node.attrs.get("transB", 0) else rank - 1
    if weight.const.shape[columns] != len(factors) or (bias is not None and not _vector(bias, factors)):
        return False
    _replace(graph, node, 1, weight.numpy() / _along(factors, columns, rank))
    if bias is not None:
        _replace(graph, node, 2, bias.numpy() / factors)
    return True


def _scaling(graph: Graph, node: Node, factors: Array, axis: int) -> bool:
    """A Mul by a vector of channels."""
    for i in (1, 0):
        value = node.inputs[i]
        if value is not None and _vector(value, factors):
            _replace(graph, node, i, value.numpy() / factors)
            return True
    return False


def _addition(graph: Graph, node: Node, factors: Array, axis: int) -> bool:
    """An Add of a vector of channels to a product."""
    for i in (1, 0):
        value = node.inputs[i]
        if value is not None and _vector(value, factors):
            if not _divide_source(graph, node, 1 - i, factors, axis):
                return False
            _replace(graph, node, i, value.numpy() / factors)
            return True
    return False


def _homogeneous(graph: Graph, node: Node, factors: Array, axis: int) -> bool:
    """Relu and its like: positive factors pass through them."""
    return _divide_source(graph, node, 0, factors, axis)


_ON_LAST_AXIS: dict[str, Fold] = {
    "Add": _addition,
    "Gemm": _product,
    "Identity": _homogeneous,
    "LayerNormalization": _normalization,
    "LeakyRelu": _homogeneous,
    "MatMul": _product,
    "Mul": _scaling,
    "RMSNormalization": _normalization,
    "Relu": _homogeneous,
}
_ON_AXIS_1: dict[str, Fold] = {
    "Conv": _product,
    "Identity": _homogeneous,
    "LeakyRelu": _homogeneous,
    "MaxPool": _homogeneous,
    "Relu": _homogeneous,
}
