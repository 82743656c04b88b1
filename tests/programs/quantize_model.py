"""Quantize a model in the three ways: dynamic, static, and static in both formats.

Usage: quantize_model.py MODEL SAMPLES.npz
"""

import sys

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static


def apply_dynamic_quantization(model_path, output_path):
    quantize_dynamic(
        model_input=model_path,
        model_output=output_path,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
    )
    return output_path


class ModelCalibrationReader(CalibrationDataReader):
    def __init__(self, calibration_data, input_name):
        self.data = iter(calibration_data)
        self.input_name = input_name

    def get_next(self):
        try:
            batch = next(self.data)
            return {self.input_name: batch}
        except StopIteration:
            return None


def apply_static_quantization(model_path, output_path, calibration_data, input_name):
    calibration_reader = ModelCalibrationReader(calibration_data, input_name)
    quantize_static(
        model_input=model_path,
        model_output=output_path,
        calibration_data_reader=calibration_reader,
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        weight_type=QuantType.QInt8,
        activation_type=QuantType.QUInt8,
        op_types_to_quantize=["Conv", "MatMul", "Gemm"],
    )
    return output_path


def compare_quantization_formats(model_path, calibration_data, input_name):
    made = {}
    for quant_format, name in ((QuantFormat.QDQ, "model_qdq.onnx"), (QuantFormat.QOperator, "model_qop.onnx")):
        calibration_reader = ModelCalibrationReader(calibration_data, input_name)
        quantize_static(model_path, name, calibration_reader, quant_format=quant_format)
        made[quant_format.name] = name
    return made


if __name__ == "__main__":
    samples = np.load(sys.argv[2])["images"]
    print(apply_dynamic_quantization(sys.argv[1], "model_dynamic.onnx"))
    print(apply_static_quantization(sys.argv[1], "model_static.onnx", samples[:, None], "image"))
    print(compare_quantization_formats(sys.argv[1], samples[:, None], "image"))
