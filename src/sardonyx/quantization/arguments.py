"""Checks of the arguments of ``quantize_static`` and ``quantize_dynamic``, before anything is computed."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

from sardonyx.ir.graph import Model
from sardonyx.quantization.kinds import QuantFormat, QuantType, quant_type_of
from sardonyx.quantization.misuse import Misuse

E = TypeVar("E", bound=Enum)


def member(kind: type[E], value: Any, name: str) -> E:
    """A member of an enumeration; one of onnxruntime's, of the same name, stands for ours, and a
    ``TensorProto.DataType`` for a type.
    """
    if isinstance(value, kind):
        return value
    if isinstance(value, Enum) and type(value).__name__ == kind.__name__ and value.name in kind.__members__:
        return kind[value.name]
    if kind is QuantType and isinstance(value, int) and value in {each.tensor_type for each in QuantType}:
        return cast(E, quant_type_of(value))
    known = ", ".join(f"{kind.__name__}.{each}" for each in kind.__members__)
    raise Misuse(f"{name} is a {kind.__name__}", expected=known, got=repr(value))


def names(given: Iterable[str] | None, what: str) -> tuple[str, ...]:
    """Names of operators or nodes; a single text is no list of them."""
    if given is None:
        return ()
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise Misuse(f"{what} is a list of names", got=repr(given), hint=f"write [{given!r}]")
    found = tuple(given)
    for each in found:
        if not isinstance(each, str):
            raise Misuse(f"{what} is a list of names", got=repr(each))
    return found


def check_operators(model: Model, given: Iterable[str]) -> None:
    """Refuse types of operators that neither the model nor onnx has: most likely they are misspelt."""
    import onnx

    present = {node.op_type for node in model.graph.all_nodes()}
    unknown = [each for each in given if each not in present]
    if not unknown:
        return
    known = present | {schema.name for schema in onnx.defs.get_all_schemas()} | _MICROSOFT
    for each in unknown:
        if each not in known:
            near = difflib.get_close_matches(each, known, 1)
            raise Misuse(
                "op_types_to_quantize has an operator that does not exist",
                got=each,
                hint=f"did you mean {near[0]}?" if near else None,
            )


_MICROSOFT = frozenset({"Attention", "EmbedLayerNormalization"})
"""Operators of com.microsoft that the quantizer has rules for."""


def check_output(path: Any) -> None:
    """Refuse a file that cannot be written before the model is calibrated, which may take long."""
    if not isinstance(path, str | os.PathLike):
        raise Misuse("model_output is the path of the file to write", got=repr(path))
    folder = Path(path).parent
    if not folder.is_dir():
        raise Misuse("the folder of model_output does not exist", where=str(folder))
    if Path(path).is_dir():
        raise Misuse("model_output is a folder", where=str(path))


def check_types(quant_format: QuantFormat, activation_type: QuantType, weight_type: QuantType) -> None:
    """Refuse combinations of types that no runtime runs."""
    pair = f"activation_type={activation_type}, weight_type={weight_type}"
    if activation_type is QuantType.QInt8 and weight_type is QuantType.QUInt8:
        raise Misuse("signed activations need signed weights", got=pair)
    if activation_type.is_float8 != weight_type.is_float8:
        raise Misuse("float8 is the type of activations and weights, or of neither", got=pair)
    if quant_format is QuantFormat.QOperator and {activation_type, weight_type} - {QuantType.QInt8, QuantType.QUInt8}:
        raise Misuse("only QuantFormat.QDQ has types other than int8 and uint8", got=pair)
