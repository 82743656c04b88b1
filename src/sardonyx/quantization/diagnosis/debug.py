"""``sardonyx.quantization.debug``: why a quantized model is wrong, and what to change.

report = debug("model.onnx", "model.int8.onnx", samples)
print(report)            # the verdict, the findings and a table of layers
report.first.layer       # the first layer at fault
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sardonyx.errors import InvalidArgument
from sardonyx.model.load import load
from sardonyx.quantization.data import Feeds, feeds_of
from sardonyx.quantization.diagnosis.activations import check_activation
from sardonyx.quantization.diagnosis.layers import Constant, Layer, Layers, computed
from sardonyx.quantization.diagnosis.match import FOLDED, Pair, matched
from sardonyx.quantization.diagnosis.measure import Measured, measure
from sardonyx.quantization.diagnosis.report import ERROR, Diagnosis, Finding, LayerError
from sardonyx.quantization.diagnosis.saturation import check_saturation
from sardonyx.quantization.diagnosis.weights import Known, check_bias, check_weight, product_scale

LOCAL_DB = 12.0
"""The ratio of signal to noise of a layer on exact inputs below which something is wrong with it."""

GOOD_DB, GOOD_ON_QUIET_DATA_DB = 45.0, 30.0
"""Where all outputs are better, scales that do not fit the data are no errors. The second holds for inputs and, where
an input is much smaller than its scale allows for, for all tensors: calibration saw other data.
"""


def debug(float_model: Any, quantized_model: Any, data: Any, *, max_samples: int = 32) -> Diagnosis:
    """Compare a quantized model, made by any tool in any format, with the float model that it came from.

    Models are paths, bytes or ModelProtos. ``data`` is a ``CalibrationDataReader``, an iterable of feeds or the feeds
    of one run; at most ``max_samples`` runs are made. The float model should be the one that was quantized: after
    ``quant_pre_process``, if that was used.
    """
    real, quantized = Layers(load(float_model)), Layers(load(quantized_model))
    if not _is_quantized(quantized):
        raise InvalidArgument("the second model is not quantized", hint="debug(float_model, quantized_model, data)")
    pairs = matched(real, quantized)
    if not any(p.index >= 0 for p in pairs):
        raise InvalidArgument(
            "the models have no layer in common", hint="give the float model that the quantized one was made from"
        )
    measured = measure(real, quantized, pairs, _feeds(data), max_samples)
    findings = sorted(_findings(real, quantized, pairs, measured), key=lambda f: f.index)
    have, layers = {p.index for p in pairs}, computed(real.layers)
    folded = {id(p.real_layer.inputs[0]) for p in pairs if p.real_layer is not None and p.real_layer.kind in FOLDED}
    unmatched = [e.label for i, e in enumerate(layers) if i not in have and id(e.tensor) not in folded]
    errors = [
        LayerError(
            p.label, p.real_layer.kind, p.name, measured.accumulated[p.name].db, measured.local[p.name].db,
            "name" if p.by_name else "structure", p.quantized_layer.label,
        )
        for p in pairs
        if p.real_layer is not None and p.quantized_layer is not None
    ]  # fmt: skip
    outputs = {name: noise.db for name, noise in measured.outputs.items()}
    return Diagnosis(findings, errors, outputs, measured.runs, unmatched)


def _feeds(data: Any) -> Iterable[Feeds]:
    return [data] if isinstance(data, Mapping) else feeds_of(data)


def _is_quantized(model: Layers) -> bool:
    graph = model.model.graph
    names = {node.op_type for node in graph.all_nodes()}
    marks = (
        "QuantizeLinear",
        "QLinear",
        "Integer",
        "NBits",
        "BlockQuantized",
        "DynamicQuantize",
        "QGemm",
        "QAttention",
    )
    return any(mark in name for name in names for mark in marks) or "DequantizeLinear" in names


def _findings(real: Layers, quantized: Layers, pairs: list[Pair], measured: Measured) -> list[Finding]:
    found: list[Finding] = []
    by_tensor = {id(p.quantized): p for p in pairs}
    constants = {c.name: (c, layer) for layer in real.layers for c in (layer.weight, layer.bias) if c is not None}
    weight_db: dict[str, float] = {}
    for layer in quantized.layers:
        pair = by_tensor.get(id(layer.tensor)) or _after(layer, quantized, by_tensor)
        if pair is None:
            continue
        at = Known(pair.label, layer.label, pair.index)
        original = _original(layer.weight, pair, constants, real, bias=False)
        if original is not None and layer.weight is not None:
            made, weight_db[pair.name] = check_weight(original, layer.weight, layer.kind, _named(at, original, real))
            found += made
        original = _original(layer.bias, pair, constants, real, bias=True)
        if original is not None and layer.bias is not None:
            found += check_bias(original, layer.bias, product_scale(layer), _named(at, original, real))
        first = by_tensor.get(id(layer.inputs[0])) if layer.inputs else None
        if first is not None and first.name in measured.seen:
            found += check_saturation(layer, pair, first, measured.seen[first.name])
    read = {id(tensor) for layer in quantized.layers for tensor in layer.inputs}
    worst, good = min((noise.db for noise in measured.outputs.values()), default=0.0), GOOD_DB
    for pair in pairs:  # inputs first
        if pair.name not in measured.seen:
            continue
        is_input = pair.index < 0
        is_harmless = worst >= (GOOD_ON_QUIET_DATA_DB if is_input else good)
        made = check_activation(
            pair, measured.seen[pair.name], is_harmless=is_harmless, is_read=id(pair.quantized) in read
        )
        if is_input and any(finding.cause == "wrong scale" for finding in made):
            good = GOOD_ON_QUIET_DATA_DB
        found += made
    return [*found, *_unexplained(pairs, measured, weight_db, found)]


def _after(layer: Layer, model: Layers, by_tensor: dict[int, Pair]) -> Pair | None:
    """The pair of the only layer that reads an unmatched one."""
    readers = [other for other in model.layers if layer.tensor in other.inputs]
    return by_tensor.get(id(readers[0].tensor)) if len(readers) == 1 else None


def _named(at: Known, original: Constant, real: Layers) -> Known:
    """The place of a weight: the layer of the float model that reads it."""
    for i, layer in enumerate(computed(real.layers)):
        if original is layer.weight or original is layer.bias:
            return Known(layer.label, at.node, min(i, at.index) if at.index >= 0 else i)
    return at


def _original(
    constant: Constant | None, pair: Pair, constants: dict[str, tuple[Constant, Layer]], real: Layers, *, bias: bool
) -> Constant | None:
    """The float model's weight or bias: by name, else that of the matched layer, or of the one folded into it."""
    if constant is None or constant.grid is None:
        return None
    if constant.name in constants:
        return constants[constant.name][0]
    layer = pair.real_layer
    if layer is not None and layer.kind in FOLDED and layer.inputs:
        layer = next((before for before in real.layers if before.tensor is layer.inputs[0]), layer)
    return None if layer is None else layer.bias if bias else layer.weight


