"""onnx's protos: attributes, initializers, models with the types of their values; onnxruntime's helper functions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.ir.graph import Model
from sardonyx.model.load import load
from sardonyx.model.save import model_to_proto
from sardonyx.quantization.kinds import NARROW, WIDE, QuantType, quant_type_of
from sardonyx.quantization.overrides import types_in
from sardonyx.quantization.parameters import Array, Parameters, quantize_array
from sardonyx.quantization.shape_inference import infer_shapes
from sardonyx.quantization.source import opset_of, raise_opset, read_model

if TYPE_CHECKING:
    import onnx

_INFERRED = ("onnx.infer", "onnxruntime.quant")


def attribute_to_kwarg(attribute: onnx.AttributeProto) -> dict[str, Any]:
    """An attribute as the keyword argument of ``onnx.helper.make_node``."""
    fields = ("f", "i", "s", "t", "g", "floats", "ints", "strings", "tensors", "graphs")
    if not 1 <= attribute.type <= len(fields):
        raise ValueError(f"the attribute {attribute.name!r} has no type, or one that nodes are not made with")
    return {attribute.name: getattr(attribute, fields[attribute.type - 1])}


def find_by_name(item_name: str, item_list: Iterable[Any]) -> Any:
    """The first item of this name, or None."""
    return next((each for each in item_list if each.name == item_name), None)


def get_elem_index(elem_name: object, elem_list: Sequence[Any]) -> int:
    """The last place of an element, -1 if it is not there."""
    return max((i for i, each in enumerate(elem_list) if each == elem_name), default=-1)


def get_mul_node(inputs: Sequence[str], output: str, name: str) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node("Mul", inputs, [output], name)


def generate_identified_filename(filename: Path, identifier: str) -> Path:
    """The path with ``identifier`` before its suffix."""
    return filename.with_name(f"{filename.stem}{identifier}{filename.suffix}")


# -- tensors


def tensor_proto_to_array(initializer: onnx.TensorProto) -> Array:
    """The numbers of a float32 or float16 tensor; ValueError for other types."""
    from onnx import TensorProto, numpy_helper

    if initializer.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        found = TensorProto.DataType.Name(initializer.data_type)
        raise ValueError(f"{initializer.name!r} is quantized from float32 or float16, not from {found}")
    return numpy_helper.to_array(initializer)


def quantize_onnx_initializer(
    weight: onnx.TensorProto,
    quant_type: int,
    zero_point: Array,
    scale: Array,
    axis: int | None = None,
    quant_weight_name: str | None = None,
    block_size: int = 0,
) -> onnx.TensorProto:
    """The tensor as integers: per tensor, per channel of ``axis``, or in blocks along it."""
    from onnx import helper

    data, kind = tensor_proto_to_array(weight), quant_type_of(quant_type)
    if axis is not None and axis < 0:
        axis += data.ndim
    parameters = Parameters(
        kind, np.asarray(scale), np.asarray(zero_point), axis, block_size if axis is not None else 0
    )
    integers = quantize_array(data, parameters)
    raw = bytes(pack_bytes_to_4bit(integers.tobytes())) if kind in NARROW else integers.tobytes()
    return helper.make_tensor(quant_weight_name or f"{weight.name}_quantized", quant_type, weight.dims, raw, raw=True)


def pack_bytes_to_4bit(src_8bit: bytes) -> bytearray:
    """The low halves of the bytes, two in each: the first in the lower bits."""
    values = np.frombuffer(src_8bit, np.uint8) & 0xF
    if len(values) % 2:
        values = np.append(values, np.uint8(0))
    return bytearray((values[::2] | values[1::2] << 4).tobytes())


# -- models


def model_has_external_data(model_path: str | os.PathLike[str]) -> bool:
    """Whether initializers of the main graph lie in files of their own."""
    import onnx
    from onnx import external_data_helper

    model = onnx.load(os.fspath(model_path), load_external_data=False)
    return any(external_data_helper.uses_external_data(each) for each in model.graph.initializer)


def load_model_with_shape_infer(model_path: str | os.PathLike[str]) -> onnx.ModelProto:
    """A model with the types of its values, which its metadata tell."""
    return _inferred(os.fspath(model_path))


def save_and_reload_model_with_shape_infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model with the types of its values, which its metadata tell. No file is written."""
    return _inferred(model)


def _inferred(source: Any) -> onnx.ModelProto:
    model = source if isinstance(source, Model) else load(source)
    infer_shapes(model)
    key, value = _INFERRED
    model.metadata.setdefault(key, value)
    return model_to_proto(model)


def optimize_model(model_path: str | os.PathLike[str], opt_model_path: str | os.PathLike[str]) -> None:
    """Write a model with constants folded and nodes fused at the basic level, whatever the provider."""
    from sardonyx.model.save import save
    from sardonyx.optimize.api import optimize_model as optimized

    save(optimized(load(model_path), "basic", spelling="portable").model, opt_model_path)


def update_opset_version(
    model: onnx.ModelProto,
    weight_type: QuantType | int,
    activation_type: QuantType | int | None = None,
    tensor_quant_overrides: Mapping[str, Any] | None = None,
    block_size: int = 0,
) -> onnx.ModelProto:
    """The model, raised to the opset that the types need: 21 for 16 bits and blocks, 19 for float8, 11 for others."""
    kinds = {quant_type_of(each) for each in (weight_type, activation_type) if each is not None}
    kinds |= types_in(tensor_quant_overrides)
    source = read_model(model)
    needed = 11 if opset_of(source) < 10 else 0
    if block_size or not kinds.isdisjoint(WIDE):
        needed = 21
    elif any(kind.is_float8 for kind in kinds):
        needed = 19
    if opset_of(source) >= needed:
        return model
    raise_opset(source, needed)
    return _inferred(source)
