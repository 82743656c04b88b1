"""Models in f16 or bf16, except for the nodes that a measurement shows to need f32.

    from sardonyx.quantization import auto_convert_mixed_precision
    half = auto_convert_mixed_precision(model, feeds, rtol=0.01, atol=0.001)

Names and arguments are those of onnxconverter_common. ``mixed_precision`` also tells which nodes stay in f32, and why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import RuntimeException
from sardonyx.ir.graph import Model
from sardonyx.model.load import load
from sardonyx.model.save import ExternalData, model_to_proto, save
from sardonyx.normalize.run import unify_opsets
from sardonyx.quantization.calibrate.calibraters import MinMaxCalibrater
from sardonyx.quantization.data import Feeds, feeds_of
from sardonyx.quantization.edges import unused_name
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.taps import session_of
from sardonyx.records import Record
from sardonyx.transformers.float16 import (
    MAX_FINITE,
    HalfPrecision,
    bfloat16_options,
    options_of,
    raise_for_bfloat16,
    simulated_half_precision,
    to_half_precision,
)

if TYPE_CHECKING:
    import onnx

logger = logging.getLogger("sardonyx.quantization")

Outputs = list[Any]
Validate = Callable[[Outputs, Outputs], bool]

MASK = 1e30
"""Magnitudes from here on stand for infinity, in masks; f16 has infinity too."""
KINDS = ("float16", "bfloat16")


class MixedPrecision(Record):
    """A converted model. ``kept`` says of each node that stays in f32 why it does."""

    converted: Model
    kind: str
    kept: Mapping[str, str]
    nodes: int
    trials: int

    @property
    def model(self) -> onnx.ModelProto:
        return model_to_proto(self.converted)

    def save(self, path: str | os.PathLike[str], location: str | None = None) -> None:
        """Write the model; with ``location``, its weights to a file of that name beside it."""
        save(self.converted, path, external=None if location is None else ExternalData(location=location))

    def __str__(self) -> str:
        share = f"{self.nodes - len(self.kept)} of {self.nodes} nodes are in {self.kind} ({self.trials} models tried)"
        return "\n".join([share, *(f"  {name} stays in float32: {why}" for name, why in self.kept.items())])


def auto_convert_mixed_precision(
    model: Any,
    feed_dict: Any,
    validate_fn: Validate | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    keep_io_types: bool = False,
) -> onnx.ModelProto:
    """A copy of a model (a path or a ModelProto) in f16 whose outputs are those of the f32 model within tolerances.

    ``validate_fn(f32_outputs, outputs)`` says whether outputs are accurate enough, in addition to the tolerances or
    instead of them. See ``mixed_precision``.
    """
    return mixed_precision(
        model, feed_dict, validate_fn=validate_fn, rtol=rtol, atol=atol, keep_io_types=keep_io_types
    ).model


def auto_convert_mixed_precision_model_path(
    source_model_path: str | os.PathLike[str],
    input_feed: Any,
    target_model_path: str | os.PathLike[str],
    provider: Sequence[Any] | None = None,
    location: str | None = None,
    customized_validate_func: Validate | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    keep_io_types: bool = True,
    verbose: bool = False,
) -> None:
    """The same from file to file, for models of any size. Weights go to the file ``location`` beside the model."""
    if customized_validate_func is None and rtol is None and atol is None:
        rtol, atol = 1e-3, 1e-5
    found = mixed_precision(
        source_model_path, input_feed, validate_fn=customized_validate_func, rtol=rtol, atol=atol,
        keep_io_types=keep_io_types, providers=provider,
    )  # fmt: skip
    found.save(target_model_path, location)
    logger.log(logging.WARNING if verbose else logging.INFO, "%s", found)


def mixed_precision(
    model: Any,
    data: Any,
    *,
    validate_fn: Validate | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    kind: str = "float16",
    keep_io_types: bool | list[str] = False,
    op_block_list: Iterable[str] | None = None,
    node_block_list: Iterable[str] | None = None,
    max_trials: int = 200,
    providers: Sequence[Any] | None = None,
) -> MixedPrecision:
    """Convert as many nodes as the tolerances allow, measured on data: the feeds of one run, or of several.

    Nodes with values beyond f16's range stay in f32. Of the others all are converted, or else as many as a search finds
    that halves stretches of nodes; every model that it takes is accurate enough. ``kind`` is float16 or bfloat16.

    Trials round every value that the converted model stores, so that their errors are those of engines that fuse
    nothing; the model that is found is run as it is, too. With ``providers``, all trials run as they are, on those.
    """
    if kind not in KINDS:
        raise Misuse("no such kind of floats", expected=" or ".join(KINDS), got=repr(kind))
    if max_trials < 1:
        raise Misuse("max_trials is at least 1", got=max_trials)
    samples = [data] if isinstance(data, Mapping) else list(feeds_of(data))
    if not samples:
        raise Misuse("there are no data to measure errors on", hint="a reader gives its data only once")
    source = load(model)
    unify_opsets(source)
    if kind == "bfloat16":
        raise_for_bfloat16(source)
    _name_nodes(source)
    make = options_of if kind == "float16" else bfloat16_options
    lists = {"keep_io_types": keep_io_types, "op_block_list": op_block_list}
    given = frozenset(node_block_list or ())

    def options(kept: Collection[str]) -> HalfPrecision:
        return make(**lists, node_block_list=given | frozenset(kept))  # type: ignore[arg-type]

    judge = _Judge(source, samples, _validation(validate_fn, rtol, atol), options, providers)
    fixed = dict.fromkeys(given, "in node_block_list")
    if kind == "float16":
        fixed |= {name: why for name, why in _beyond_range(source, samples).items() if name not in given}
    return _search(source, judge, fixed, kind, max_trials)


def _validation(validate_fn: Validate | None, rtol: float | None, atol: float | None) -> Validate:
    """Both of the user's function and of tolerances; one of the latter gets a default where only the other is given."""
    if validate_fn is None and rtol is None and atol is None:
        raise Misuse("say how accurate the model must be", expected="rtol, atol or validate_fn")
    if validate_fn is not None and not callable(validate_fn):
        raise Misuse("validate_fn is not callable", expected="validate_fn(f32_outputs, outputs) -> bool")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (np.isfinite(value) and value >= 0):
            raise Misuse(f"{name} is a tolerance", expected="a number from 0 on", got=value)
    relative, absolute = 1e-5 if rtol is None else rtol, 1e-8 if atol is None else atol

    def validate(expected: Outputs, found: Outputs) -> bool:
        if validate_fn is not None and not validate_fn(expected, found):
            return False
        if rtol is None and atol is None:
            return True
        return all(_is_close(a, b, relative, absolute) for a, b in zip(expected, found, strict=True))

    return validate


