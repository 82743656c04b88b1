"""The accuracy guard of ``quantize_static``: a model whose outputs lose too much is quantized with more care.

The model is quantized as asked and compared with the float model on the first calibration samples. Below the ratio of
signal to noise of the option AccuracyGuard, more and more of it gives way, and the first model that is good enough is
written:

1. weights get a scale for each channel
2. the layers that do the most damage stay in float, if an eighth of them is enough
3. only operands of products and convolutions are quantized: what lies between them stays in float
4. the layers that do the most damage stay in float, up to half of them

If none is good enough, the most accurate one is written. A warning says what was done.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import SardonyxError
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Graph, Model
from sardonyx.model.save import save
from sardonyx.quantization import static
from sardonyx.quantization.budget.damage import Comparison
from sardonyx.quantization.data import Feeds, feeds_of
from sardonyx.quantization.kinds import NARROW, QuantFormat, QuantType
from sardonyx.quantization.running import open_session
from sardonyx.quantization.settings import Settings
from sardonyx.quantization.switched import Switched

logger = logging.getLogger("sardonyx.quantization")
details = logging.getLogger("sardonyx.quantization.guard")
"""Of attempts, whose other messages are not shown."""

MAX_SAMPLES, MAX_NBYTES = 8, 64 << 20
"""Samples, and bytes of them, that are kept for comparison."""

PRODUCTS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
MEASURED, MEASURED_S = 2, 60
"""Samples on which the damage of single layers is measured, and seconds after which the rest is taken for harmless."""

FEW, MANY = 1 / 8, 1 / 2
"""Shares of the layers that may stay in float: before all that lies between products does, and after that."""

MARGIN_DB = 3.0
"""A model that is not left as asked is to be so much better than the limit."""

NAMED = 4
"""Layers in float that the message names."""

FAILURES = (SardonyxError, OSError, MemoryError)
"""Of a comparison: the model as asked for is written all the same."""

Quantize = Callable[[Model, Settings], None]
"""Quantizes a prepared model in place."""


class Recorded:
    """A reader, or another iterable of feeds, that remembers its first samples."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.samples: list[dict[str, Any]] = []
        self._nbytes = 0

    def __iter__(self) -> Iterator[Feeds]:
        for feeds in feeds_of(self._reader):
            if hasattr(feeds, "items") and len(self.samples) < MAX_SAMPLES and self._nbytes <= MAX_NBYTES:
                self._keep({name: _copied(value) for name, value in feeds.items()})
            yield feeds

    def _keep(self, sample: dict[str, Any]) -> None:
        self._nbytes += sum(a.nbytes for a in sample.values() if isinstance(a, np.ndarray))
        if self._nbytes <= MAX_NBYTES or not self.samples:
            self.samples.append(sample)

    def first_samples(self) -> list[dict[str, Any]]:
        """Read now, if calibration did not read them."""
        if not self.samples:
            for _ in itertools.islice(self, MAX_SAMPLES):
                pass
        return self.samples

    def __len__(self) -> int:
        return len(self._reader)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._reader.set_range(start_index=start_index, end_index=end_index)


def _copied(value: Any) -> Any:
    """A value as it is now: a reader may write the next sample over it."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [_copied(each) for each in value]
    return value.numpy().copy() if hasattr(value, "is_tensor") and value.is_tensor() else value


def is_guarded(settings: Settings) -> bool:
    """Whether the settings leave room: types of 8 bits and more, and no scales of the user's own."""
    kinds = settings.activation_type, settings.weight_type
    return (
        settings.options.accuracy_guard > 0
        and not settings.options.tensor_quant_overrides
        and not any(map(_is_coarse, kinds))
    )


def _is_coarse(kind: QuantType) -> bool:
    return kind.is_float8 or kind in NARROW


@dataclass
class _Attempt:
    model: Model
    what: str
    db: float


