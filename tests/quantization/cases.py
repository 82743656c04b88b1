"""Quantizations that are compared with onnxruntime's: arguments by name, and where the two differ, why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.quantization import QuantFormat, QuantType
from tests.quantization.graphs import NETWORKS, Network
from tests.quantization.operators import OPERATORS, branches, sequence

QDQ, QOperator = QuantFormat.QDQ, QuantFormat.QOperator
I8, U8, I16, U16 = QuantType.QInt8, QuantType.QUInt8, QuantType.QInt16, QuantType.QUInt16
I4, U4 = QuantType.QInt4, QuantType.QUInt4


@dataclass
class Case:
    """``differs``: why our file is another one than onnxruntime's; it must then be no worse."""

    name: str
    network: Callable[[], Network]
    arguments: dict[str, Any] = field(default_factory=dict)
    differs: str = ""
    tolerance: float = 0.02
    least: float = 0.1


UNLIKE: dict[tuple[str, QuantFormat], str] = {
    ("Where", QOperator): "onnxruntime loses a tensor and fails",
    ("two readers", QOperator): "onnxruntime drops a Relu whose input has other readers, and shares biases",
    ("two readers", QDQ): "the second bias has another name",
    ("shared weights", QDQ): "the second bias has another name",
    ("shared weights", QOperator): "onnxruntime takes one int32 bias for two products of scales",
    ("Constant nodes", QDQ): "onnxruntime quantizes the results of Constant nodes while the model runs",
    ("Constant nodes", QOperator): "onnxruntime quantizes the results of Constant nodes while the model runs",
    ("MatMul batched", QDQ): "onnxruntime's own kernel refuses its file with channels",
    ("MatMul batched", QOperator): "onnxruntime's own kernel refuses its file with channels",
    ("MatMul vector", QOperator): "onnxruntime's own kernel refuses its file with channels",
    ("Gemm with factors", QDQ): "onnxruntime drops beta",
    ("Gemm with factors", QOperator): "onnxruntime's bias ignores alpha, by which QGemm multiplies it",
}
"""Networks of ``OPERATORS`` whose quantized forms differ."""


def of_operators() -> Iterator[Case]:
    for operator, network in OPERATORS.items():
        for quant_format in (QDQ, QOperator):
            for kind in (U8, I8):
                for per_channel in (False, True):
                    granularity = "channels" if per_channel else "tensors"
                    yield Case(
                        f"{operator}, {quant_format}, {kind}, {granularity}",
                        network,
                        {"quant_format": quant_format, "activation_type": kind, "per_channel": per_channel},
                        UNLIKE.get((operator, quant_format), ""),
                    )


AS_ASKED = {"AccuracyGuard": 0}
"""For ranges so narrow that the accuracy guard would quantize in another way; onnxruntime ignores this option."""

OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"ActivationSymmetric": True}, ""),
    ({"ActivationRestrictedAsymmetric": True}, ""),
    ({"WeightSymmetric": False}, ""),
    ({"WeightSymmetric": True}, ""),
    ({"EnableSubgraph": True}, ""),
    ({"ForceQuantizeNoInputCheck": True}, "onnxruntime restores and quantizes again what operators pass through"),
    ({"MatMulConstBOnly": True}, ""),
    ({"AddQDQPairToWeight": True}, "onnxruntime leaves initializers that nothing reads"),
    ({"OpTypesToExcludeOutputQuantization": ["Conv", "MatMul", "Add"]}, ""),
    ({"DedicatedQDQPair": True}, ""),
    ({"QDQOpTypePerChannelSupportToAxis": {"MatMul": 1, "Conv": 0}}, ""),
    ({"CalibTensorRangeSymmetric": True}, "onnxruntime drops Relu and Clip though the type holds what they cut"),
    ({"CalibMovingAverage": True, **AS_ASKED}, ""),
    ({"CalibMovingAverage": True, "CalibMovingAverageConstant": 0.3, "CalibStridedMinMax": 2, **AS_ASKED}, ""),
    ({"CalibStridedMinMax": 2}, ""),
    ({"CalibMaxIntermediateOutputs": 3}, "onnxruntime forgets the samples of each full batch"),
    ({"QuantizeBias": False}, ""),
    ({"UseQDQContribOps": True}, ""),
    ({"MinimumRealRange": 3.0}, ""),
    ({"QDQKeepRemovableActivations": True}, ""),
    ({"QDQDisableWeightAdjustForInt32Bias": True}, ""),
    ({"extra.Sigmoid.nnapi": True}, ""),
]
"""Values other than the defaults, and why the files differ."""

SETTINGS = [
    ("convnet", QDQ, U8), ("convnet", QOperator, I8), ("perceptron", QDQ, I8), ("perceptron", QOperator, U8),
    ("transformer", QDQ, U8), ("transformer", QOperator, U8),
]  # fmt: skip


def of_options() -> Iterator[Case]:
    for options, differs in OPTIONS:
        for name, quant_format, kind in SETTINGS:
            arguments = {
                "quant_format": quant_format,
                "activation_type": kind,
                "per_channel": True,
                "extra_options": options,
            }
            yield Case(f"{options}, {name}, {quant_format}, {kind}", NETWORKS[name], arguments, differs)


