"""onnxruntime.transformers' module of this name: element types by session, numpy, torch and ONNX, and bound buffers.

torch is imported when a function that needs it is called.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.errors import InvalidArgument

__all__ = ["IOBindingHelper", "TypeHelper"]

TORCH_NAMES = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "bool": "bool", "c64": "complex64",
    "c128": "complex128", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2", "f8e5m2fnuz": "float8_e5m2fnuz", "i4": "int4", "u4": "uint4",
}  # fmt: skip
"""torch's names of element types."""

OF_SESSION = {f"tensor({t.ort})": t for t in dtypes.every()}


class Session(Protocol):
    """The methods of a session that are used here."""

    def get_inputs(self) -> Sequence[Any]: ...

    def get_outputs(self) -> Sequence[Any]: ...

    def io_binding(self) -> Any: ...


class UnknownName(InvalidArgument, ValueError):
    """An unknown type, input or output."""


class TypeHelper:
    """Converts element types between the names of sessions, numpy, torch and ONNX."""

    @staticmethod
    def get_input_type(ort_session: Session, name: str) -> str:
        return _found(ort_session.get_inputs(), name, "input")

    @staticmethod
    def get_output_type(ort_session: Session, name: str) -> str:
        return _found(ort_session.get_outputs(), name, "output")

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> Any:
        found = OF_SESSION.get(ort_type)
        if found is None or not _is_numpys(found):
            raise UnknownName("numpy has no such type", got=ort_type)
        return bool if found is dtypes.bool_ else found.numpy.type

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        found = OF_SESSION.get(ort_type)
        if found is None or found.name not in TORCH_NAMES:
            raise UnknownName("torch has no such type", got=ort_type)
        return getattr(importlib.import_module("torch"), TORCH_NAMES[found.name])

    @staticmethod
    def ort_type_to_onnx_type(ort_type: str) -> int:
        found = OF_SESSION.get(ort_type)
        if found is None:
            raise UnknownName("ONNX has no such tensor type", got=ort_type)
        return found.onnx

    @staticmethod
    def numpy_type_to_torch_type(numpy_type: Any) -> Any:
        try:
            found = dtypes.of_numpy(np.dtype(numpy_type))
        except (KeyError, TypeError):
            raise UnknownName("torch has no such type", got=numpy_type) from None
        return TypeHelper.ort_type_to_torch_type(f"tensor({found.ort})")

    @staticmethod
    def torch_type_to_numpy_type(torch_type: Any) -> Any:
        name = str(torch_type).removeprefix("torch.")
        for found in dtypes.every():
            if TORCH_NAMES.get(found.name) == name and _is_numpys(found):
                return TypeHelper.ort_type_to_numpy_type(f"tensor({found.ort})")
        raise UnknownName("numpy has no such type", got=torch_type)

    @staticmethod
    def get_io_onnx_type_map(ort_session: Session) -> dict[str, int]:
        return {v.name: TypeHelper.ort_type_to_onnx_type(v.type) for v in _values(ort_session)}

    @staticmethod
    def get_io_numpy_type_map(ort_session: Session) -> dict[str, Any]:
        return {v.name: TypeHelper.ort_type_to_numpy_type(v.type) for v in _values(ort_session)}

    @staticmethod
    def get_io_torch_type_map(ort_session: Session) -> dict[str, Any]:
        return {v.name: TypeHelper.ort_type_to_torch_type(v.type) for v in _values(ort_session)}


class IOBindingHelper:
    """Bound torch tensors of a decoder: input_ids, position_ids, attention_mask, past_0, past_1 and so on."""

    @staticmethod
    def get_output_buffers(
        ort_session: Session, output_shapes: Mapping[str, Sequence[int]], device: Any
    ) -> dict[str, Any]:
        """A flat tensor for each output, large enough for its shape."""
        torch = importlib.import_module("torch")
        kinds = {
            name: TypeHelper.ort_type_to_torch_type(TypeHelper.get_output_type(ort_session, name))
            for name in output_shapes
        }
        return {
            name: torch.empty(math.prod(shape), dtype=kinds[name], device=device)
            for name, shape in output_shapes.items()
        }

    @staticmethod
    def prepare_io_binding(
        ort_session: Session,
        input_ids: Any,
        position_ids: Any,
        attention_mask: Any,
        past: Sequence[Any] | None,
        output_buffers: Mapping[str, Any],
        output_shapes: Mapping[str, Sequence[int]],
    ) -> Any:
        """Bind the tensors that are not None, and every output to its buffer; the binding keeps them alive."""
        kinds = TypeHelper.get_io_onnx_type_map(ort_session)
        binding = ort_session.io_binding()
        tensors = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        tensors |= {f"past_{i}": tensor for i, tensor in enumerate(past or ())}
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            if not tensor.is_contiguous():
                raise InvalidArgument("a bound tensor must be contiguous", where=f"input {name!r}")
            where = tensor.data_ptr() or input_ids.data_ptr()
            binding.bind_input(name, tensor.device.type, 0, kinds[name], list(tensor.shape), where)
        for meta in ort_session.get_outputs():
            if meta.name not in output_buffers or meta.name not in output_shapes:
                raise UnknownName("an output has no buffer or no shape", where=f"output {meta.name!r}")
            buffer = output_buffers[meta.name]
            shape = list(output_shapes[meta.name])
            if math.prod(shape) > buffer.numel():
                raise InvalidArgument(
                    "a buffer is too small", where=f"output {meta.name!r}", expected=shape, got=buffer.numel()
                )
            binding.bind_output(meta.name, buffer.device.type, 0, kinds[meta.name], shape, buffer.data_ptr())
        binding.bound_tensors = tensors, output_buffers
        return binding

    @staticmethod
    def get_outputs_from_io_binding_buffer(
        ort_session: Session,
        output_buffers: Mapping[str, Any],
        output_shapes: Mapping[str, Sequence[int]],
        return_numpy: bool = True,
    ) -> list[Any]:
        """Copies of the outputs, in the session's order, with their shapes."""
        copies = []
        for meta in ort_session.get_outputs():
            shape = list(output_shapes[meta.name])
            copy = output_buffers[meta.name][: math.prod(shape)].reshape(shape).clone().detach()
            copies.append(copy.cpu().numpy() if return_numpy else copy)
        return copies


def _values(session: Session) -> list[Any]:
    return [*session.get_inputs(), *session.get_outputs()]


def _found(metas: Sequence[Any], name: str, what: str) -> str:
    for meta in metas:
        if meta.name == name:
            return str(meta.type)
    raise UnknownName(f"the session has no such {what}", expected=[m.name for m in metas], got=repr(name))


def _is_numpys(dtype: DType) -> bool:
    """Whether the type is one of numpy's own."""
    return dtype is not dtypes.string and not dtype.numpy_name.startswith("ml_dtypes.")
