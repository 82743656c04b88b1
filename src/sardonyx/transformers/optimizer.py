"""``onnxruntime.transformers.optimizer`` over Sardonyx's passes.

    from sardonyx.transformers import optimizer
    model = optimizer.optimize_model("bert.onnx", model_type="bert", num_heads=12, hidden_size=768)
    model.save_model_to_file("bert.opt.onnx")

The passes do not depend on the type of model: it selects the default options and what the statistics count. Shapes and
"""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sardonyx.errors import InvalidArgument
from sardonyx.ir.graph import Model
from sardonyx.model.load import load
from sardonyx.model.save import ExternalData, save
from sardonyx.normalize.run import normalize, unify_opsets
from sardonyx.optimize import api, pipelines
from sardonyx.transformers import approximate
from sardonyx.transformers.fusion_options import FusionOptions
from sardonyx.transformers.onnx_model import OnnxModel

if TYPE_CHECKING:
    import onnx

__all__ = [
    "MODEL_TYPES",
    "FusionOptions",
    "OnnxModel",
    "get_fusion_statistics",
    "main",
    "optimize_by_fusion",
    "optimize_by_onnxruntime",
    "optimize_model",
]

logger = logging.getLogger(__name__)

MODEL_TYPES: dict[str, tuple[str, int]] = {
    "bart": ("pytorch", 1),
    "bert": ("pytorch", 1),
    "bert_tf": ("tf2onnx", 0),
    "bert_keras": ("keras2onnx", 0),
    "clip": ("pytorch", 1),
    "conformer": ("pytorch", 1),
    "gpt2": ("pytorch", 1),
    "gpt2_tf": ("tf2onnx", 0),
    "gpt_neox": ("pytorch", 0),
    "phi": ("pytorch", 0),
    "qwen3": ("pytorch", 0),
    "sam2": ("pytorch", 1),
    "swin": ("pytorch", 1),
    "tnlr": ("pytorch", 1),
    "t5": ("pytorch", 2),
    "unet": ("pytorch", 1),
    "vae": ("pytorch", 1),
    "vit": ("pytorch", 1),
    "mmdit": ("pytorch", 1),
}
"""Type of model to its exporter and onnxruntime's default level for it."""

LEVELS = {0: "disabled", 1: "basic", 2: "extended", 3: "layout", 99: "all"}


def optimize_model(
    input: str | os.PathLike[str] | onnx.ModelProto,
    model_type: str = "bert",
    num_heads: int = 0,
    hidden_size: int = 0,
    optimization_options: FusionOptions | None = None,
    opt_level: int | None = None,
    use_gpu: bool = False,
    only_onnxruntime: bool = False,
    verbose: bool = False,
    *,
    provider: str | None = None,
) -> OnnxModel:
    """Fuse a transformer's graph into onnxruntime's operators.

    Sizes of attention are found in the graph; ``num_heads`` and ``hidden_size`` are only checked. ``opt_level`` matters
    with ``only_onnxruntime``, which runs the passes of that level and ignores ``optimization_options``. ``use_gpu`` and
    ``provider`` have no effect.
    """
    if opt_level is not None and opt_level not in LEVELS:
        raise InvalidArgument("unknown opt_level", expected=", ".join(map(str, LEVELS)), got=opt_level)
    if model_type not in MODEL_TYPES:
        logger.warning("Unsupported model type: %s for optimization, directly return model.", model_type)
        return OnnxModel(_with_one_opset(load(input)))
    if only_onnxruntime:
        level = MODEL_TYPES[model_type][1] if opt_level is None else opt_level
        if level == 0:
            logger.warning("Please specify a positive value for opt_level when only_onnxruntime is True")
        return OnnxModel(api.optimize_model(input, LEVELS[level]).model, num_heads, hidden_size, model_type=model_type)
    return optimize_by_fusion(input, model_type, num_heads, hidden_size, optimization_options)


def optimize_by_fusion(
    model: Any,
    model_type: str = "bert",
    num_heads: int = 0,
    hidden_size: int = 0,
    optimization_options: FusionOptions | None = None,
) -> OnnxModel:
    """Run all fusions that the options allow."""
    if model_type not in MODEL_TYPES:
        logger.warning("Unsupported model type: %s for graph fusion, directly return model.", model_type)
        return OnnxModel(_with_one_opset(load(model)))
    options = FusionOptions(model_type) if optimization_options is None else optimization_options
    order = list(api.order_of("extended", "contrib"))
    if options.enable_gelu_approximation:
        order.insert(len(api.order_of("extended", "portable")), approximate.NAME)
    source = load(model)
    written, count = dict(source.opsets), sum(1 for _ in source.graph.all_nodes())
    producer = MODEL_TYPES[model_type][0]
    if source.producer_name and source.producer_name != producer:
        logger.warning(
            "Model producer not matched: Expected %r, Got %r. Please specify correct --model_type parameter.",
            producer,
            source.producer_name,
        )
    normalize(source)
    result = api.optimize_loaded(
        source,
        order,
        options.disabled_passes(),
        level="extended",
        spelling="contrib",
        written=written,
        nodes_before=count,
    )
    made = replace(result.model, producer_name="sardonyx.transformers", producer_version=api.version())
    return OnnxModel(made, num_heads, hidden_size, model_type=model_type)