def guarded(reference: Any, samples: Sequence[Feeds], prepared: Model, settings: Settings, quantize: Quantize) -> Model:
    """The quantized form of a prepared model, whose graph stays as it is. ``reference`` is the float model as the user
    gave it, of which ``samples`` are feeds.
    """
    asked = clone(prepared)
    quantize(asked, settings)
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sardonyx-", ignore_cleanup_errors=True))
            guard = _Guard(reference, samples, quantize, settings.options.accuracy_guard, Path(folder))
            first = guard.compared("as asked", asked)
        except FAILURES as error:
            _warn_unchecked(f"it cannot be compared here ({str(error) or type(error).__name__})")
            return asked
        if guard.is_random:
            _warn_unchecked("an output of the model is random")
            return asked
        return guard.improved(first, prepared, settings)


def _warn_unchecked(why: str) -> None:
    logger.warning("the accuracy of the quantized model was not checked: %s", why)


class _Guard:
    def __init__(
        self, reference: Any, samples: Sequence[Feeds], quantize: Quantize, least_db: float, folder: Path
    ) -> None:
        """Runs the float model."""
        self.samples, self._quantize = samples, quantize
        self.least_db, self.aimed_db = least_db, least_db + MARGIN_DB
        self.path = folder / "quantized.onnx"
        if isinstance(reference, Model):
            save(reference, path := folder / "float.onnx")
            reference = path
        *self._expected, again = _outputs(reference, [*samples, samples[0]])
        self.is_random = self.db([again]) < least_db

    def improved(self, first: _Attempt, prepared: Model, settings: Settings) -> Model:
        """The model of the first attempt, or a more accurate one if it is not accurate enough."""
        best = first
        if first.db >= self.least_db:
            return first.model
        with _quiet():
            for attempt in self._others(prepared, settings):
                if attempt.db > best.db:
                    best = attempt
                if attempt.db >= self.aimed_db:
                    break
        self._tell(first, best)
        return best.model

    def _others(self, prepared: Model, settings: Settings) -> Iterator[_Attempt]:
        what = "with a scale for each channel of weights"
        if not settings.per_channel:
            settings = replace(settings, per_channel=True)
            yield from self._attempt(what, prepared, settings)
        options = replace(settings.options, op_types_to_exclude_output_quantization=tuple(sorted(PRODUCTS)))
        chosen = PRODUCTS.intersection(settings.op_types)
        products = replace(settings, op_types=chosen, options=options, float_between=True)
        if not any(map(products.wants, prepared.graph.nodes)):
            return
        yield from self._with_float_layers(what, prepared, settings, FEW)
        what += " and float between products"
        yield from self._attempt(what, prepared, products)
        yield from self._with_float_layers(what, prepared, products, MANY)

    def _with_float_layers(self, what: str, prepared: Model, settings: Settings, share: float) -> Iterator[_Attempt]:
        """At most that share of the layers in float, and as few as will do."""
        named = clone(prepared)
        _name_nodes(named.graph)
        with _given_up(f"{what}, and layers in float"):
            search = _Layers(self, named, settings)
            for kept in search.choices(share):
                names = ", ".join(kept[:NAMED]) + (" ..." if len(kept) > NAMED else "")
                said = f"{what}, and {len(kept)} of {search.count} layers in float ({names})"
                excluded = frozenset({*settings.nodes_to_exclude, *kept})
                yield from self._attempt(said, named, replace(settings, nodes_to_exclude=excluded))

    def _attempt(self, what: str, prepared: Model, settings: Settings) -> Iterator[_Attempt]:
        """One, or none where the model, the options or what can be run here do not allow it."""
        with _given_up(what):
            model = clone(prepared)
            self._quantize(model, settings)
            yield self.compared(what, model)

    def compared(self, what: str, model: Model) -> _Attempt:
        save(model, self.path)
        return _Attempt(model, what, self.db(_outputs(str(self.path), self.samples)))

    def db(self, outputs: Sequence[Sequence[Any]]) -> float:
        """Of the worst output of floats, for as many samples as there are outputs; outputs whose sizes follow from data
        count where they have the same size.
        """
        found = []
        for i, first in enumerate(self._expected[0]):
            if not isinstance(first, np.ndarray) or first.dtype.kind != "f":
                continue
            comparison = Comparison()
            for expected, got in zip(self._expected, outputs, strict=False):
                if np.shape(expected[i]) == np.shape(got[i]):
                    comparison.add(expected[i], got[i])
            if comparison.signal or not comparison.is_finite:
                found.append(comparison.sqnr_db)
        return min(found, default=math.inf)

    def _tell(self, first: _Attempt, best: _Attempt) -> None:
        begin = f"quantized as asked, the outputs have only {first.db:.1f} dB of signal to noise"
        hint = "extra_options={'AccuracyGuard': 0} turns this off"
        if best.db >= self.least_db:
            logger.warning("%s; quantized instead %s: %.1f dB (%s)", begin, best.what, best.db, hint)
        else:
            logger.warning(
                "%s, and no more than %.1f dB quantized %s: check the accuracy; sardonyx.quantization.debug() says "
                "what goes wrong (%s)",
                begin, best.db, best.what, hint,
            )  # fmt: skip


