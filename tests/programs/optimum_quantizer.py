"""Quantize a model by optimum, dynamic and static, and print the files. Usage: optimum_quantizer.py MODEL FOLDER"""

import sys
from pathlib import Path

from onnxruntime.quantization import CalibrationMethod
from optimum.onnxruntime import ORTQuantizer
from optimum.onnxruntime.configuration import AutoQuantizationConfig, CalibrationConfig
from optimum.onnxruntime.preprocessors import QuantizationPreprocessor
from optimum.onnxruntime.preprocessors.passes import ExcludeGeLUNodes, ExcludeLayerNormNodes, ExcludeNodeAfter


class Samples(list):
    """What optimum asks of a dataset."""

    column_names = ("input_ids", "attention_mask", "token_type_ids")


def samples():
    ids = [[(7 * i + j) % 13 for j in range(5)] for i in range(8)]
    return Samples({"input_ids": each, "attention_mask": [1] * 5, "token_type_ids": [0] * 5} for each in ids)


def main(model, folder):
    for machine in ("arm64", "avx2", "avx512_vnni"):
        config = getattr(AutoQuantizationConfig, machine)(is_static=False, per_channel=True)
        ORTQuantizer(Path(model)).quantize(config, folder, file_suffix=machine)
    config = AutoQuantizationConfig.avx512_vnni(is_static=True, per_channel=True)
    calibration = CalibrationConfig(
        dataset_name="samples",
        dataset_config_name="",
        dataset_split="",
        dataset_num_samples=len(samples()),
        method=CalibrationMethod.MinMax,
    )
    quantizer = ORTQuantizer(Path(model))
    ranges = quantizer.fit(
        dataset=samples(),
        calibration_config=calibration,
        onnx_augmented_model_name=str(Path(folder) / "augmented.onnx"),
        operators_to_quantize=config.operators_to_quantize,
        batch_size=2,
    )
    preprocessor = QuantizationPreprocessor()
    for each in (ExcludeLayerNormNodes(), ExcludeGeLUNodes(), ExcludeNodeAfter("Add", "Softmax")):
        preprocessor.register_pass(each)
    quantizer.quantize(config, folder, "static", calibration_tensors_range=ranges, preprocessor=preprocessor)
    print(sorted(path.name for path in Path(folder).glob("*.onnx") if path.name != "augmented.onnx"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
