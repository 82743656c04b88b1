"""A model of which any axis may have no elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model

Array = np.ndarray[Any, Any]
OPSETS = '"" : 21, "ai.onnx.ml" : 3'


@dataclass(frozen=True)
class Case:
    """A graph in ONNX's text, with sizes by name."""

    body: str
    inputs: str
    outputs: str
    sizes: Mapping[str, int]
    """That are not empty. Each of them is set to 0, one after the other, unless its name ends with ``_``."""
    constants: Mapping[str, tuple[int, ...] | Array] = field(default_factory=dict)
    """Weights by their shape, small random numbers, or as they are."""
    top: int = 2
    """Integers that are fed are below it."""
    opsets: str = OPSETS
    precisions: tuple[str, ...] = ("highest",)
    is_random: bool = False
    hangs: tuple[str, ...] = ()
    """Sizes of 0 with which onnxruntime hangs, crashes, reads foreign memory or does not know the shape of a result."""

    @cached_property
    def model(self) -> onnx.ModelProto:
        head = f"<ir_version: 10, opset_import: [{self.opsets}]>"
        made = parse_model(f"{head} g ({self.inputs}) => ({self.outputs}) {{ {self.body} }}")
        rng = np.random.default_rng(1)
        for name, given in self.constants.items():
            drawn = rng.standard_normal(given if isinstance(given, tuple) else 0).astype("f") * np.float32(0.2)
            content = given if isinstance(given, np.ndarray) else drawn
            made.graph.initializer.append(numpy_helper.from_array(content, name))
        for output in made.graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
        return made

    @property
    def emptied(self) -> list[dict[str, int]]:
        return [{**self.sizes, name: 0} for name in self.sizes if not name.endswith("_")]

    def feeds(self, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
        rng, found = np.random.default_rng(seed), {}
        for value in self.model.graph.input:
            tensor = value.type.tensor_type
            shape = [d.dim_value if d.HasField("dim_value") else sizes[d.dim_param] for d in tensor.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            if dtype.kind in "iu":
                found[value.name] = rng.integers(0, self.top, shape).astype(dtype)
            else:
                found[value.name] = rng.standard_normal(shape).astype(dtype)
        return found


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


TILES = ("highest", "high", "medium")
"""Every precision that chips with tiles have kernels of their own for."""
