"""Preparing a model for quantization: shapes inferred, operators fused and folded, as onnxruntime's function of this
module does."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from sardonyx.errors import InvalidArgument
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Graph, Model, Value
from sardonyx.model.load import load
from sardonyx.model.save import ExternalData, save
from sardonyx.normalize.run import normalize, raise_opset, unify_opsets
from sardonyx.optimize.api import optimize_model
from sardonyx.optimize.symbolic import Facts
from sardonyx.quantization.companions import companions

if TYPE_CHECKING:
    import onnx

logger = logging.getLogger(__name__)

PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")
"""The entry of a model's metadata by which onnxruntime's quantizer knows a prepared model."""

LEAST_OPSET, RAISED_OPSET = 11, 13
"""The quantizer's lowest opset, and that to which older models are raised."""


def quant_pre_process(
    input_model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    output_model_path: str | os.PathLike[str] | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    **deprecated_kwargs: Any,
) -> None:
    """Write a model with the shapes of all values, optimized at the basic level.

    The nodes of a model with operators of com.microsoft stay as they are: it was optimized before. Shapes are left out
    only if both of their inferences are skipped: here they are one, with symbolic dimensions. ``auto_merge``,
    ``int_max``, ``guess_output_rank`` and ``verbose`` have no effect, the inference needs no such help.
    ``external_data_location`` needs ``all_tensors_to_one_file``.
    """
    source = deprecated_kwargs.pop("input_model_path", None) if input_model is None else input_model
    if deprecated_kwargs:
        raise InvalidArgument("unknown arguments of quant_pre_process", got=sorted(deprecated_kwargs))
    if source is None or output_model_path is None:
        raise InvalidArgument(
            "quant_pre_process reads a model and writes a file", expected="input_model, output_model_path"
        )
    if external_data_location is not None and not (save_as_external_data and all_tensors_to_one_file):
        raise InvalidArgument(
            "external_data_location names one file for all weights",
            expected="save_as_external_data=True, all_tensors_to_one_file=True",
        )
    outside = ExternalData(external_data_location, external_data_size_threshold, all_tensors_to_one_file)
    model = prepared(load(source), optimize=not skip_optimization, shapes=not (skip_onnx_shape and skip_symbolic_shape))
    save(model, output_model_path, external=outside if save_as_external_data else None)


def prepared(model: Model, *, optimize: bool = True, shapes: bool = True) -> Model:
    """The model for quantization; the argument may be changed."""
    unify_opsets(model)
    if model.opsets.get("", 1) < LEAST_OPSET:
        raise_opset(model, RAISED_OPSET)
    if optimize and any(node.domain == "com.microsoft" for node in model.graph.all_nodes()):
        logger.info("the nodes stay as they are: operators of com.microsoft show that the model was optimized before")
    elif optimize:
        model = optimize_model(model, "basic", spelling="portable").model
    if shapes:
        infer_shapes(model)
    key, text = PREPARED
    model.metadata.setdefault(key, text)
    return model


def infer_shapes(model: Model) -> None:
    """Give every value the type that a normalized copy of the model infers for it."""
    copy = clone(model)
    normalize(copy)
    Facts().walk(copy.graph)
    found = {v.name: v for v in _values(copy.graph)}
    for value in _values(model.graph):
        better = found.get(value.name)
        if better is not None and better.type is not None and (value.dtype is None or better.dtype is value.dtype):
            value.type = better.type


def _values(graph: Graph) -> list[Value]:
    """What the nodes of the main graph compute."""
    return [v for node in graph.nodes for v in node.outputs if v.name]


__getattr__ = companions(__name__)
