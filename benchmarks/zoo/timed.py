"""The models that `python -m benchmarks.compare` times, with random weights from one seed; nothing is downloaded.

Transformers have the weights that they are initialized with, biases and scales moved off 0 and 1, so that no engine
finds anything to leave out; batch and sequence are free in their files. Nets for images take one image of the
published size. Their weights are scaled layer by layer until activations have unit size, as trained ones do: numbers
that die out or grow end as denormals or infinities, with which arithmetic takes times of its own. Torch's TorchScript
exporter writes at opset 17; `--exporter dynamo` takes its other one, at opset 18, which needs onnxscript and is slower.
Nets of light.py and fading.py need no torch, and those of light.py are the same with `--small`. Those of fading.py are
the exception to activations of unit size: theirs fade, layer by layer.

Beside the models lie the feeds of each case, and what torch answers to them (for nets of light.py and fading.py,
onnxruntime; for models of a folder, what lies there). Files that exist are kept.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.compare.cases import CASES, FOLDER, Case
from benchmarks.zoo import light
from benchmarks.zoo.fading import FADING
from benchmarks.zoo.trained import answers, plain_session, take_over
from sardonyx.bench.arrays import Feeds, store

SEED = 0
MODELS = tuple(dict.fromkeys(case.model for case in CASES))


def sample_of(name: str, small: bool) -> Any:
    """A model by name, with its weights: the zoo's, or one of those that only this program needs."""
    from benchmarks.zoo import imagenet, yolo  # noqa: F401
    from benchmarks.zoo.convnets import CONVNETS
    from benchmarks.zoo.only_timed import ONLY_TIMED
    from benchmarks.zoo.transformers import TRANSFORMERS

    if name in ONLY_TIMED or name in TRANSFORMERS:
        sample = ONLY_TIMED[name](small) if name in ONLY_TIMED else TRANSFORMERS[name].build(small, "eager")
        move_off_zero(sample.module)
    else:
        sample = CONVNETS[name].build(small, "")
        sample.inputs = [replace(i, shape=(1, *i.shape[1:])) for i in sample.inputs]
        move_off_zero(sample.module)
        settle(sample.module, [i.sample({}) for i in sample.inputs])
    sample.module.eval()
    return sample


def move_off_zero(module: Any) -> None:
    import torch

    with torch.no_grad():
        for p in module.parameters():
            if p.ndim == 1:
                p.add_(0.05 * torch.randn_like(p))


def settle(module: Any, feeds: list[Any]) -> None:
    """One pass that scales every product to unit size and gives every normalization the statistics of its data."""
    import torch
    from torch import nn

    def scale(layer: Any, _: Any, result: Any) -> Any:
        size = result.square().mean().sqrt()
        for p in layer.parameters():
            p.div_(size)
        return result / size

    layers = list(module.modules())
    norms = [layer for layer in layers if isinstance(layer, nn.BatchNorm2d)]
    hooks = [m.register_forward_hook(scale) for m in layers if isinstance(m, (nn.Conv2d, nn.Linear))]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        module.train()(*feeds)
        for norm in norms:
            norm.running_var.clamp_(min=light.LEAST_VARIANCE)
    for hook in hooks:
        hook.remove()


def write_case(case: Case, sample: Any, small: bool, out: Path) -> None:
    """The case's feeds, and what the module answers to them."""
    import torch

    torch.manual_seed(SEED)
    shrink = 4 if small else 1
    length = (case.steps or case.length) // shrink
    sizes = {"batch": case.batch, "sequence": length, "total": length, "past": 0}
    feeds = {i.name: i.sample(sizes) for i in sample.inputs}
    if case.steps:
        feeds["position_ids"] = torch.arange(length)[None]
    with torch.no_grad():
        answers = sample.module(*feeds.values())
    answers = (answers,) if isinstance(answers, torch.Tensor) else answers
    given: Feeds = {name: t.numpy() for name, t in feeds.items()}
    told: Feeds = {name: t.numpy() for name, t in zip(sample.outputs, answers, strict=True) if "present" not in name}
    store(case.feeds(out), **{"in": given, "told": told})


def build(name: str, small: bool, exporter: str, threads: int, out: Path) -> str:
    """Write one model of torch's and its cases; returns the line to print."""
    import torch

    from benchmarks.zoo.exported import export

    torch.set_num_threads(threads)
    start = time.perf_counter()
    path = out / f"{name}.onnx"
    torch.manual_seed(SEED)
    sample = sample_of(name, small)
    if not path.exists():
        part = path.with_suffix(".part.onnx")
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            export(sample, exporter, part)
        part.replace(path)
    for case in CASES:
        if case.model == name:
            write_case(case, sample, small, out)
    return told(path, f"by {exporter}", start)


def build_without_torch(name: str, small: bool, out: Path) -> str:
    """Write a net of the onnx package, or one that fades, and its case."""
    start = time.perf_counter()
    path = out / f"{name}.onnx"
    part = path.with_suffix(".part.onnx")
    if name in FADING:
        model, feeds = FADING[name](small)
        part.write_bytes(model)
    else:
        feeds = light.build(name, part, SEED)
    part.replace(path)
    store(Case.of(name).feeds(out), **{"in": feeds, "told": answers(plain_session(path), feeds)})
    return told(path, "of one seed" if name in FADING else "of the onnx package", start)


def told(path: Path, origin: str, start: float) -> str:
    return f"{path.stem}: {path.stat().st_size / 1e6:.1f} MB {origin}, {time.perf_counter() - start:.0f} s"


def is_built(name: str, out: Path) -> bool:
    files = [case.feeds(out) for case in CASES if case.model == name]
    return all(file.exists() for file in (out / f"{name}.onnx", *files))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("names", nargs="*", help=f"models to build: {', '.join(MODELS)}; or models of --shared")
    add("--out", type=Path, default=FOLDER)
    add("--small", action="store_true", help="the same layers, narrow, and short inputs")
    add("--exporter", choices=("ts", "dynamo"), default="ts", help="torch's exporter")
    add("--shared", type=Path, help="a folder of models to take over, and nothing else if none is named")
    add("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="models built at a time")


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    there = [path.stem for path in sorted(args.shared.glob("*.onnx"))] if args.shared else []
    if unknown := set(args.names) - {*MODELS, *there}:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    args.out.mkdir(parents=True, exist_ok=True)
    missing = [name for name in args.names or there or MODELS if not is_built(name, args.out)]
    jobs = max(1, min(args.jobs, len(missing)))
    threads = max(1, (os.cpu_count() or 1) // jobs)

    def task(name: str) -> tuple[Any, ...]:
        if name in there:
            return take_over, args.shared / f"{name}.onnx", args.out
        return (
            (build_without_torch, name, args.small, args.out)
            if name in light.LIGHT or name in FADING
            else (build, name, args.small, args.exporter, threads, args.out)
        )

    failures = 0
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = {pool.submit(*task(name)): name for name in missing}
        for done in as_completed(tasks):
            error = done.exception()
            failures += error is not None
            print(f"{tasks[done]}: {type(error).__name__}: {str(error)[:500]}" if error else done.result(), flush=True)
    sys.exit(bool(failures))
