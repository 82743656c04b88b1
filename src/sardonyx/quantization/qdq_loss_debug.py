"""Activations and weights of a float model and a quantized one, side by side, with onnxruntime's names.

    modify_model_output_intermediate_tensors("model.onnx", "augmented.onnx")
    values = collect_activations("augmented.onnx", reader)

``sardonyx.quantization.debug`` goes further: it names the layer at fault and what to change.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.model.load import load
from sardonyx.model.save import ExternalData, save
from sardonyx.normalize.edits import constant
from sardonyx.normalize.run import raise_opset
from sardonyx.ops.quantize import dequantize_linear
from sardonyx.quantization.companions import companions
from sardonyx.quantization.data import feeds_of
from sardonyx.quantization.running import check_feeds

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Arrays = Sequence[Array]
ErrorOf = Callable[[Any, Any], float]

SAVED = "_ReshapedSavedOutput"
"""What the names of added outputs end with."""
QUANTIZED_INPUT, DEQUANTIZED_OUTPUT, QUANTIZED = "_QuantizeLinear_Input", "_DequantizeLinear_Output", "_quantized"
"""What the quantizer adds to the names of tensors."""
REALS = (dtypes.f32, dtypes.f16)


def modify_model_output_intermediate_tensors(
    input_model_path: str | os.PathLike[str],
    output_model_path: str | os.PathLike[str],
    op_types_for_saving: Sequence[str] | None = None,
    save_as_external_data: bool = False,
) -> None:
    """Write a copy of a model with every f32 and f16 tensor as a further output, flattened.

    ``op_types_for_saving`` restricts them to the inputs and outputs of these operators.
    """
    model = load(input_model_path)
    raise_opset(model, 5)  # Reshape by an input
    graph = model.graph
    shape = graph.add_const(np.array([-1], np.int64), "LinearReshape")
    returned = set(graph.output_names)
    for value in _tensors(graph, frozenset(op_types_for_saving or ())):
        name = f"{value.name}{SAVED}"
        if name not in returned:
            saved = Value(name, TensorType(_dtype(value), (None,)))
            graph.append(Node("Reshape", [value, shape], [saved], name=name))
            graph.add_output(saved)
    save(model, output_model_path, external=ExternalData() if save_as_external_data else None)


def _tensors(graph: Graph, op_types: frozenset[str]) -> list[Value]:
    """Computed values and inputs that are reals."""
    found: dict[Value, None] = {}
    for node in graph.nodes:
        if not op_types or node.op_type in op_types:
            found.update((v, None) for v in (*node.inputs, *node.outputs) if v is not None)
    return [v for v in found if v.name and v.dtype in REALS and v.const is None]


def _dtype(value: Value) -> dtypes.DType:
    assert value.dtype is not None
    return value.dtype


def collect_activations(
    augmented_model: str | os.PathLike[str] | bytes,
    input_reader: Any,
    session_options: Any = None,
    execution_providers: Sequence[str] | None = None,
) -> dict[str, list[Array]]:
    """The values of the added outputs for each run, by name of the tensor. By default nothing is optimized."""
    from sardonyx.session.enums import GraphOptimizationLevel
    from sardonyx.session.options import SessionOptions
    from sardonyx.session.session import InferenceSession

    if session_options is None:
        session_options = SessionOptions()
        session_options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"] if execution_providers is None else list(execution_providers)
    session = InferenceSession(augmented_model, session_options, providers=providers)
    names = [each.name for each in session.get_outputs() if each.name.endswith(SAVED)]
    collected: dict[str, list[Array]] = {}
    for feeds in feeds_of(input_reader):
        check_feeds(session, feeds)
        for name, array in zip(names, session.run(names, dict(feeds)), strict=True):
            collected.setdefault(name.removesuffix(SAVED), []).append(array)
    if not collected:
        raise RuntimeException(
            "No data is collected while running augmented model!",
            hint="the reader is empty or was read before, or the model has no added outputs",
        )
    return collected


def create_activation_matching(
    qdq_activations: Mapping[str, Arrays], float_activations: Mapping[str, Arrays] | None = None
) -> dict[str, dict[str, Arrays]]:
    """By name of the tensor: its values before (``pre_qdq``) and after (``post_qdq``) QuantizeLinear and
    DequantizeLinear, and those of the float model (``float``), if it has them.
    """
    found: dict[str, dict[str, Arrays]] = {}
    for name, values in qdq_activations.items():
        pair: tuple[str, Arrays | None, Arrays | None] | None = None
        if name.endswith(QUANTIZED_INPUT):
            plain = name.removesuffix(QUANTIZED_INPUT)
            pair = plain, values, qdq_activations.get(plain)
        elif name.removesuffix("_1").endswith(DEQUANTIZED_OUTPUT):
            plain = name.removesuffix("_1").removesuffix(DEQUANTIZED_OUTPUT)
            pair = plain, qdq_activations.get(plain), values
        if pair is not None and pair[1] is not None and pair[2] is not None:
            found[pair[0]] = {"pre_qdq": pair[1], "post_qdq": pair[2]}
    for name, match in found.items():
        if float_activations and name in float_activations:
            match["float"] = float_activations[name]
    return found


def create_weight_matching(
    float_model_path: str | os.PathLike[str], qdq_model_path: str | os.PathLike[str]
) -> dict[str, dict[str, Array]]:
    """By name of the weight: its values in the float model (``float``), and those that the quantized model's
    DequantizeLinear gives (``dequantized``).
    """
    known = load(float_model_path).graph.initializers
    found: dict[str, dict[str, Array]] = {}
    for node in load(qdq_model_path).graph.nodes:
        source = node.inputs[0] if node.op_type == "DequantizeLinear" else None
        if source is None or source.const is None:
            continue
        name = source.name.removesuffix(QUANTIZED)
        if name == source.name:
            logger.error(
                "%r: the name of a quantized weight ends with %r; this one is left out", source.name, QUANTIZED
            )
        elif name not in known or known[name].const is None:
            logger.error("%r: the float model has no weight %r", source.name, name)
        else:
            found[name] = {"float": known[name].numpy(), "dequantized": dequantized(node)}
    return found


def dequantized(node: Node) -> Array:
    """What a DequantizeLinear of constants gives."""
    operands = [constant(v) for v in node.inputs]
    if any(v is not None and array is None for v, array in zip(node.inputs, operands, strict=True)):
        raise InvalidArgument("the scale or the zero point of a weight is no constant", where=node.label)
    attrs = {key: node.attrs[key] for key in ("axis", "block_size", "output_dtype") if key in node.attrs}
    return dequantize_linear(*operands, **attrs)  # type: ignore[arg-type]


def compute_signal_to_quantization_noice_ratio(x: Arrays | Array, y: Arrays | Array) -> float:
    """The ratio of the norms of ``x`` and of ``x - y`` in decibels."""
    xs, ys = ([v] if isinstance(v, np.ndarray) else list(v) for v in (x, y))
    if len(xs) != len(ys):
        raise RuntimeError("Unequal number of tensors to compare!")
    left, right = (np.concatenate([np.asarray(v).reshape(-1) for v in vs]).astype(np.float64) for vs in (xs, ys))
    least = float(np.finfo(np.float64).eps)
    signal, noise = (max(float(np.linalg.norm(v)), least) for v in (left, left - right))
    return 20 * math.log10(signal / noise)


compute_signal_to_quantization_noise_ratio = compute_signal_to_quantization_noice_ratio


def compute_weight_error(
    weights_match: Mapping[str, Mapping[str, Array]],
    err_func: ErrorOf = compute_signal_to_quantization_noice_ratio,
) -> dict[str, float]:
    """The error of each weight of ``create_weight_matching``."""
    return {name: err_func(match["float"], match["dequantized"]) for name, match in weights_match.items()}


def compute_activation_error(
    activations_match: Mapping[str, Mapping[str, Arrays]],
    err_func: ErrorOf = compute_signal_to_quantization_noice_ratio,
) -> dict[str, dict[str, float]]:
    """The errors of each tensor of ``create_activation_matching``: of its own quantization (``qdq_err``), and
    accumulated since the inputs (``xmodel_err``).
    """
    errors: dict[str, dict[str, float]] = {}
    for name, match in activations_match.items():
        errors[name] = {"qdq_err": err_func(match["pre_qdq"], match["post_qdq"])}
        if match.get("float"):
            errors[name]["xmodel_err"] = err_func(match["float"], match["post_qdq"])
    return errors


__getattr__ = companions(__name__)
