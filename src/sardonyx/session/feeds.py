"""Checks and converts feeds: one prepared check per input.

A check returns the value in the engine's form, or raises. The common case, an array that needs no conversion, costs a
few comparisons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.errors import InvalidArgument
from sardonyx.ir.graph import Value
from sardonyx.ir.sparse import SparseTensor as Coordinates
from sardonyx.ir.types import MapType, OptionalType, SequenceType, SparseTensorType, TensorType, ValueType, ort_name
from sardonyx.session import dlpack
from sardonyx.session.misuse import Misuse
from sardonyx.session.native_values import NativeValue, type_name
from sardonyx.session.sparse import NativeSparseTensor, SparseTensor
from sardonyx.session.values import OrtValue

Array = np.ndarray[Any, Any]
Check = Callable[[Any], Any]

_FIX = "Please fix either the inputs/outputs or the model."


def check_for(value: Value) -> Check:
    """The check of one model input."""
    return _check(value.name, value.type)


def _check(name: str, t: ValueType | None) -> Check:
    if isinstance(t, TensorType):
        return _TensorCheck(name, t).checked
    if isinstance(t, OptionalType):
        inner = _check(name, t.elem)
        return lambda given: None if _unwrapped(given) is None else inner(given)
    if isinstance(t, SequenceType):
        return _sequence_check(name, t)
    if isinstance(t, MapType):
        return _map_check(name, t)
    if isinstance(t, SparseTensorType):
        return _sparse_check(name, t)
    return _unwrapped


class _TensorCheck:
    __slots__ = ("accepted", "declared", "dtype", "fixed", "is_numeric", "name", "numpy", "rank")

    def __init__(self, name: str, t: TensorType) -> None:
        self.name, self.dtype, self.declared = name, t.dtype, t
        self.numpy = t.dtype.numpy
        self.is_numeric = t.dtype is not dtypes.string
        self.rank = t.rank
        self.accepted: tuple[int, ...] | None = None
        """The last shape that passed."""
        self.fixed = tuple((i, d) for i, d in enumerate(t.shape or ()) if isinstance(d, int) and d >= 0)

    def checked(self, given: Any) -> Array:
        """A bound method: calling it takes two thirds of the time of an object with ``__call__``."""
        if type(given) is np.ndarray and given.dtype is self.numpy and self.is_numeric:
            array = given
        else:
            array = self._converted(given)
        shape = array.shape
        if shape != self.accepted:
            self._examine(shape)
            self.accepted = shape
        return array

    def _examine(self, shape: tuple[int, ...]) -> None:
        if self.rank is None:
            return
        if len(shape) != self.rank:
            raise InvalidArgument(
                f"Invalid rank for input: {self.name} Got: {len(shape)} Expected: {self.rank} {_FIX}",
                expected=self.declared,
                got=list(shape),
            )
        for i, d in self.fixed:
            if shape[i] != d:
                self._refuse_dims(shape)

    def _converted(self, given: Any) -> Array:
        given = _unwrapped(given)
        if isinstance(given, list):
            given = self._from_list(given)
        elif not isinstance(given, np.ndarray):
            given = self._from_object(given)
        dtype = _dtype_of(given)
        if dtype is not self.dtype:
            raise _wrong_type(self.name, f"tensor({dtype.ort})", f"tensor({self.dtype.ort})")
        if dtype is dtypes.string:
            return strings(given)
        return np.asarray(given, self.numpy)

    def _from_list(self, given: list[Any]) -> Array:
        try:
            if self.dtype is dtypes.string:
                return np.array(given, object if not given else None)
            return np.array(given, self.numpy)
        except (ValueError, TypeError, OverflowError) as error:
            raise Misuse(
                "Could not create tensor from given input list", where=f"input {self.name!r}", got=str(error)
            ) from None

    def _from_object(self, given: Any) -> Array:
        if isinstance(given, (dict, Coordinates, NativeSparseTensor)):
            raise _wrong_type(self.name, type_name(given), f"tensor({self.dtype.ort})")
        if given is None:
            raise InvalidArgument(f"Missing Input: {self.name}", expected=self.declared, got=None)
        if isinstance(given, np.generic):
            return np.asarray(given)
        if hasattr(given, "__dlpack__"):
            return dlpack.array_of(given)
        raise _no_array(self.name, given)

    def _refuse_dims(self, shape: tuple[int, ...]) -> None:
        wrong = "".join(f" index: {i} Got: {shape[i]} Expected: {d}\n" for i, d in self.fixed if shape[i] != d)
        raise InvalidArgument(
            f"Got invalid dimensions for input: {self.name} for the following indices\n{wrong} {_FIX}",
            expected=self.declared,
            got=list(shape),
        )


def _sequence_check(name: str, t: SequenceType) -> Check:
    if not isinstance(t.elem, TensorType):
        element = _check(name, t.elem)
        return lambda given: [element(v) for v in _items(name, t, given)]
    elem = t.elem
    check = _TensorCheck(name, TensorType(elem.dtype)).checked

    def tensors(given: Any) -> list[Any]:
        items = _items(name, t, given)
        for item in items:
            if isinstance(item, (list, tuple, dict, str)):
                raise Misuse("CreateSequenceOfTensors: Input is not a tensor", where=f"input {name!r}", got=type(item))
            if isinstance(item, np.ndarray) and _dtype_of(item) is not elem.dtype:
                raise Misuse(
                    "TensorSeq: tensor to be added has a different data type",
                    where=f"input {name!r}",
                    expected=elem,
                    got=type_name(item),
                )
        return [check(item) for item in items]

    return tensors


def _items(name: str, t: ValueType, given: Any) -> list[Any]:
    given = _unwrapped(given)
    if isinstance(given, list):
        return given
    if isinstance(given, np.ndarray):
        raise InvalidArgument(
            f"input with name: '{name}' expected to be of type: {ort_name(t)} but received a tensor",
            expected=ort_name(t),
            got=type_name(given),
        )
    raise _no_array(name, given)


def _map_check(name: str, t: MapType) -> Check:
    is_string = t.key is dtypes.string
    value = t.value.dtype if isinstance(t.value, TensorType) else None

    def convert(given: Any) -> dict[Any, Any]:
        given = _unwrapped(given)
        if not isinstance(given, dict):
            raise _wrong_type(name, type_name(given), ort_name(t))
        out: dict[Any, Any] = {}
        for key, item in given.items():
            if is_string != isinstance(key, str) or not (is_string or isinstance(key, (int, np.integer))):
                kind = "std::string" if is_string else "int64_t"
                raise Misuse(
                    f"Unexpected key type  {type(key)}, it cannot be linked to C type {kind}",
                    where=f"input {name!r}",
                )
            try:
                out[key if is_string else int(key)] = item if value is None else _scalar(item, value)
            except (TypeError, ValueError):
                raise Misuse("Unexpected value type", where=f"input {name!r}[{key!r}]", got=type(item)) from None
        return out

    return convert


def _scalar(item: Any, dtype: DType) -> Any:
    if dtype.is_integer and not isinstance(item, (int, np.integer)):
        raise TypeError
    return str(item) if dtype is dtypes.string else dtype.numpy.type(item).item()


def _sparse_check(name: str, t: SparseTensorType) -> Check:
    def convert(given: Any) -> Coordinates:
        given = _unwrapped(given)
        if isinstance(given, SparseTensor):
            given = given._get_c_tensor()
        if isinstance(given, NativeSparseTensor):
            given = given.coordinates()
        if not isinstance(given, Coordinates):
            raise _wrong_type(name, type_name(given), ort_name(t))
        if given.dtype is not t.dtype:
            raise _wrong_type(name, type_name(given), ort_name(t))
        given.linear()
        return given

    return convert


def strings(array: Array) -> Array:
    """An array of any numpy string type as an array of ``str`` objects."""
    kind = array.dtype.kind
    if kind == "U":
        whole: Array = array.astype(object, order="C")
        return whole
    if kind in "SV":
        flat = [bytes(b).decode("utf-8") for b in array.reshape(-1).tolist()]
    else:
        flat = [v if type(v) is str else str(v) for v in array.reshape(-1).tolist()]
    out = np.empty(array.size, object)
    out[:] = flat
    shaped: Array = out.reshape(array.shape)
    return shaped


def _unwrapped(given: Any) -> Any:
    if isinstance(given, OrtValue):
        given = given._ortvalue
    return given.value if isinstance(given, NativeValue) else given


def _dtype_of(array: Array) -> DType:
    kind = array.dtype.kind
    try:
        return dtypes.of_numpy(array.dtype)
    except KeyError:
        if kind == "V" and array.dtype.fields is None:
            return dtypes.string
        raise Misuse(f"Numpy_type {array.dtype.num} can't be converted to MLDataType.", got=array.dtype) from None


def _wrong_type(name: str, actual: str, expected: str) -> InvalidArgument:
    return InvalidArgument(
        f"Unexpected input data type. Actual: ({actual}) , expected: ({expected})", where=f"input {name!r}"
    )


def _no_array(name: str, given: Any) -> Misuse:
    if hasattr(given, "__iter__"):
        return Misuse(
            f"Input must be a list of dictionaries or a single numpy array for input '{name}'.",
            got=type(given).__name__,
        )
    return Misuse(f"Unable to handle object of type {type(given)}", where=f"input {name!r}", hint="feed a numpy array")
