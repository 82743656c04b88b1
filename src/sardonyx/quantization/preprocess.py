"""``python -m sardonyx.quantization.preprocess --input model.onnx --output prepared.onnx``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sardonyx.quantization.shape_inference import quant_pre_process

__all__ = ["main", "parse_arguments", "quant_pre_process"]


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Prepare a model for quantization: infer shapes, optimize.")
    parser.add_argument("--input", required=True, help="the model to read")
    parser.add_argument("--output", required=True, help="the model to write")
    for name, about in (
        ("skip_optimization", "leave the nodes as they are"),
        ("skip_onnx_shape", "with --skip_symbolic_shape: write no shapes"),
        ("skip_symbolic_shape", "with --skip_onnx_shape: write no shapes"),
    ):
        parser.add_argument(f"--{name}", type=_flag, nargs="?", const=True, default=False, help=about)
    for name, about in (
        ("auto_merge", "no effect"),
        ("guess_output_rank", "no effect"),
        ("save_as_external_data", "write weights to files beside the model"),
        ("all_tensors_to_one_file", "all weights to one file"),
    ):
        parser.add_argument(f"--{name}", action="store_true", help=about)
    parser.add_argument("--int_max", type=int, default=2**31 - 1, help="no effect")
    parser.add_argument("--verbose", type=int, default=0, help="no effect")
    parser.add_argument("--external_data_location", help="the file of weights")
    parser.add_argument("--external_data_size_threshold", type=int, default=1024, help="smaller weights stay inside")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = vars(parse_arguments(arguments))
    quant_pre_process(options.pop("input"), options.pop("output"), **options)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1")


if __name__ == "__main__":
    main()
