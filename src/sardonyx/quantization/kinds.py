"""The enumerations of quantization, with onnxruntime's names and values."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from sardonyx import dtypes
from sardonyx.dtypes import DType

E = TypeVar("E", bound="Named")


class Named(Enum):
    """An enumeration whose members are written and read by name."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls: type[E], text: str) -> E:
        """The member of this name; ValueError if there is none."""
        try:
            return cls[text]
        except KeyError:
            known = ", ".join(member.name for member in cls)
            raise ValueError(f"{text!r} is no {cls.__name__}; it is one of {known}") from None


class QuantType(Named):
    """Element type of quantized tensors."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6

    @property
    def dtype(self) -> DType:
        return dtypes.of_name(_DTYPES[self.name])

    @property
    def tensor_type(self) -> int:
        """``onnx.TensorProto.DataType``."""
        return self.dtype.onnx

    @property
    def is_signed(self) -> bool:
        return self.dtype.kind in ("int", "float")

    @property
    def is_float8(self) -> bool:
        return self is QuantType.QFLOAT8E4M3FN


_DTYPES = {
    "QInt8": "i8",
    "QUInt8": "u8",
    "QFLOAT8E4M3FN": "f8e4m3fn",
    "QInt16": "i16",
    "QUInt16": "u16",
    "QInt4": "i4",
    "QUInt4": "u4",
}


WIDE = frozenset({QuantType.QInt16, QuantType.QUInt16})
NARROW = frozenset({QuantType.QInt4, QuantType.QUInt4})


def quant_type_of(code: object) -> QuantType:
    """The type from a member or from a ``TensorProto.DataType``; ValueError if values are not quantized to it."""
    if isinstance(code, QuantType):
        return code
    for member in QuantType:
        if member.tensor_type == code:
            return member
    raise ValueError(f"values are not quantized to the element type {code!r}")


class QuantFormat(Named):
    """How a quantized model is written: with quantized operators, or with QuantizeLinear and DequantizeLinear around
    operators on reals.
    """

    QOperator = 0
    QDQ = 1


class QuantizationMode(Named):
    """IntegerOps: activations are quantized while the model runs. QLinearOps: by scales known in advance."""

    IntegerOps = 0
    QLinearOps = 1


class CalibrationMethod(Enum):
    """How the range of a tensor is chosen from calibration data."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3