def _is_close(expected: Any, found: Any, rtol: float, atol: float) -> bool:
    if isinstance(expected, list):
        return len(expected) == len(found) and all(
            _is_close(a, b, rtol, atol) for a, b in zip(expected, found, strict=True)
        )
    if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "fiub":
        return bool(np.all(expected == found))
    return expected.shape == found.shape and bool(np.allclose(found, expected, rtol, atol, equal_nan=True))


class _Judge:
    """Whether a model with some nodes in f32 is accurate enough."""

    def __init__(
        self,
        source: Model,
        samples: list[Feeds],
        validate: Validate,
        options: Callable[[Collection[str]], HalfPrecision],
        providers: Sequence[Any] | None,
    ) -> None:
        self._source, self._samples, self._validate = source, samples, validate
        self._options, self._providers = options, providers
        self.trials = 0
        self._expected = self._run(source)
        if not all(map(validate, self._expected, self._expected)):
            raise Misuse("validate_fn refuses the float model's own outputs")

    def converted(self, kept: Collection[str]) -> Model:
        return to_half_precision(self._source, self._options(kept))

    def __call__(self, kept: Collection[str]) -> bool:
        self.trials += 1
        if self._providers:
            return self.accepts(self.converted(kept))
        return self.accepts(simulated_half_precision(self._source, self._options(kept)))

    def accepts(self, model: Model) -> bool:
        return all(map(self._validate, self._expected, self._run(model)))

    def _run(self, model: Model) -> list[Outputs]:
        session = session_of(model, providers=self._providers)
        kinds = {given.name: given.type for given in session.get_inputs()}
        made = []
        for feeds in self._samples:
            fed = {name: _as_type(value, kinds.get(name, "")) for name, value in feeds.items()}
            made.append([_widened(each) for each in session.run(None, fed)])
        return made