def optimize_by_onnxruntime(
    onnx_model: Any = None,
    use_gpu: bool = False,
    optimized_model_path: str | None = None,
    opt_level: int | None = 99,
    disabled_optimizers: list[str] | None = None,
    verbose: bool = False,
    save_as_external_data: bool = False,
    external_data_filename: str = "",
    external_data_file_threshold: int = 1024,
    *,
    provider: str | None = None,
    **deprecated_kwargs: Any,
) -> str:
    """Run the passes of a level, write the model, and return its path."""
    source = deprecated_kwargs.pop("onnx_model_path", None) if onnx_model is None else onnx_model
    if source is None:
        raise InvalidArgument("onnx_model is missing")
    if opt_level not in LEVELS:
        raise InvalidArgument("unknown opt_level", expected=", ".join(map(str, LEVELS)), got=opt_level)
    known = [n for n in disabled_optimizers or () if n in pipelines.ONNXRUNTIME_NAMES]
    result = api.optimize_model(source, LEVELS[opt_level], disabled=known)
    if optimized_model_path is None:
        stem = Path(source).with_suffix("") if isinstance(source, (str, os.PathLike)) else "optimized_model"
        optimized_model_path = f"{stem}_o{opt_level}_{'gpu' if use_gpu else 'cpu'}.onnx"
    outside = ExternalData(location=external_data_filename or None, threshold_nbytes=external_data_file_threshold)
    Path(optimized_model_path).parent.mkdir(parents=True, exist_ok=True)
    save(result.model, optimized_model_path, external=outside if save_as_external_data else None)
    return optimized_model_path


def _with_one_opset(model: Model) -> Model:
    unify_opsets(model)
    return model


def get_fusion_statistics(optimized_model_path: str) -> dict[str, int]:
    """Fused operator to number of nodes, of a model file."""
    return OnnxModel(load(optimized_model_path)).get_fused_operator_statistics()


def _parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fuse the graph of a transformer into onnxruntime's operators.")
    parser.add_argument("--input", required=True, help="the model to read")
    parser.add_argument("--output", required=True, help="the model to write")
    parser.add_argument("--model_type", type=str.lower, default="bert", choices=list(MODEL_TYPES), help="type of model")
    parser.add_argument("--num_heads", type=int, default=0, help="attention heads; 0: read from the graph")
    parser.add_argument("--hidden_size", type=int, default=0, help="hidden size; 0: read from the graph")
    parser.add_argument("--opt_level", type=int, choices=list(LEVELS), help="level for --only_onnxruntime")
    parser.add_argument("--provider", help="execution provider that the model is meant for")
    for name, about in (
        ("input_int32", "inputs of 32-bit integers"),
        ("float16", "half precision, inputs and outputs in f32"),
        ("verbose", "tell more"),
        ("use_gpu", "the model is meant for a GPU"),
        ("only_onnxruntime", "the passes of a level only"),
        ("use_external_data_format", "weights in a file beside the model"),
        ("disable_symbolic_shape_infer", "accepted; shapes are always inferred"),
        ("convert_to_packing_mode", "not available"),
        ("convert_attribute", "attribute tensors in the file of weights too"),
    ):
        parser.add_argument(f"--{name}", action="store_true", help=about)
    FusionOptions.add_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """``python -m sardonyx.transformers.optimizer --input a.onnx --output b.onnx``."""
    args = _parse_arguments(arguments)
    logging.basicConfig(format="%(message)s", level=logging.DEBUG if args.verbose else logging.INFO)
    if args.convert_to_packing_mode:
        raise InvalidArgument("packing mode is not available here")
    model = optimize_model(
        args.input,
        args.model_type,
        args.num_heads,
        args.hidden_size,
        FusionOptions.parse(args),
        args.opt_level,
        args.use_gpu,
        args.only_onnxruntime,
        args.verbose,
        provider=args.provider,
    )
    if args.float16:
        model.convert_float_to_float16(keep_io_types=True)
    if args.input_int32:
        model.change_graph_inputs_to_int32()
    fully = "bert" in args.model_type and model.is_fully_optimized()
    logger.info("The model has been %soptimized.", "fully " if fully else "")
    model.save_model_to_file(args.output, args.use_external_data_format, convert_attribute=args.convert_attribute)


if __name__ == "__main__":
    main()