def _unexplained(
    pairs: list[Pair], measured: Measured, weight_db: dict[str, float], found: list[Finding]
) -> list[Finding]:
    """Layers that are wrong on exact inputs although their weights and ranges are right."""
    errors = [f for f in found if f.severity == ERROR]
    tensors, nodes = {f.tensor for f in errors}, {f.node for f in errors}
    names = {id(p.quantized): p.name for p in pairs}
    made = []
    for pair in pairs:
        layer = pair.quantized_layer
        if pair.real_layer is None or layer is None or pair.name in tensors or layer.label in nodes:
            continue
        if any(names.get(id(t)) in tensors for t in layer.inputs):
            continue
        local, weight = measured.local[pair.name].db, weight_db.get(pair.name, float("inf"))
        own = measured.seen[pair.name].total.db if pair.name in measured.seen else float("inf")
        if local >= min(LOCAL_DB, weight - 6, own - 6):
            continue
        numbers = {"local_db": local, "weight_db": weight}
        what = f"on the float model's inputs its result has {local:.1f} dB, and no scale or zero point explains it"
        change = "compare the node's attributes and inputs with those of the float model, or leave the node in float"
        made.append(
            Finding(pair.label, pair.name, "unexplained", what, change, ERROR, numbers, pair.index, layer.label)
        )
    return made
