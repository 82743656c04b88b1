"""Nets of the zoo as onnxruntime's quantizers rewrite them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

    from sardonyx.bench.arrays import Feeds


class Readings:
    """Calibration data, as onnxruntime's calibrator asks for it."""

    def __init__(self, feeds: Feeds) -> None:
        self.feeds = iter([feeds])

    def get_next(self) -> Feeds | None:
        return next(self.feeds, None)


def static(
    base: Path, path: Path, feeds: Feeds, form: str, operators: list[str] | None = None, activations: str = "QInt8"
) -> None:
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = path.with_suffix(".prepared")
    quant_pre_process(str(base), str(prepared), skip_symbolic_shape=True)
    q.quantize_static(
        str(prepared),
        str(path),
        Readings(feeds),
        quant_format=q.QuantFormat[form],
        activation_type=q.QuantType[activations],
        per_channel=True,
        op_types_to_quantize=operators,
    )
    prepared.unlink()


def dynamic(base: Path, path: Path, feeds: Feeds) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(str(base), str(path))


def four_bits(base: Path, path: Path, feeds: Feeds, form: str) -> None:
    """Weights in blocks of 32, as DequantizeLinear and MatMul or as MatMulNBits."""
    import onnx
    from onnx import version_converter
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    model = version_converter.convert_version(onnx.load(base), 21)
    for i, node in enumerate(model.graph.node):
        node.name = node.name or f"node_{i}"
    settings = DefaultWeightOnlyQuantConfig(32, is_symmetric=False, quant_format=QuantFormat[form])
    quantizer = MatMulNBitsQuantizer(model, algo_config=settings)
    quantizer.process()
    onnx.save(quantizer.model.model, path)


def four_bits_by_sardonyx(base: Path, path: Path) -> None:
    """All constant weights of products as MatMulNBits, and tables as GatherBlockQuantized, in blocks of 32."""
    import onnx

    from sardonyx.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = onnx.load(base)
    split_gemms(model)
    quantizer = MatMulNBitsQuantizer(model, bits=4, block_size=32, op_types_to_quantize=("MatMul", "Gather"))
    quantizer.process()
    quantizer.model.save_model_to_file(str(path))


def split_gemms(model: onnx.ModelProto) -> None:
    """Every Gemm of a constant matrix, neither scaled nor with a transposed first operand, as MatMul and Add.

    GPT-2's layers are exported as Gemm, and weight-only quantizers take MatMul alone.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    constants = {t.name: t for t in graph.initializer}
    nodes = []
    for node in graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        scaled = any(attributes.get(name, 1.0) != 1.0 for name in ("alpha", "beta"))
        if node.op_type != "Gemm" or scaled or attributes.get("transA") or node.input[1] not in constants:
            nodes.append(node)
            continue
        (x, weight, *bias), out = node.input, node.output[0]
        if attributes.get("transB"):
            turned = f"{weight}_transposed"
            if turned not in constants:
                array = numpy_helper.to_array(constants[weight]).T
                constants[turned] = numpy_helper.from_array(array.copy(), turned)
                graph.initializer.append(constants[turned])
            weight = turned
        product = f"{out}_product" if bias else out
        name = node.name or out
        nodes.append(helper.make_node("MatMul", [x, weight], [product], f"{name}_product"))
        if bias:
            nodes.append(helper.make_node("Add", [product, *bias], [out], f"{name}_bias"))
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input} | {o.name for o in graph.output}
    kept = [t for t in graph.initializer if t.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


QUANTIZED: dict[str, tuple[str, Callable[[Path, Path, Feeds], None]]] = {
    "quant-resnet50-qdq": ("resnet50-ts", partial(static, form="QDQ")),
    "quant-resnet50-qoperator": ("resnet50-ts", partial(static, form="QOperator")),
    "quant-mobilenetv2-qdq": ("mobilenetv2-ts", partial(static, form="QDQ")),
    "quant-yolo-qdq": ("yolo-ts", partial(static, form="QDQ")),
    "quant-mlp-qdq": ("mlp-ts", partial(static, form="QDQ")),
    "quant-mlp-dynamic": ("mlp-ts", dynamic),
    "quant-mlp-int4-qdq": ("mlp-ts", partial(four_bits, form="QDQ")),
    "quant-bert-qdq": ("bert-eager-ts", partial(static, form="QDQ", operators=["MatMul", "Gemm"])),
    "quant-bert-dynamic": ("bert-eager-ts", dynamic),
    "quant-llama-int4-qdq": ("llama-eager-dynamo", partial(four_bits, form="QDQ")),
    "quant-llama-int4-qoperator": ("llama-eager-dynamo", partial(four_bits, form="QOperator")),
}
