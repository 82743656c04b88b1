"""``compare_models``: two models, or one model on two engines: outputs, intermediate values, times."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.bench.inputs import generate_inputs
from sardonyx.errors import InvalidArgument
from sardonyx.inspection.engines import Runner, load_engine
from sardonyx.optimize.check import difference
from sardonyx.records import Record

if TYPE_CHECKING:
    import onnx

TOLERANCE = 1e-3
"""Relative L2 distance up to which values count as alike."""
CHUNK = 64
"""Intermediate values that a run returns at once: all of a large model's would not fit into memory."""
WARM, RUNS, MOST_S = 2, 15, 4.0


class Difference(Record):
    """How a value of the second model differs from that of the same name in the first."""

    name: str
    operator: str
    """That makes the value; empty for outputs."""
    shape: tuple[int, ...] | None
    error: float | None
    """Relative L2 distance; None for values that are not numbers, or of other shapes."""
    largest: float | None
    """The largest absolute difference of two elements."""
    reason: str | None
    """Why the values are not alike; None if they are."""


class Comparison(Record):
    """``str()`` is a report for people."""

    a: str
    b: str
    outputs: tuple[Difference, ...]
    layers: tuple[Difference, ...]
    """Values that both models have by name, in the order of the first; empty if they were not compared."""
    first: Difference | None
    """The first of these that is not alike."""
    seconds: tuple[float, float] | None
    """Median times of a run."""
    statements: tuple[str, ...]
    """What was assumed to generate inputs."""

    @property
    def is_alike(self) -> bool:
        """Whether all outputs are alike."""
        return all(d.reason is None for d in self.outputs)

    def __str__(self) -> str:
        from sardonyx.inspection.comparison_text import comparison_text

        return comparison_text(self)


def compare_models(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str] | None = None,
    *,
    engines: tuple[str, str] | None = None,
    feeds: Mapping[str, Any] | None = None,
    dimensions: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    tolerance: float = TOLERANCE,
    layers: bool = True,
    times: bool = True,
    seed: int = 0,
    step: Callable[[str], None] = lambda what: None,
) -> Comparison:
    """Compare two models on Sardonyx, or one model on two ``engines`` (sardonyx, onnxruntime, reference).

    Both get the same ``feeds``, which are generated from the first model's inputs if none are given. Outputs are
    matched by name, or by position where the names differ. With ``layers``, values inside are compared by name too:
    both models then run with all of these as outputs, which keeps them from being fused away. ``step`` is called with
    what is done next.
    """
    if engines is None:
        engines = ("sardonyx", "sardonyx") if b is not None else ("sardonyx", "onnxruntime")
    paths = os.fspath(a), os.fspath(a if b is None else b)
    statements: tuple[str, ...] = ()
    if feeds is None:
        given = generate_inputs(paths[0], dimensions=dimensions, shapes=shapes, seed=seed)
        feeds, statements = given.feeds, given.statements
    step("loading both")
    runners = load_engine(engines[0], paths[0]), load_engine(engines[1], paths[1])
    step("comparing outputs")
    outputs = _outputs(runners, feeds, tolerance)
    found: list[Difference] = []
    if layers:
        step("comparing values inside")
        found = _layers(paths, engines, feeds, tolerance)
    step("timing both")
    seconds = _times(runners, feeds) if times else None
    names = [os.path.basename(p) for p in paths]
    shown = [
        name if engines[0] == engines[1] else f"{name} on {engine}" for name, engine in zip(names, engines, strict=True)
    ]
    first = next((d for d in found if d.reason is not None), None)
    return Comparison(shown[0], shown[1], tuple(outputs), tuple(found), first, seconds, statements)


def _outputs(runners: tuple[Runner, Runner], feeds: Mapping[str, Any], tolerance: float) -> list[Difference]:
    a, b = runners
    if len(a.outputs) != len(b.outputs):
        raise InvalidArgument(
            "the models have different numbers of outputs", expected=list(a.outputs), got=list(b.outputs)
        )
    order = a.outputs if set(a.outputs) == set(b.outputs) else b.outputs
    first, second = a.run(list(a.outputs), feeds), b.run(list(order), feeds)
    return [_difference(name, "", x, y, tolerance) for name, x, y in zip(a.outputs, first, second, strict=True)]


def _difference(name: str, operator: str, a: Any, b: Any, tolerance: float) -> Difference:
    reason = difference(a, b, tolerance)
    shape = a.shape if isinstance(a, np.ndarray) else None
    is_numeric = all(isinstance(v, np.ndarray) and v.dtype.kind not in "OUSb" for v in (a, b))
    if not is_numeric or a.shape != b.shape or a.dtype.kind == "c":
        return Difference(name, operator, shape, None, None, reason)
    x, y = a.astype(np.float64), b.astype(np.float64)
    both = np.isfinite(x) & np.isfinite(y)
    x, y = x[both], y[both]
    norm = float(np.linalg.norm(x))
    distance = float(np.linalg.norm(x - y))
    error = distance / norm if norm else distance
    return Difference(name, operator, shape, error, float(np.abs(x - y).max(initial=0.0)), reason)


def _layers(
    paths: tuple[str, str], engines: tuple[str, str], feeds: Mapping[str, Any], tolerance: float
) -> list[Difference]:
    """Compare the values that both models have by name."""
    protos = _proto(paths[0]), _proto(paths[1])
    operators = {name: node.op_type for node in protos[0].graph.node for name in node.output if name}
    others = {name for node in protos[1].graph.node for name in node.output}
    names = [name for name in operators if name in others]
    if not names:
        return []
    a, b = (load_engine(e, _with_outputs(p, names)) for e, p in zip(engines, protos, strict=True))
    found = []
    for at in range(0, len(names), CHUNK):
        part = names[at : at + CHUNK]
        for name, x, y in zip(part, a.run(part, feeds), b.run(part, feeds), strict=True):
            found.append(_difference(name, operators[name], x, y, tolerance))
    return found


def _proto(path: str) -> onnx.ModelProto:
    import onnx

    return onnx.load(path)


def _with_outputs(proto: onnx.ModelProto, names: Sequence[str]) -> bytes:
    """The model with these values as outputs too."""
    import onnx

    known = {output.name for output in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    try:
        return bytes(proto.SerializeToString())
    except ValueError as error:
        raise InvalidArgument(
            "values inside cannot be compared: the model is larger than protobuf's 2 GB", hint="compare outputs only"
        ) from error


def _times(runners: tuple[Runner, Runner], feeds: Mapping[str, Any]) -> tuple[float, float]:
    """Median times of runs that take turns."""
    times: tuple[list[float], list[float]] = ([], [])
    begun = time.perf_counter()
    for turn in range(WARM + RUNS):
        for runner, taken in zip(runners, times, strict=True):
            start = time.perf_counter()
            runner.run(None, feeds)
            if turn >= WARM:
                taken.append(time.perf_counter() - start)
        if turn > WARM and time.perf_counter() - begun > MOST_S:
            break
    return median(times[0]), median(times[1])