def _as_type(value: Any, kind: str) -> Any:
    """A feed of floats in the type that the model asks for."""
    if not isinstance(value, np.ndarray) or value.dtype != np.float32:
        return value
    wanted = {"tensor(float16)": dtypes.f16, "tensor(bfloat16)": dtypes.bf16}.get(kind)
    with np.errstate(over="ignore"):
        return value if wanted is None else value.astype(wanted.numpy)


def _widened(value: Any) -> Any:
    if isinstance(value, list):
        return [_widened(each) for each in value]
    is_narrow = isinstance(value, np.ndarray) and value.dtype in (dtypes.f16.numpy, dtypes.bf16.numpy)
    return value.astype(np.float32) if is_narrow else value


def _name_nodes(model: Model) -> None:
    """Give nodes without a name, or with another one's, a name of their own."""
    taken = {node.name for node in model.graph.all_nodes()}
    seen: set[str] = set()
    for node in model.graph.nodes:
        if not node.name or node.name in seen:
            stem = next((out.name for out in node.outputs if out.name), "")
            node.name = unused_name(f"{node.op_type}_{stem}", taken)
        seen.add(node.name)


def _beyond_range(model: Model, samples: list[Feeds]) -> dict[str, str]:
    """The nodes that compute or read values that f16 cannot hold, and which those are."""
    calibrater = MinMaxCalibrater(model)
    calibrater.collect_data(samples)
    reach = {}
    for name, data in calibrater.compute_data().items():
        low, high = data.range_value
        size = float(np.max(np.abs(np.asarray([low, high], np.float64)), initial=0.0))
        if MAX_FINITE < size < MASK:
            reach[name] = size
    found: dict[str, str] = {}
    for node in model.graph.nodes:
        for what, values in (("its result", node.outputs), ("its operand", node.inputs)):
            for value in values:
                if value is not None and value.name in reach and value.const is None:
                    found.setdefault(node.name, f"{what} {value.name!r} reaches {reach[value.name]:.4g}, f16 65504")
    return found


def _search(source: Model, judge: _Judge, fixed: dict[str, str], kind: str, max_trials: int) -> MixedPrecision:
    """Convert stretches of nodes, the longest first; halve those that cost too much accuracy."""
    every = [node.name for node in source.graph.nodes]
    names = [name for name in every if name not in fixed]
    open_ends, single = [(0, len(names))], list[str]()
    kept, succeeded = set(names), False
    while open_ends and judge.trials < max_trials:
        open_ends.sort(key=lambda ends: ends[0] - ends[1])
        start, end = open_ends.pop(0)
        tried = kept.difference(names[start:end])
        if start < end and judge([*fixed, *tried]):
            kept, succeeded = tried, True
        elif end - start == 1:
            single.append(names[start])
        elif start < end:
            middle = (start + end) // 2
            open_ends += [(start, middle), (middle, end)]
    if not succeeded:
        if not judge([*fixed, *kept]):
            raise Misuse(
                f"inputs and outputs in {kind} alone are less accurate than the tolerances allow",
                hint="pass keep_io_types=True, or larger tolerances",
            )
        logger.warning("no node could be converted to %s within the tolerances", kind)
    why = dict(fixed)
    why |= dict.fromkeys(single, f"in {kind} it makes the outputs less accurate than the tolerances allow")
    late = f"not tried: {max_trials} models were"
    reasons = {name: why.get(name, late) for name in every if name in fixed or name in kept}
    made = judge.converted([*fixed, *kept])
    if not judge.accepts(made):
        raise RuntimeException(
            f"the model in {kind} is less accurate on these providers than it should be by its rounding errors",
            hint="pass larger tolerances, or the kernels at fault in op_block_list",
        )
    return MixedPrecision(made, kind, reasons, len(every), judge.trials)
