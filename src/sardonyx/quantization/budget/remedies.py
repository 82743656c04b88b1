"""What may make a quantized model more accurate without keeping a layer in float."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sardonyx.quantization.budget.maker import Maker, Source
from sardonyx.quantization.kinds import QuantFormat

SMOOTHING = "SmoothQuant"
Applied = Source | str
"""A source with the remedy, or why it does not apply."""


def _equalization(source: Source, maker: Maker) -> Applied:
    from sardonyx.quantization.equalize import equalize_layers

    result = equalize_layers(str(source.path))
    if not result.pairs:
        return "no two layers in a row allow it"
    return _changed(source, maker, "equalization", result.model)


def _per_channel(source: Source, maker: Maker) -> Applied:
    if source.settings.get("per_channel"):
        return "weights have a scale per channel already"
    settings = {**source.settings, "per_channel": True}
    return replace(source, settings=settings, remedies=(*source.remedies, "per-channel weights"))


def smoothing(source: Source, maker: Maker) -> Applied:
    from sardonyx.quantization.smooth import muls_of

    if not maker.has_samples:
        return "there are no calibration data, only their ranges"
    model, done = maker.smoothed(source)
    if not done:
        return "no product with a constant weight is quantized"
    made = _changed(source, maker, SMOOTHING, model)
    assert isinstance(made, Source)
    return replace(made, real_nodes=(*source.real_nodes, *muls_of(done)))


def _bias_correction(source: Source, maker: Maker) -> Applied:
    if maker.format_name != QuantFormat.QDQ.name:
        return "it changes models in the QDQ format"
    if not maker.has_samples:
        return "there are no calibration data"
    return replace(source, corrects_biases=True, remedies=(*source.remedies, "bias correction"))


REMEDIES: dict[str, Callable[[Source, Maker], Applied]] = {
    "equalization": _equalization,
    "per-channel weights": _per_channel,
    "bias correction": _bias_correction,
    SMOOTHING: smoothing,
}
"""By the names of ``goal.REMEDIES``, in the order in which they are tried."""


def _changed(source: Source, maker: Maker, remedy: str, model: Any) -> Applied:
    """A source whose float model was rewritten, to be calibrated again."""
    if not maker.has_samples:
        return "there are no calibration data, only their ranges"
    made = maker.source(f"{source.name}-{remedy}", model)
    return replace(
        made,
        settings=source.settings,
        remedies=(*source.remedies, remedy),
        corrects_biases=source.corrects_biases,
        real_nodes=source.real_nodes,
    )
