"""Quantize a model by the classes behind quantize_static and quantize_dynamic, as optimum's ORTQuantizer does.

Usage: quantizer_classes.py MODEL FOLDER
"""

import os
import sys

import onnx
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantizationMode, QuantType
from onnxruntime.quantization.calibrate import create_calibrator
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry
from onnxruntime.transformers.onnx_model import OnnxModel


class DatasetReader(CalibrationDataReader):
    """Joins samples of lists of numbers to batches, and drops what is left over."""

    def __init__(self, dataset, batch_size):
        self.samples, self.batch_size = iter(dataset), batch_size

    def get_next(self):
        batch = {}
        for _ in range(self.batch_size):
            for name, value in next(self.samples, {}).items():
                batch.setdefault(name, []).append(value)
        return batch if batch and all(len(values) == self.batch_size for values in batch.values()) else None


def excluded_nodes(path):
    """Nodes of normalizations and activations that stay real, and sums before Softmax."""
    model = OnnxModel(onnx.load(path))
    excluded = set()
    paths = {
        "Add": (["Mul", "Div", "Sqrt", "Add", "ReduceMean", "Pow", "Sub", "ReduceMean"], [0, 0, 1, 0, 0, 0, 0, 1]),
        "Mul": (["Mul", "Add", "Erf", "Div"], [0, 1, 0, 0]),
    }
    for last, (op_types, inputs) in paths.items():
        for node in model.get_nodes_by_op_type(last):
            found = model.match_parent_path(node, op_types, inputs)
            if found is not None:
                excluded.update(each.name for each in [*found, node])
    reads = {name for node in model.get_nodes_by_op_type("Softmax") for name in node.input}
    excluded.update(node.name for node in model.get_nodes_by_op_type("Add") if reads.intersection(node.output))
    return excluded


def ranges(path, dataset, method, op_types, augmented):
    calibrator = create_calibrator(
        model=path,
        op_types_to_calibrate=op_types,
        calibrate_method=method,
        augmented_model_path=augmented,
        use_external_data_format=False,
        extra_options={
            "symmetric": False,
            "num_bins": 256,
            "num_quantized_bins": 128,
            "percentile": 99.99,
            "moving_average": False,
            "averaging_constant": 0.01,
        },
    )
    calibrator.collect_data(DatasetReader(dataset, 2))
    return calibrator.compute_data()


def quantize(path, output, factory, op_types, tensors_range=None, external=False, **arguments):
    quantizer = factory(
        model=onnx.load(path),
        per_channel=True,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=tensors_range,
        reduce_range=False,
        nodes_to_quantize=[],
        nodes_to_exclude=sorted(excluded_nodes(path)),
        op_types_to_quantize=op_types,
        extra_options={
            "WeightSymmetric": True,
            "ActivationSymmetric": False,
            "EnableSubgraph": False,
            "ForceSymmetric": False,
            "AddQDQPairToWeight": False,
            "DedicatedQDQPair": False,
            "QDQOpTypePerChannelSupportToAxis": {"MatMul": 1},
        },
        **arguments,
    )
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(output, external)
    return output


def quantize_all(path, folder, dataset):
    made = {}
    for kind in ("dynamic", "static", "percentile", "operators"):
        made[kind] = os.path.join(folder, f"{kind}.onnx")
    quantize(
        path, made["dynamic"], ONNXQuantizer, list(IntegerOpsRegistry), mode=QuantizationMode.IntegerOps, static=False
    )
    op_types = sorted({"MatMul", "Add"} & QLinearOpsRegistry.keys())
    augmented = os.path.join(folder, "augmented.onnx")
    found = ranges(path, dataset, CalibrationMethod.MinMax, op_types, augmented)
    assert "MatMul" in QDQRegistry and QuantFormat.QDQ.value == 1
    quantize(path, made["static"], QDQQuantizer, op_types, found)
    mode = {"mode": QuantizationMode.QLinearOps, "static": True}
    quantize(path, made["operators"], ONNXQuantizer, ["MatMul"], found, external=True, **mode)
    found = ranges(path, dataset, CalibrationMethod.Percentile, op_types, augmented)
    quantize(path, made["percentile"], QDQQuantizer, op_types, found)
    return made


if __name__ == "__main__":
    ids = [[(7 * i + j) % 13 for j in range(5)] for i in range(8)]
    dataset = [{"input_ids": each, "token_type_ids": [0] * 5, "attention_mask": [1] * 5} for each in ids]
    print(quantize_all(sys.argv[1], sys.argv[2], dataset))
