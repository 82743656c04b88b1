"""Inference for signal transforms and Einsum."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.ir.dims import Dim
from sardonyx.ir.graph import Node
from sardonyx.ir.types import TensorType
from sardonyx.ops.equation import parse
from sardonyx.ops.rules import Content, Result, Undecided, axis_of, elements, like, numbers, rule, shaped, tensor


@rule("Einsum")
def _einsum(node: Node, content: Content) -> Result:
    shapes = [shaped(node, i) for i in range(len(node.inputs))]
    try:
        terms, result = parse(node.attrs["equation"], [len(s) for s in shapes])
    except ValueError:
        raise Undecided from None
    sizes: dict[str, Dim] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, d in zip(term, shape, strict=True):
            sizes[label] = dims.broadcast(sizes.get(label, 1), d)
    return [like(tensor(node), tuple(sizes[label] for label in result))]


def _one(node: Node, i: int, content: Content) -> Dim:
    """The only element of an input."""
    found = elements(node, i, content)
    return found[0] if found and len(found) == 1 else None


@rule("DFT")
def _dft(node: Node, content: Content) -> Result:
    shape = list(shaped(node))
    given = numbers(node, 2, content)
    axis = axis_of(given[0] if given else -2, len(shape))
    inverse, onesided = node.attrs.get("inverse", 0), node.attrs.get("onesided", 0)
    length = shape[axis]
    if inverse and onesided:
        length = dims.mul(2, dims.sub(length, 1))
    if node.input(1) is not None:
        length = _one(node, 1, content)
    shape[axis] = _bins(length) if onesided and not inverse else length
    shape[-1] = 1 if onesided and inverse else 2
    return [like(tensor(node), tuple(shape))]


def _bins(length: Dim) -> Dim:
    return dims.add(dims.floordiv(length, 2), 1)


@rule("STFT")
def _stft(node: Node, content: Content) -> Result:
    shape, step = shaped(node), _one(node, 1, content)
    if len(shape) == 3 and shape[2] not in (1, 2):
        raise Undecided
    length: Dim = shape[1]
    if node.input(3) is not None:
        length = _one(node, 3, content)
    elif node.input(2) is not None:
        length = shaped(node, 2)[0]
    frames = dims.add(dims.floordiv(dims.sub(shape[1], length), step), 1)
    return [like(tensor(node), (shape[0], frames, _bins(length) if node.attrs.get("onesided", 1) else length, 2))]


@rule("HannWindow", "HammingWindow", "BlackmanWindow")
def _window(node: Node, content: Content) -> Result:
    return [TensorType(dtypes.of_onnx(node.attrs.get("output_datatype", 1)), (_one(node, 0, content),))]


@rule("MelWeightMatrix")
def _mel(node: Node, content: Content) -> Result:
    dtype = dtypes.of_onnx(node.attrs.get("output_datatype", 1))
    return [TensorType(dtype, (_bins(_one(node, 1, content)), _one(node, 0, content)))]
