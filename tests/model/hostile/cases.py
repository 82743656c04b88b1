"""What a case is, and short ways to write models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ANY = "SardonyxError"

Source = bytes | onnx.ModelProto | Callable[[Path], Any]
"""A model, or a function that writes it into a folder and gives what to load."""


@dataclass(frozen=True)
class Case:
    name: str
    source: Source
    error: str | None = ANY
    """The class of the exception that must come; None where the model must run; ``runs?`` where either is right."""
    peer: bool = False
    """Whether results must be onnxruntime's, where it is installed and runs the model too."""
    feeds: dict[str, Any] = field(default_factory=lambda: {"x": np.array([1, 2], np.float32)})


def node(op_type: str, inputs: str, outputs: str = "y", *, domain: str = "", **attrs: Any) -> onnx.NodeProto:
    """A node; inputs and outputs are words, ``_`` means an omitted one."""
    named = [["" if w == "_" else w for w in words.split()] for words in (inputs, outputs)]
    return helper.make_node(op_type, *named, domain=domain, **attrs)


def value(name: str, dtype: int = TensorProto.FLOAT, shape: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def const(name: str, content: Any, dtype: Any = None) -> onnx.TensorProto:
    array = np.asarray(content)
    if dtype is None and array.dtype.kind in "if":
        dtype = np.int64 if array.dtype.kind == "i" else np.float32
    return numpy_helper.from_array(array if dtype is None else array.astype(dtype), name)


def model(
    nodes: Sequence[onnx.NodeProto] | onnx.NodeProto,
    *constants: Any,
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[onnx.ValueInfoProto] | None = None,
    opset: int = 21,
    ir: int = 10,
    functions: Sequence[onnx.FunctionProto] = (),
    imports: dict[str, int] | None = None,
) -> onnx.ModelProto:
    """x: float[2] -> y by default. Constants are tensors or sparse tensors."""
    graph = helper.make_graph(
        [nodes] if isinstance(nodes, onnx.NodeProto) else list(nodes),
        "g",
        [value("x", TensorProto.FLOAT, [2])] if inputs is None else list(inputs),
        [value("y", TensorProto.FLOAT)] if outputs is None else list(outputs),
        [c for c in constants if isinstance(c, onnx.TensorProto)],
        sparse_initializer=[c for c in constants if isinstance(c, onnx.SparseTensorProto)],
    )
    opsets = {"": opset} | (imports or {})
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()], functions=list(functions)
    )
    made.ir_version = ir
    return made


def untyped(name: str = "y") -> onnx.ValueInfoProto:
    """An output whose type is left to inference."""
    return onnx.ValueInfoProto(name=name)


def body(nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: str) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "body", list(inputs), [untyped(w) for w in outputs.split()])
