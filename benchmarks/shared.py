"""Models that others trained, from a folder: MODEL.onnx and ref/MODEL.npz, feeds (`in:NAME`) and answers (`out:NAME`).

A `/` in a tensor's name is stored as `|`. Where there is no such file, feeds are random, with the free sizes of SIZES
or else 1, and onnxruntime answers.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.compare.cases import Case, Feeds, store

SIZES = {"ocr__ppocrv4-rec": {"x": (1, 3, 48, 320)}}
"""By model and input, where 1 is no sensible size."""
TYPES = {
    "tensor(float)": "f4", "tensor(double)": "f8", "tensor(float16)": "f2", "tensor(int64)": "i8",
    "tensor(int32)": "i4", "tensor(uint8)": "u1", "tensor(bool)": "?",
}  # fmt: skip


def take_over(path: Path, out: Path) -> str:
    """Have a copy of a model in a folder of models, with its one case; returns the line to print."""
    case, feeds, told = Case.of(path.stem), stored(path, "in"), stored(path, "out")
    if not feeds:
        session = plain_session(path)
        feeds = feeds_of(session, path)
        told = answers(session, feeds)
    store(case.feeds(out), **{"in": feeds, "told": told})
    shutil.copyfile(path, case.onnx(out))
    return f"{path.stem}: {path.stat().st_size / 1e6:.1f} MB of {path.parent.name}"


def stored(path: Path, kind: str) -> Feeds:
    """What lies beside a model, by tensor name; nothing where there is no such file."""
    file = path.parent / "ref" / f"{path.stem}.npz"
    if not file.exists():
        return {}
    with np.load(file) as arrays:
        return {key.split(":", 1)[1].replace("|", "/"): arrays[key] for key in arrays if key.startswith(f"{kind}:")}


def feeds_of(session: Any, path: Path) -> Feeds:
    """A model's feeds, stored or random."""
    if found := stored(path, "in"):
        return found
    rng, sizes = np.random.default_rng(0), SIZES.get(path.stem, {})
    for value in session.get_inputs():
        shape = sizes.get(value.name, tuple(d if isinstance(d, int) else 1 for d in value.shape))
        dtype = np.dtype(TYPES[value.type])
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        found[value.name] = drawn.astype(dtype)
    return found


def answers(session: Any, feeds: Feeds) -> Feeds:
    """The tensors among a session's outputs."""
    names = [o.name for o in session.get_outputs()]
    return {n: v for n, v in zip(names, session.run(names, feeds), strict=True) if isinstance(v, np.ndarray)}


def plain_session(path: Path) -> Any:
    """Of onnxruntime, with its optimizer off."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
