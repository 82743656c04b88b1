"""Both models run on data: the error of every tensor, accumulated and of its layer alone, and the values of tensors.

For the error of a layer alone, every matched tensor of the quantized model is replaced, for its readers, by the float
model's values. One run then gives the errors of all layers, each on exact inputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Model, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.quantization.data import Feeds
from sardonyx.quantization.diagnosis.grids import Array, Grid, fitted
from sardonyx.quantization.diagnosis.layers import REALS, Layers
from sardonyx.quantization.diagnosis.match import Pair
from sardonyx.quantization.taps import Tapped, values_by_name

SAMPLE = 1 << 16
"""Values of a tensor that are kept."""


@dataclass
class Noise:
    """Energies of a signal and of its error."""

    signal: float = 0.0
    noise: float = 0.0

    def add(self, x: Array, y: Array) -> None:
        wide = x.astype(np.float64)
        self.signal += float(np.square(wide).sum())
        self.noise += float(np.square(wide - y.astype(np.float64)).sum())

    @property
    def db(self) -> float:
        return ratio_db(self.signal, self.noise)


def ratio_db(signal: float, noise: float) -> float:
    """The ratio of two energies in decibels."""
    if noise == 0:
        return math.inf
    return -math.inf if signal == 0 or not math.isfinite(noise) else 10 * math.log10(signal / noise)


@dataclass
class Seen:
    """The values that a tensor of the float model had, and what the quantized model's grid makes of them."""

    total: Noise = field(default_factory=Noise)
    clipped: Noise = field(default_factory=Noise)
    """The part of the error that lies outside of the grid's range."""
    low: float = math.inf
    high: float = -math.inf
    count: int = 0
    below: int = 0
    above: int = 0
    peaks: Array | None = None
    """The largest magnitude of each channel."""
    energy: Array | None = None
    noise: Array | None = None
    """Energies of each channel's signal and error."""
    sample: list[Array] = field(default_factory=list)
    first: Array | None = None
    """The values of the first run."""

    def add(self, x: Array, rounded: Array, grid: Grid) -> None:
        self.total.add(x, rounded)
        self.low, self.high = min(self.low, float(x.min(initial=0))), max(self.high, float(x.max(initial=0)))
        self.count += x.size
        if grid.is_per_tensor:
            low, high = grid.range
            step = abs(float(grid.scale.reshape(-1)[0]))
            outside = (x < low - step / 2) | (x > high + step / 2)
            self.below += int((x < low - step / 2).sum())
            self.above += int((x > high + step / 2).sum())
            self.clipped.add(x[outside], rounded[outside])
        self._add_channels(x, rounded)
        if self.first is None:
            self.first = x
        room = SAMPLE - sum(len(s) for s in self.sample)
        if room > 0:
            flat = x.reshape(-1)
            self.sample.append(flat[:: max(1, len(flat) // max(1, min(room, SAMPLE // 8)))][:room].astype(np.float32))

    def _add_channels(self, x: Array, rounded: Array) -> None:
        if x.ndim < 2:
            return
        axis = 1 if x.ndim == 4 else x.ndim - 1
        others = tuple(i for i in range(x.ndim) if i != axis)
        peaks = np.abs(x).max(axis=others, initial=0)
        wide = x.astype(np.float64)
        energy, noise = (wide * wide).sum(axis=others), np.square(wide - rounded.astype(np.float64)).sum(axis=others)
        if self.peaks is None:
            self.peaks, self.energy, self.noise = peaks, energy, noise
        elif self.energy is not None and self.noise is not None and len(self.peaks) == len(peaks):
            self.peaks = np.maximum(self.peaks, peaks)
            self.energy, self.noise = self.energy + energy, self.noise + noise

    @property
    def values(self) -> Array:
        return np.concatenate(self.sample) if self.sample else np.zeros(0, np.float32)


@dataclass
class Measured:
    accumulated: dict[str, Noise]
    """By name of the tensor in the float model."""
    local: dict[str, Noise]
    seen: dict[str, Seen]
    outputs: dict[str, Noise]
    runs: int


def measure(real: Layers, quantized: Layers, pairs: Sequence[Pair], data: Iterable[Feeds], limit: int) -> Measured:
    """Run both models on at most ``limit`` samples."""
    names = {p.name: _point_name(p) for p in pairs if p.index >= 0}
    watched = [p for p in pairs if p.quantized.quantize or p.quantized.is_dynamic]
    returned = list(zip(real.model.graph.output_names, quantized.model.graph.output_names, strict=False))
    outputs = [(a, b) for a, b in returned if _is_real(real.model, a) and _is_real(quantized.model, b)]
    wanted = [*names, *(p.name for p in watched), *(a for a, _ in outputs)]
    float_run = Tapped(real.model, wanted)
    quantized_run = Tapped(quantized.model, [*names.values(), *(b for _, b in outputs)], level="disabled")
    model, fed = forced(quantized.model, pairs)
    forced_run = Tapped(model, names.values(), level="disabled") if names else None
    found = Measured({n: Noise() for n in names}, {n: Noise() for n in names}, {p.name: Seen() for p in watched}, {}, 0)
    by_name = {p.name: p for p in pairs}
    inputs = {p.name: p.quantized.source.name for p in pairs if p.index < 0}
    for feeds in itertools.islice(data, limit):
        exact = float_run.run(feeds)
        for name, x in exact.items():
            if x.dtype.kind in "fV" and not np.isfinite(x.astype(np.float32)).all():
                raise RuntimeException("the float model gives values that are not finite on this data", where=name)
        renamed = {theirs: feeds[ours] for ours, theirs in inputs.items() if ours in feeds}
        got = quantized_run.run(renamed)
        _compare(found.accumulated, exact, got, by_name, names)
        for a, b in outputs:
            found.outputs.setdefault(a, Noise()).add(exact[a], got[b])
        if forced_run is not None:
            given = {key: exact[name].astype(dtype) for key, (name, dtype) in fed.items()}
            _compare(found.local, exact, forced_run.run({**renamed, **given}), by_name, names)
        for pair in watched:
            if exact[pair.name].dtype.kind in "fV":
                _see(found.seen[pair.name], exact[pair.name], pair)
        found.runs += 1
    if not found.runs:
        raise InvalidArgument("there is no data to compare the models on", hint="a reader gives its data only once")
    return found


def forced(model: Model, pairs: Sequence[Pair]) -> tuple[Model, dict[str, tuple[str, Any]]]:
    """The quantized model with a further input for each matched tensor, which all its readers read; and for each of
    these inputs the tensor of the float model and the element type.
    """
    copy = clone(model)
    values, fed = values_by_name(copy), dict[str, tuple[str, Any]]()
    copy.graph.drop_outputs()
    for pair in pairs:
        if pair.index < 0:
            continue
        tensor = pair.quantized
        source = values[tensor.source.name]
        is_integer = any(v.name == source.name for v, _ in tensor.forms)
        kind = source.dtype or pair.real.source.dtype or dtypes.f32
        if is_integer:
            kind = dtypes.of_numpy(tensor.forms[0][1].scale.dtype)
        if kind not in REALS:
            continue
        rank = source.rank
        given = Value(f"{pair.name}/float", TensorType(kind, None if rank is None else (None,) * rank))
        own = {v.name for v, _ in (*tensor.forms, *tensor.read)}
        replaced = [_replace(copy, source, given, own, _grid(tensor.forms, source))]
        replaced += [_replace(copy, values[v.name], given, own, None) for v, _ in tensor.read]
        replaced += [_replace(copy, values[v.name], given, own, g) for v, g in tensor.forms if v.name != source.name]
        if any(replaced):
            copy.graph.inputs.append(given)
            fed[given.name] = pair.name, kind.numpy
    return copy, fed


def _replace(model: Model, old: Value, new: Value, own: set[str], grid: Grid | None) -> bool:
    """Let the readers of ``old`` read ``new``, as integers if there is a grid, except for those that make ``own``
    values.
    """
    uses = [(node, i) for node, i in old.uses if node.outputs[0].name not in own]
    for node, i in uses:
        graph, value = node.graph, new
        assert graph is not None
        if grid is not None:
            value = Value(f"{new.name}/{node.name}/{i}", TensorType(grid.dtype, old.shape))
            scale, zero = (
                model.graph.add_const(a, f"{value.name}/{b}") for a, b in ((grid.scale, "s"), (grid.zero, "z"))
            )
            graph.insert(Node("QuantizeLinear", [new, scale, zero], [value]), before=node)
        node.set_input(i, value)
    return bool(uses)


def _grid(forms: Sequence[tuple[Value, Grid]], source: Value) -> Grid | None:
    return next((grid for value, grid in forms if value.name == source.name), None)


def _point_name(pair: Pair) -> str:
    return pair.quantized.point[0].name


def _is_real(model: Model, name: str) -> bool:
    value = dict(zip(model.graph.output_names, model.graph.outputs, strict=True))[name]
    return value.dtype in REALS


def _compare(
    noises: dict[str, Noise], exact: dict[str, Any], got: dict[str, Any], pairs: dict[str, Pair], names: dict[str, str]
) -> None:
    for name, noise in noises.items():
        grid, x, y = pairs[name].quantized.point[1], exact[name], got[names[name]]
        y = y if grid is None else grid.reals(y)
        if y.shape != x.shape and y.size == x.size:
            y = y.reshape(x.shape)
        if y.shape == x.shape and x.dtype.kind in "fV" and y.dtype.kind in "fV":
            noise.add(x, y)


def _see(seen: Seen, x: Array, pair: Pair) -> None:
    tensor = pair.quantized
    wide = x.astype(np.float32)
    if tensor.quantize:
        grid = tensor.quantize[-1]
        codes = grid.codes(wide)
        read = tensor.read_as[0] if tensor.read_as else grid
        seen.add(wide, read.reals(codes) if read.dtype is grid.dtype else grid.reals(codes), grid)
    else:
        grid = fitted(wide, DYNAMIC_GRID)
        seen.add(wide, grid.reals(grid.codes(wide)), grid)


DYNAMIC_GRID = Grid(np.float32(1).reshape(()), np.array(3, np.uint8), dtypes.u8)
"""The type and symmetry of DynamicQuantizeLinear's results."""
