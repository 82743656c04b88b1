"""Every name of onnxruntime.quantization is one of ours, but for those listed here with the reason."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MISSING_MODULES = {
    "CalTableFlatBuffers": "generated code; calibrate/table.py writes the same file",
    "cuda_quantizer": "writes the layouts of onnxruntime's CUDA kernels, with torch",
    "execution_providers": "prepares models for Qualcomm's NPU",
    "fusions": "rewrites by quant_pre_process, which calls sardonyx.optimize",
    "matmul_bnb4_quantizer": "writes MatMulBnb4, which only onnxruntime's CUDA provider runs fast",
    "neural_compressor": "a copy of another package, behind matmul_nbits_quantizer",
    "operators": "steps of onnxruntime's quantizer, which change its inner state",
    "static_quantize_runner": "a command; ours is sardonyx quantize",
}
MISSING_NAMES = {
    "CudaQuantizer": MISSING_MODULES["cuda_quantizer"],
    "ReplaceUpsampleWithResize": MISSING_MODULES["fusions"],
    **dict.fromkeys(
        ("CreateDefaultOpQuantizer", "CreateOpQuantizer", "CreateQDQQuantizer"), MISSING_MODULES["operators"]
    ),
    **dict.fromkeys(
        (
            "QDQBiasQuantInfo", "QDQQuantParamProvider", "QDQQuantTensorType", "QDQScaleZpInitializers",
            "QDQTensorQuantInfo", "QDQTensorQuantParams", "QDQTensorQuantizedValue", "QDQTensorScaleZpInitializers",
        ),
        "what onnxruntime's quantizer notes of a tensor while it works",
    ),
    **dict.fromkeys(
        (
            "DefaultWeightOnlyQuantizer", "HQQWeightOnlyQuantizer", "get_initializer", "gptq_quantize", "is_divisible",
            "rtn_quantize", "transpose_packed_int4_matrix",
        ),
        "steps inside onnxruntime's quantizer of weights; ours are in weight_only/",
    ),
    **dict.fromkeys(
        ("NVAWQWeightOnlyQuantConfig", "NVAWQWeightOnlyQuantizer"), "calls NVIDIA's package, which downloads its data"
    ),
    **dict.fromkeys(
        ("ort_convert_str_to_bool", "parse_args", "parse_key_value_pair"), "a command; ours is sardonyx quantize"
    ),
    "logger": "where a module logs to",
}  # fmt: skip


def environment() -> dict[str, str]:
    paths = [str(Path(__file__).resolve().parent.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def folder() -> Path:
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("onnxruntime is not installed")
    return Path(spec.submodule_search_locations[0]) / "quantization"


def defined_classes(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)}


def names_in(path: Path) -> Iterator[str]:
    """What a module defines, and what it imports from others of its package."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("onnxruntime.quant")):
            yield from (each.asname or each.name for each in node.names)


def modules() -> dict[str, Path]:
    """Name below onnxruntime.quantization to file, without those that are missing on purpose."""
    found = {}
    for path in sorted(folder().rglob("*.py")):
        name = ".".join(path.relative_to(folder()).with_suffix("").parts).removesuffix("__init__").removesuffix(".")
        if name.partition(".")[0] not in MISSING_MODULES:
            found[name] = path
    return found


def test_every_name_is_there() -> None:
    files = modules()
    assert {"", "calibrate", "quantize", "quant_utils", "qdq_quantizer", "registry"} <= files.keys()
    inner = {name for path in (folder() / "operators").glob("*.py") for name in defined_classes(path)}
    missing = []
    for name, path in files.items():
        mine = importlib.import_module(f"sardonyx.quantization.{name}".rstrip("."))
        wanted = {each for each in names_in(path) if not each.startswith("_")} - MISSING_NAMES.keys() - inner
        missing += [f"{name}: {each}" for each in sorted(wanted) if not hasattr(mine, each)]
    assert not missing


def test_the_list_of_missing_names_is_true() -> None:
    files, theirs = modules(), {path.stem for path in folder().iterdir()}
    assert theirs >= MISSING_MODULES.keys()
    assert not [name for name in MISSING_MODULES if importlib.util.find_spec(f"sardonyx.quantization.{name}")]
    assert {name for path in files.values() for name in names_in(path)} >= MISSING_NAMES.keys()


PROGRAM = """
import onnxruntime
import onnxruntime.quantization as quantization
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quant_pre_process, quantize_static
from onnxruntime.quantization.base_quantizer import BaseQuantizer
from onnxruntime.quantization.calibrate import CalibraterBase, create_calibrator
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.preprocess import quant_pre_process as same
from onnxruntime.quantization.qdq_loss_debug import collect_activations
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer, find_by_name
from onnxruntime.quantization.quant_utils import load_model_with_shape_infer
from onnxruntime.quantization.quantize import check_static_quant_arguments
from onnxruntime.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry
from onnxruntime.quantization.shape_inference import quant_pre_process as again
from onnxruntime.quantization.tensor_quant_overrides import TensorQuantOverridesHelper
import onnxruntime.quantization.quant_utils as utils

assert same is again is quant_pre_process and onnxruntime.quantization is quantization
assert utils is quantization.quant_utils is sys.modules["sardonyx.quantization.quant_utils"]
assert callable(quantization.quantize) and issubclass(QDQQuantizer, BaseQuantizer)
try:
    import onnxruntime.quantization.operators.matmul
except ImportError as error:
    print(error)
"""


def test_programs_find_them_by_onnxruntimes_paths(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import sys\n{PROGRAM}")
    called = f"import sys, sardonyx; sardonyx.as_onnxruntime()\n{PROGRAM}"
    for code in (["-m", "sardonyx.shim", str(program)], ["-c", called]):
        done = subprocess.run(
            [sys.executable, *code], env=environment(), capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        assert "onnxruntime.quantization.operators is not part of Sardonyx" in done.stdout


def test_importing_is_light() -> None:
    code = (
        "import sys, sardonyx.quantization; print([m for m in ('onnx', 'ml_dtypes', 'llvmlite') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
