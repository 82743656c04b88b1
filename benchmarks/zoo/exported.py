"""Models as exporters write them: transformers, convolutional and quantized nets, from random weights and one seed.

A name reads MODEL[-ATTENTION]-EXPORTER: the attention is transformers' `eager` or `sdpa`; the exporter is torch's
TorchScript one at opset 17 (`ts`), at 14 (`ts14`, where LayerNormalization does not exist) or told to fold nothing
(`tsraw`, where BatchNormalization stays), or torch's dynamo one at opset 18 (`dynamo`) or 23 (`dynamo23`, where
Attention and RMSNormalization exist). Names that start with `quant` are written by onnxruntime's quantizers.

Beside NAME.onnx lies NAME.npz: feeds (`in:INPUT`), of other sizes than those that the exporter saw, and what
onnxruntime answers with its optimizer off (`out:OUTPUT`). Files that exist are kept. Needs the `bench` extra.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.zoo import yolo  # noqa: F401
from benchmarks.zoo.convnets import CONVNETS
from benchmarks.zoo.quantized import QUANTIZED
from benchmarks.zoo.samples import Feeds, Recipe, Sample
from benchmarks.zoo.transformers import TRANSFORMERS, Call

SEED = 0
TORCHSCRIPT_FILE_NBYTES = 31 << 26
"""Larger models leave no room for the rest of a file of at most 2 GiB."""
TRACED = {"batch": 2, "sequence": 16, "source": 12, "past": 8, "total": 24}
CHECKED = {"batch": 3, "sequence": 11, "source": 9, "past": 5, "total": 16}
EXPORTERS = {
    "ts": {"dynamo": False, "opset_version": 17},
    "ts14": {"dynamo": False, "opset_version": 14},
    "tsraw": {
        "dynamo": False,
        "opset_version": 17,
        "do_constant_folding": False,
        "training": torch.onnx.TrainingMode.PRESERVE,
    },
    "dynamo": {"dynamo": True, "opset_version": 18},
    "dynamo23": {"dynamo": True, "opset_version": 23},
}


def randomize(module: nn.Module) -> None:
    """Weights of unit gain; biases, scales and statistics that no rewrite may lose without its being seen."""
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim > 1:
                p.normal_(0, 1 / math.sqrt(p[0].numel()))
            else:
                p.add_(0.1 * torch.randn_like(p))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


def export(sample: Sample, exporter: str, path: Path) -> None:
    feeds = tuple(i.sample(TRACED) for i in sample.inputs)
    names = [i.name for i in sample.inputs]
    free = [i.free() for i in sample.inputs]
    settings: dict[str, Any] = dict(EXPORTERS[exporter])
    if settings["dynamo"]:
        varargs = isinstance(sample.module, Call)
        settings |= {"dynamic_shapes": (tuple(free),) if varargs else tuple(free), "verbose": False}
    else:
        settings["dynamic_axes"] = dict(zip(names, free, strict=True))
        settings["dynamic_axes"] |= {n: {0: "batch"} for n in sample.outputs if any(free)}
    nbytes = sum(p.numel() for p in sample.module.parameters()) * 4
    settings |= {"input_names": names, "output_names": sample.outputs}
    if not settings["dynamo"] and nbytes > TORCHSCRIPT_FILE_NBYTES:
        export_in_files(sample.module, feeds, path, settings)
        return
    torch.onnx.export(sample.module, feeds, path, external_data=nbytes > 1 << 30, **settings)


def export_in_files(module: nn.Module, feeds: tuple[torch.Tensor, ...], path: Path, settings: dict[str, Any]) -> None:
    """Export a model that no file holds: TorchScript's exporter writes a file for each weight; here they become one."""
    import onnx

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        torch.onnx.export(module, feeds, f"{folder}/{path.name}", **settings)
        model = onnx.load(f"{folder}/{path.name}")
    data = f"{path.name}.data"
    path.with_name(data).unlink(missing_ok=True)
    onnx.save_model(model, path, save_as_external_data=True, location=data)


def record(path: Path, feeds: Feeds) -> None:
    """Feeds, and what onnxruntime answers with its optimizer off."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    outputs = session.run(names, {i.name: feeds[i.name] for i in session.get_inputs()})
    for name, value in zip(names, outputs, strict=True):
        if not np.isfinite(value).all():
            raise ValueError(f"{path.name}: {name} is not finite")
    arrays = {f"in:{k}": v for k, v in feeds.items()} | {f"out:{k}": v for k, v in zip(names, outputs, strict=True)}
    np.savez_compressed(path.with_suffix(".npz"), **{k.replace("/", "|"): v for k, v in arrays.items()})


def recorded(path: Path) -> Feeds:
    with np.load(path.with_suffix(".npz")) as stored:
        return {key[3:].replace("|", "/"): stored[key] for key in stored if key.startswith("in:")}


def build(recipe: Recipe, attention: str, exporter: str, small: bool, path: Path) -> None:
    torch.manual_seed(SEED)
    sample = recipe.build(small, attention)
    sample.module.eval()
    randomize(sample.module)
    with torch.no_grad():
        export(sample, exporter, path)
    torch.manual_seed(SEED)
    record(path, {i.name: i.sample(CHECKED).numpy() for i in sample.inputs})


def build_quantized(name: str, small: bool, path: Path) -> None:
    base_name, quantize = QUANTIZED[name]
    base = path.with_name(f"{base_name}.onnx")
    if not base.with_suffix(".npz").exists():
        dict(plan(small, path.parent))[base_name]()
    quantize(base, path, recorded(base))
    record(path, recorded(base))


def plan(small: bool, out: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every model's name and the call that builds it: both exporters of the eager attention first."""
    table = {**TRANSFORMERS, **CONVNETS}
    models = [(name, a, e) for name, r in table.items() for a, exporters in r.variants.items() for e in exporters]
    for name, attention, exporter in sorted(models, key=lambda m: (m[1] == "sdpa", m[2] not in ("ts", "dynamo"))):
        full = "-".join(filter(None, (name, attention, exporter)))
        yield full, partial(build, table[name], attention, exporter, small, out / f"{full}.onnx")
    for name in QUANTIZED:
        yield name, partial(build_quantized, name, small, out / f"{name}.onnx")


def run(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    failures = 0
    for name, make in plan(args.small, args.out):
        if not any(part in name for part in args.only):
            continue
        path = args.out / f"{name}.onnx"
        if args.list or (path.exists() and path.with_suffix(".npz").exists()):
            print(name)
            continue
        start = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                make()
        except Exception as error:
            failures += 1
            path.unlink(missing_ok=True)
            traceback.print_exc(limit=-3)
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        else:
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB, {time.perf_counter() - start:.0f} s", flush=True)
        gc.collect()
    sys.exit(bool(failures))
