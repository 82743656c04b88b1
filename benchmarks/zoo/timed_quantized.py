"""Timed models as onnxruntime's quantizers rewrite them: per-channel weights, all operators that it quantizes.

    python -m benchmarks.zoo timed --out FLOATS resnet50 mobilenetv2 efficientnet-b0 bert minilm vit
    python -m benchmarks.zoo quantized --floats FLOATS --out DIR [resnet50-qdq bert-dynamic ...]
    python -m benchmarks.compare --folder DIR

NAME-qdq and NAME-qoperator are static, calibrated on the feeds that are timed, with signed activations, NAME-u8 has
unsigned ones (qdq). NAME-dynamic is dynamic: transformers, two convolutional nets (ConvInteger) and an LSTM
(DynamicQuantizeLSTM). Of decoders that take a cache there are NAME-int4, by Sardonyx's own quantizer (weights as
MatMulNBits, tables as GatherBlockQuantized), and NAME-float, as it is; both read one token after those of the float
model's feeds. Feeds, and what onnxruntime answers without optimizing, lie beside a model. Models that exist are kept.
Needs onnxruntime.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from benchmarks.compare.cases import CASES, Case, cache_of, step_feeds
from sardonyx.bench.arrays import Feeds, store, stored

IMAGES, TRANSFORMERS = ("resnet50", "mobilenetv2", "efficientnet-b0"), ("bert", "minilm", "vit")
FORMS = ("qdq", "u8", "qoperator", "dynamic")
NAMES = tuple(
    f"{model}-{form}"
    for model in (*IMAGES, *TRANSFORMERS)
    for form in FORMS
    if form != "dynamic" or model in TRANSFORMERS
)
ONLY_DYNAMIC = ("vocoder", "recognizer", "tagger")
NAMES += tuple(f"{model}-dynamic" for model in ONLY_DYNAMIC)
DECODERS, WEIGHT_FORMS = ("gpt2-past", "llama-past"), ("int4", "float")
NAMES += tuple(f"{model}-{form}" for model in DECODERS for form in WEIGHT_FORMS)


def build(name: str, floats: Path, out: Path) -> None:
    from benchmarks.zoo.quantized import dynamic, four_bits_by_sardonyx, static
    from benchmarks.zoo.trained import answers, plain_session

    model, _, form = name.rpartition("-")
    path = out / f"{name}.onnx"
    case = next(case for case in CASES if case.model == model)
    feeds = stored(case.feeds(floats), "in")
    if case.steps:
        feeds = last_step(case.onnx(floats), feeds)
    if not path.exists():
        part = path.with_suffix(".part.onnx")
        base = case.onnx(floats)
        if form == "dynamic":
            dynamic(base, part, feeds)
        elif form == "int4":
            four_bits_by_sardonyx(base, part)
        elif form == "float":
            shutil.copyfile(base, part)
        else:
            activations = "QUInt8" if form == "u8" else "QInt8"
            static(base, part, feeds, "QOperator" if form == "qoperator" else "QDQ", activations=activations)
        part.replace(path)
    store(Case.of(name).feeds(out), **{"in": feeds, "told": answers(plain_session(path), feeds)})


def last_step(base: Path, feeds: Feeds) -> Feeds:
    """A decoder's last token, and as its cache what onnxruntime makes of those before it."""
    from benchmarks.zoo.trained import answers, plain_session

    ids = feeds["input_ids"]
    before = ids.shape[1] - 1
    tokens = ("input_ids", "attention_mask", "position_ids")
    prompt = {name: array[:, :before] if name in tokens else array for name, array in feeds.items()}
    return step_feeds(ids, before, cache_of(answers(plain_session(base), prompt)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("names", nargs="*", help=f"models to build: {', '.join(NAMES)}")
    add("--floats", type=Path, required=True, help="the folder of the timed models")
    add("--out", type=Path, default=Path("zoo"))


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    if unknown := set(args.names) - set(NAMES):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    args.out.mkdir(parents=True, exist_ok=True)
    failures = 0
    for name in args.names or NAMES:
        try:
            build(name, args.floats, args.out)
            print(name, flush=True)
        except Exception as error:
            failures += 1
            print(f"{name}: {type(error).__name__}: {str(error)[:500]}", flush=True)
    sys.exit(bool(failures))