def of_choices() -> Iterator[Case]:
    """Which operators and nodes are quantized, and from which data."""
    choices: list[tuple[str, dict[str, Any]]] = [
        ("convnet", {"op_types_to_quantize": ["Conv"]}),
        ("convnet", {"op_types_to_quantize": ["Conv", "Relu", "MaxPool"]}),
        ("convnet", {"nodes_to_quantize": ["conv0", "relu0", "pool0", "gemm"]}),
        ("convnet", {"nodes_to_exclude": ["conv1", "add", "softmax"]}),
        ("convnet", {"nodes_to_quantize": ["conv0", "conv1"], "nodes_to_exclude": ["conv1"]}),
        ("perceptron", {"op_types_to_quantize": ["Gemm", "MatMul"]}),
        ("perceptron", {"op_types_to_quantize": ["Add", "Mul", "Split"]}),
        ("transformer", {"op_types_to_quantize": ["MatMul"]}),
        ("transformer", {"op_types_to_quantize": ["Gather", "LayerNormalization", "Transpose", "Reshape"]}),
        ("transformer", {"nodes_to_exclude": ["scores", "context", "gather"]}),
    ]
    for name, choice in choices:
        for quant_format in (QDQ, QOperator):
            arguments = {"quant_format": quant_format, "activation_type": U8, **choice}
            yield Case(f"{name}, {quant_format}, {choice}", NETWORKS[name], arguments)


KINDS = [(a, w) for a in (U8, I8, U16, I16) for w in (I8, U8, I16, U16, I4, U4) if not (a is I8 and w is U8)]


def of_types() -> Iterator[Case]:
    """QDQ format has types of 4 and 16 bits too."""
    for activation, weight in KINDS:
        for name in ("convnet", "perceptron"):
            arguments = {"activation_type": activation, "weight_type": weight, "per_channel": name == "convnet"}
            yield Case(f"{name}, {activation} by {weight}", NETWORKS[name], arguments)


def of_opsets() -> Iterator[Case]:
    for opset in (11, 12, 13, 15, 18, 19, 21, 22):
        for quant_format in (QDQ, QOperator):
            name = "convnet" if quant_format is QDQ else "perceptron"
            arguments = {"quant_format": quant_format, "activation_type": U8, "per_channel": opset >= 13}
            yield Case(f"{name} of opset {opset}, {quant_format}", lambda n=name, o=opset: NETWORKS[n](o), arguments)


def _real(number: float) -> np.ndarray:
    return np.array(number, np.float32)


OVERRIDES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("scale of an activation", {"c0": [{"scale": _real(0.05), "zero_point": np.array(100, np.uint8)}]}, {}),
    ("range of an activation", {"c0": [{"rmin": _real(-1.0), "rmax": _real(2.0)}]}, {}),
    ("symmetry of an activation", {"a": [{"symmetric": True}]}, {}),
    ("type of an activation", {"a": [{"quant_type": U16}]}, {}),
    ("type of a weight", {"w1": [{"quant_type": I16, "symmetric": True}]}, {}),
    ("reduced range of a weight", {"w1": [{"reduce_range": True}]}, {}),
    ("range of a weight", {"w1": [{"rmin": -0.4, "rmax": 0.4}]}, {}),
    ("channels of one weight", {"w1": [{"axis": 0, "quant_type": I8}]}, {}),
    ("a tensor in place of channels", {"w1": [{"quant_type": I8}]}, {"per_channel": True}),
    ("ranges of channels", {"w1": [{"axis": 0, "rmin": -0.1 * i - 0.3, "rmax": 0.1 * i + 0.2} for i in range(8)]}, {}),
    ("a second type", {"m0": [{"quant_type": U8, "convert": {"quant_type": U16, "recv_nodes": {"conv1"}}}]}, {}),
    ("a second type for all", {"a": [{"quant_type": U8, "convert": {"quant_type": U16}}]}, {}),
    ("a bias", {"b1": [{"quant_type": I8}]}, {}),
]


def of_overrides() -> Iterator[Case]:
    for name, overrides, others in OVERRIDES:
        arguments = {"activation_type": U8, "extra_options": {"TensorQuantOverrides": overrides}, **others}
        yield Case(f"override: {name}", NETWORKS["convnet"], arguments)


def of_dynamic() -> Iterator[Case]:
    networks = {**NETWORKS, "LSTM": sequence, "one LSTM": lambda: sequence(directions=1), "If": branches}
    for name, network in networks.items():
        for kind in (I8, U8):
            for per_channel in (False, True):
                for options in ({}, {"EnableSubgraph": True}, {"MatMulConstBOnly": False}, {"WeightSymmetric": False}):
                    arguments = {"static": False, "weight_type": kind, "per_channel": per_channel}
                    is_refused = "LSTM" in name and per_channel and "WeightSymmetric" in options
                    yield Case(
                        f"dynamic {name}, {kind}, {'channels' if per_channel else 'tensors'}, {options}",
                        network,
                        {**arguments, "extra_options": options},
                        "onnxruntime's kernel refuses zero points other than 0" if is_refused else "",
                    )
    for choice in (
        {"op_types_to_quantize": ["MatMul", "Gemm"]},
        {"op_types_to_quantize": ["Gather"]},
        {"nodes_to_exclude": ["matmul_f"]},
        {"nodes_to_quantize": ["matmul_f", "matmul_q"]},
        {"reduce_range": True, "per_channel": True},
    ):
        yield Case(f"dynamic transformer, {choice}", NETWORKS["transformer"], {"static": False, **choice})


CASES = [
    *of_operators(), *of_options(), *of_choices(), *of_types(), *of_opsets(), *of_overrides(), *of_dynamic(),
]  # fmt: skip
