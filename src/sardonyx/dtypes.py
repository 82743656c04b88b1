"""One table of element types: their ONNX, numpy and onnxruntime spellings.

Sub-byte types are one array element each in numpy (ml_dtypes) and packed in files; ``nbytes`` counts the packed form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.forks import cached_property
from sardonyx.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterator


class DType(Record, eq=False):
    """An element type. Instances are unique: compare with ``is``."""

    name: str
    """How Sardonyx and its text form write it: ``f32``."""
    onnx: int
    """``onnx.TensorProto.DataType``."""
    ort: str
    """The word onnxruntime puts inside ``tensor(...)``."""
    bits: int
    """Bits of one element in packed storage; 0 for strings."""
    kind: str
    """``float``, ``int``, ``uint``, ``bool``, ``complex`` or ``string``."""
    numpy_name: str

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        if self.numpy_name.startswith(_M):
            import ml_dtypes

            scalar = getattr(ml_dtypes, self.numpy_name.removeprefix(_M))
        else:
            scalar = self.numpy_name
        found: np.dtype[Any] = np.dtype(scalar)
        return found

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def itemsize(self) -> int:
        """Bytes of one element in an array, where narrow types take one each."""
        return (self.bits + 7) // 8

    def nbytes(self, elements: int) -> int:
        """Bytes of ``elements`` packed elements."""
        return (elements * self.bits + 7) // 8

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return (of_name, (self.name,))


_M = "ml_dtypes."
_TABLE = (
    DType("f32", 1, "float", 32, "float", "float32"),
    DType("u8", 2, "uint8", 8, "uint", "uint8"),
    DType("i8", 3, "int8", 8, "int", "int8"),
    DType("u16", 4, "uint16", 16, "uint", "uint16"),
    DType("i16", 5, "int16", 16, "int", "int16"),
    DType("i32", 6, "int32", 32, "int", "int32"),
    DType("i64", 7, "int64", 64, "int", "int64"),
    DType("string", 8, "string", 0, "string", "object"),
    DType("bool", 9, "bool", 8, "bool", "bool"),
    DType("f16", 10, "float16", 16, "float", "float16"),
    DType("f64", 11, "double", 64, "float", "float64"),
    DType("u32", 12, "uint32", 32, "uint", "uint32"),
    DType("u64", 13, "uint64", 64, "uint", "uint64"),
    DType("c64", 14, "complex64", 64, "complex", "complex64"),
    DType("c128", 15, "complex128", 128, "complex", "complex128"),
    DType("bf16", 16, "bfloat16", 16, "float", _M + "bfloat16"),
    DType("f8e4m3fn", 17, "float8e4m3fn", 8, "float", _M + "float8_e4m3fn"),
    DType("f8e4m3fnuz", 18, "float8e4m3fnuz", 8, "float", _M + "float8_e4m3fnuz"),
    DType("f8e5m2", 19, "float8e5m2", 8, "float", _M + "float8_e5m2"),
    DType("f8e5m2fnuz", 20, "float8e5m2fnuz", 8, "float", _M + "float8_e5m2fnuz"),
    DType("u4", 21, "uint4", 4, "uint", _M + "uint4"),
    DType("i4", 22, "int4", 4, "int", _M + "int4"),
    DType("f4e2m1", 23, "float4e2m1", 4, "float", _M + "float4_e2m1fn"),
    DType("f8e8m0", 24, "float8e8m0", 8, "float", _M + "float8_e8m0fnu"),
    DType("u2", 25, "uint2", 2, "uint", _M + "uint2"),
    DType("i2", 26, "int2", 2, "int", _M + "int2"),
    DType("f6e2m3", 27, "float6e2m3", 6, "float", _M + "float6_e2m3fn"),
    DType("f6e3m2", 28, "float6e3m2", 6, "float", _M + "float6_e3m2fn"),
)

_BY_NAME = {t.name: t for t in _TABLE}
_BY_ONNX = {t.onnx: t for t in _TABLE}
_BY_ORT = {t.ort: t for t in _TABLE}
_BY_NUMPY: dict[np.dtype[Any], DType] = {}

f32, f64, f16, bf16 = _BY_NAME["f32"], _BY_NAME["f64"], _BY_NAME["f16"], _BY_NAME["bf16"]
i64, i32, i8, u8, bool_ = _BY_NAME["i64"], _BY_NAME["i32"], _BY_NAME["i8"], _BY_NAME["u8"], _BY_NAME["bool"]
string = _BY_NAME["string"]


def every() -> Iterator[DType]:
    return iter(_TABLE)


def of_name(name: str) -> DType:
    return _BY_NAME[name]


def of_onnx(code: int) -> DType:
    """The type with this ``TensorProto.DataType``; KeyError when ONNX has none."""
    return _BY_ONNX[code]


def of_ort(word: str) -> DType:
    """The type that onnxruntime writes as ``tensor(word)``."""
    return _BY_ORT[word]


def of_numpy(dtype: np.dtype[Any]) -> DType:
    """The type of a numpy array; any numpy string type is ``string``. KeyError for types ONNX lacks."""
    if not _BY_NUMPY:
        _BY_NUMPY.update({t.numpy: t for t in _TABLE})
    found = _BY_NUMPY.get(dtype)
    if found is not None:
        return found
    if dtype.kind in "USOT":
        return string
    return _BY_NUMPY[dtype.newbyteorder("=")]
