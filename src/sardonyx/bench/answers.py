"""A model run once, and its outputs compared with another engine's."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from sardonyx.bench.statistics import relative_error
from sardonyx.errors import InvalidArgument
from sardonyx.records import Record

ONNXRUNTIME, REFERENCE = "onnxruntime", "reference"
TOLERANCES = {"float64": 1e-6, "complex128": 1e-6, "float32": 1e-3, "complex64": 1e-3, "float16": 3e-2}
NARROW = 0.1
"""Tolerance of other floats."""
AMPLIFIED = 8
"""Times the largest effect of rounded inputs by which engines may differ: they round in every layer."""
Array = np.ndarray[Any, Any]
Outputs = dict[str, Any]


class Agreement(Record):
    """One output beside another engine's."""

    name: str
    difference: str | None
    """How it differs by more than rounding; None if it does not."""
    error: float
    """The relative distance; infinite where the two cannot be subtracted."""
    rounding: float | None = None
    """How far rounding the model's inputs moves an element of it, where that was needed to judge."""


def checker_name() -> str:
    """The engine that outputs are checked with by default."""
    return ONNXRUNTIME if find_spec(ONNXRUNTIME) is not None else REFERENCE


def require_checker(engine: str) -> None:
    """InvalidArgument unless outputs can be checked with an engine of this name."""
    if engine not in (ONNXRUNTIME, REFERENCE):
        raise InvalidArgument(
            "outputs cannot be checked with this engine", expected=[ONNXRUNTIME, REFERENCE], got=engine
        )


def answers_of(engine: str, model: str | os.PathLike[str], feeds: Mapping[str, Any]) -> Outputs:
    """The outputs of onnxruntime, or of the reference provider: each node by numpy, nothing optimized."""
    path = os.fspath(model)
    if engine == REFERENCE:
        from sardonyx.model.load import load
        from sardonyx.normalize import normalize
        from sardonyx.optimize.check import answers

        loaded = load(path)
        normalize(loaded)
        return dict(zip(loaded.graph.output_names, answers(loaded, feeds), strict=True))
    require_checker(engine)
    if find_spec(ONNXRUNTIME) is None:
        raise InvalidArgument("onnxruntime is not installed", hint="pip install onnxruntime")
    import importlib

    package: Any = importlib.import_module(ONNXRUNTIME)
    options = package.SessionOptions()
    options.log_severity_level = 4  # the exception says what a log would
    options.graph_optimization_level = package.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = package.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        found = session.run(None, dict(feeds))
    except Exception as error:  # onnxruntime's classes have no common base
        said = " ".join(str(error).split())
        raise InvalidArgument("onnxruntime does not run the model", got=said, hint=f"check with {REFERENCE}") from None
    return dict(zip((output.name for output in session.get_outputs()), found, strict=True))


def checked(
    engine: str, model: str | os.PathLike[str], feeds: Mapping[str, Any], got: Outputs, tolerance: float | None = None
) -> list[Agreement]:
    """Outputs beside those of another engine.

    Some models amplify rounding, so that no two engines agree. Where outputs differ and no ``tolerance`` is given, the
    engine runs once more, with each float of the inputs moved by one unit in the last place, and they may differ
    ``AMPLIFIED`` times as much as its own two answers.
    """
    expected = answers_of(engine, model, feeds)
    found = agreement(expected, got, tolerance)
    moved = _moved(feeds)
    if tolerance is not None or moved is None or all(each.difference is None for each in found):
        return found
    return agreement(expected, got, moved=answers_of(engine, model, moved))


def _moved(feeds: Mapping[str, Any]) -> dict[str, Any] | None:
    """Feeds whose floats have their neighbours' values; None if there are no floats."""
    rng, found, has_floats = np.random.default_rng(0), dict(feeds), False
    for name, value in feeds.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            towards = np.where(rng.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
            found[name], has_floats = np.nextafter(value, towards), True
    return found if has_floats else None


def agreement(
    expected: Outputs, got: Outputs, tolerance: float | None = None, moved: Outputs | None = None
) -> list[Agreement]:
    """Output by output. A float may be off by ``tolerance`` of itself, and of a hundredth of the largest element; or by
    what ``moved`` outputs allow (``checked``).
    """
    again = moved or {}
    return [_agreement(name, expected[name], value, tolerance, again.get(name)) for name, value in got.items()]


def _agreement(name: str, expected: Any, got: Any, tolerance: float | None, moved: Any) -> Agreement:
    pairs, why, rounding = [], None, None
    try:
        noise = [] if moved is None else [_largest(a, b) for a, b in _tensors(expected, moved)]
    except _Unlike:
        noise = []
    try:
        for i, (a, b) in enumerate(_tensors(expected, got)):
            pairs.append((a, b))
            why = why or _difference(a, b, tolerance, AMPLIFIED * noise[i] if noise else 0.0)
            rounding = max(noise) if noise else None
    except _Unlike as unlike:
        return Agreement(name, str(unlike), math.inf)
    floats = [relative_error(_real(b), _real(a)) for a, b in pairs if a.dtype != object and np.isfinite(_real(a)).all()]
    return Agreement(name, why, max(floats, default=0.0), rounding)


def _largest(a: Array, b: Array) -> float:
    """The largest finite difference of two floats."""
    if not is_float(a.dtype) or a.shape != b.shape:
        return 0.0
    apart = np.abs(_real(a) - _real(b))
    return float(apart[np.isfinite(apart)].max(initial=0.0))


class _Unlike(Exception):
    """Two values of different kinds."""


def _tensors(a: Any, b: Any) -> Iterator[tuple[Array, Array]]:
    """The tensors in two values of equal structure, in pairs."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            raise _Unlike("it has other keys")
        for key in a:
            yield from _tensors(a[key], b[key])
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            raise _Unlike(f"it has {len(b)} elements in place of {len(a)}")
        for one, other in zip(a, b, strict=True):
            yield from _tensors(one, other)
    elif (a is None) != (b is None):
        raise _Unlike("only one of the two is empty")
    elif a is not None:
        one, other = _array(a), _array(b)
        if one.dtype != other.dtype or one.shape != other.shape:
            raise _Unlike(f"{other.dtype}{list(other.shape)} in place of {one.dtype}{list(one.shape)}")
        yield one, other


def _array(value: Any) -> Array:
    """Python's floats come from maps of f32."""
    return np.asarray(value, np.float32 if isinstance(value, float) else None)


def _difference(expected: Array, got: Array, tolerance: float | None, noise: float = 0.0) -> str | None:
    dtype = expected.dtype
    if not is_float(dtype):
        from sardonyx.optimize.check import difference

        return difference(expected, got)
    allowed = tolerance if tolerance is not None else TOLERANCES.get(dtype.name, NARROW)
    a, b = _real(expected), _real(got)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return "NaN or infinity in other places"
    a, b = a[finite], b[finite]
    size = float(np.abs(a).max(initial=0.0))
    wrong = np.abs(a - b) > allowed * (np.abs(a) + size / 100) + noise
    if not wrong.any():
        return None
    worst = float(np.abs(a - b).max())
    return f"{wrong.sum()} of {a.size} elements, by {worst:.2g} at most; the largest element is {size:.2g}"


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fc" or dtype.name in TOLERANCES or dtype.name.startswith("float")


def _real(value: Array) -> Array:
    """In float64; complex numbers as pairs."""
    if value.dtype.kind == "c":
        value = np.stack([value.real, value.imag])
    return value.astype(np.float64)