class _Layers:
    """Which layers do the most damage, each measured with all others in float."""

    def __init__(self, guard: _Guard, floats: Model, settings: Settings) -> None:
        self._guard = guard
        wanted = {node.name for node in floats.graph.nodes if node.op_type in PRODUCTS and settings.wants(node)}
        in_qdq = clone(floats)
        static.prepare(in_qdq, settings, QuantFormat.QDQ)
        static.rewrite(in_qdq, settings, QuantFormat.QDQ)
        self._model = Switched(floats, in_qdq, wanted, guard.path)
        self.count = len(self._model.layers)

    def choices(self, share: float) -> Iterator[list[str]]:
        """Fewest first: layers that are to stay in float; none if FEW will not do."""
        most = int(share * self.count)
        if not most:
            return
        noise = self._noise()
        order = sorted(noise, key=noise.__getitem__, reverse=True)
        too_few, enough = 0, most
        if share == FEW and self._db(self.samples, order[:most]) < self._guard.aimed_db:
            return
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            is_enough = self._db(self.samples, order[:middle]) >= self._guard.aimed_db
            too_few, enough = (too_few, middle) if is_enough else (middle, enough)
        while enough:
            yield order[:enough]
            enough = 0 if enough == most else min(2 * enough, most)

    def _noise(self) -> dict[str, float]:
        """By layer, as a share of the outputs' signal."""
        found = dict.fromkeys(self._model.layers, 0.0)
        end = time.monotonic() + MEASURED_S
        for layer in self._model.layers:
            if time.monotonic() > end:
                details.info("after %d s the damage of layers is no longer measured: %s and later", MEASURED_S, layer)
                break
            others = [each for each in self._model.layers if each != layer]
            found[layer] = 10 ** (-self._db(self.samples[:MEASURED], others) / 10)
        return found

    @property
    def samples(self) -> Sequence[Feeds]:
        return self._guard.samples

    def _db(self, samples: Sequence[Feeds], in_float: Collection[str]) -> float:
        return self._guard.db([self._model.run(feeds, in_float) for feeds in samples])


def _outputs(model: Any, samples: Sequence[Feeds]) -> list[list[Any]]:
    session = open_session(model)
    return [list(session.run(None, dict(feeds))) for feeds in samples]


@contextlib.contextmanager
def _given_up(what: str) -> Iterator[None]:
    """An attempt that fails is none: the model as asked for is there."""
    try:
        yield
    except FAILURES as error:
        details.info("not quantized %s: %s", what, error or type(error).__name__)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No messages of attempts that repeat those of the first model."""
    thread = threading.get_ident()

    def is_kept(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.levelno >= logging.ERROR

    logger.addFilter(is_kept)
    try:
        yield
    finally:
        logger.removeFilter(is_kept)


def _name_nodes(graph: Graph) -> None:
    """Names of their own for all nodes: layers are kept in float by name."""
    counts = Counter(node.name for node in graph.nodes)
    taken = {*counts, *(name for node in graph.nodes for name in node.origin)}
    for node in graph.nodes:
        if node.name and counts[node.name] == 1:
            continue
        stem = node.name or f"{node.op_type}_{next((v.name for v in node.outputs if v.name), '')}"
        if node.name and node.name not in node.origin:
            node.origin = (*node.origin, node.name)
        node.name = next(name for i in itertools.count() if (name := f"{stem}_{i}" if i else stem) not in taken)
        taken.add(node.name)
