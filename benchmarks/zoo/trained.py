"""Models that others trained, from a folder, and feeds for any model.

Feeds (`in:NAME`) and answers (`out:NAME`) of MODEL.onnx lie in MODEL.npz beside it or in ref/MODEL.npz. A `/` in a
tensor's name is stored as `|`. Where there is no such file, feeds are random, with the free sizes of SIZES or else 1.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.compare.cases import Case
from sardonyx.bench.arrays import Feeds, store

SIZES = {"ocr__ppocrv4-rec": {"x": (1, 3, 48, 320)}}
"""By model and input, where 1 is no sensible size."""


def take_over(path: Path, out: Path) -> str:
    """Have a copy of a model in a folder of models, with its one case; returns the line to print."""
    case, feeds, told = Case.of(path.stem), feeds_of(path), stored(path, "out")
    store(case.feeds(out), **{"in": feeds, "told": told or answers(plain_session(path), feeds)})
    shutil.copyfile(path, case.onnx(out))
    return f"{path.stem}: {path.stat().st_size / 1e6:.1f} MB of {path.parent.name}"


def stored(path: Path, kind: str) -> Feeds:
    """What lies beside a model, by tensor name; nothing where there is no such file."""
    for file in (path.with_suffix(".npz"), path.parent / "ref" / f"{path.stem}.npz"):
        if file.exists():
            with np.load(file) as arrays:
                return {k.split(":", 1)[1].replace("|", "/"): arrays[k] for k in arrays if k.startswith(f"{kind}:")}
    return {}


def feeds_of(path: Path) -> Feeds:
    """A model's feeds, stored or random."""
    if found := stored(path, "in"):
        return found
    graph = onnx.load(path, load_external_data=False).graph
    constants = {t.name for t in graph.initializer}
    rng, sizes = np.random.default_rng(0), SIZES.get(path.stem, {})
    for value in (v for v in graph.input if v.name not in constants):
        kind = value.type.tensor_type
        free = tuple(d.dim_value or 1 for d in kind.shape.dim)
        shape = sizes.get(value.name, free)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        found[value.name] = np.asarray(drawn).astype(dtype)
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
