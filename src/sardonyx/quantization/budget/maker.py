"""Models with some layers in integers and the others in float, from one calibration of each float model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sardonyx.quantization.budget.samples import Reader, Samples
from sardonyx.quantization.edges import read_proto, write_proto

if TYPE_CHECKING:
    import onnx

    from sardonyx.quantization.smooth import Smoothed

FILES = 16
"""Quantized models that lie in the folder at a time."""

Static = Callable[..., Any]
"""``quantize_static``, without a budget."""


@dataclass(frozen=True)
class Source:
    """A float model and what is done to it: files of the model and of its calibration, changed settings, remedies."""

    name: str
    path: Path
    ranges: Path
    settings: Mapping[str, Any]
    remedies: tuple[str, ...] = ()
    corrects_biases: bool = False
    real_nodes: tuple[str, ...] = ()
    """Nodes that a remedy added and that are never quantized."""


class Maker:
    """Quantizes sources; files lie in ``folder`` until the search ends."""

    def __init__(self, static: Static, folder: Path, samples: Samples | None, settings: Mapping[str, Any]) -> None:
        self._static, self._folder, self._samples = static, folder, samples
        self._given = dict(settings)
        self._only = self._given.pop("nodes_to_quantize", None) or []
        self._never = list(self._given.pop("nodes_to_exclude", None) or [])
        self._format = self._given.pop("quant_format")
        self._made = 0
        self.has_samples = samples is not None
        self.format_name: str = self._format.name

    def source(self, name: str, model: onnx.ModelProto, ranges: Path | None = None) -> Source:
        path = self._folder / f"{name}.onnx"
        write_proto(model, path)
        return Source(name, path, ranges or self._folder / f"{name}.ranges.json", self._given)

    def make(
        self,
        source: Source,
        *,
        only: Collection[str] | None = None,
        never: Collection[str] = (),
        plain: bool = False,
        path: Path | None = None,
    ) -> Path:
        """A quantized model: ``only`` these nodes quantized, or all but ``never``.

        With ``plain``, as QDQ without bias correction, from which the layers can be told. It is written to ``path``, or
        to a temporary file that is there until FILES more are made.
        """
        if path is None:
            self._made += 1
            path = self._folder / f"quantized-{self._made % FILES}.onnx"
            for old in self._folder.glob(f"{path.name}*"):
                old.unlink()
        chosen = list(self._only) if only is None else [n for n in only if not self._only or n in self._only]
        quant_format = type(self._format).QDQ if plain else self._format
        known = source.ranges.exists()
        assert known or self._samples is not None
        self._static(
            str(source.path),
            str(path),
            None if known or self._samples is None else Reader(self._samples),
            quant_format=quant_format,
            nodes_to_quantize=chosen,
            nodes_to_exclude=[*self._never, *source.real_nodes, *never],
            calibration_cache_path=str(source.ranges),
            **source.settings,
        )
        if source.corrects_biases and not plain:
            self._correct(source, path)
        return path

    def smoothed(self, source: Source) -> tuple[onnx.ModelProto, list[Smoothed]]:
        """The source's model with SmoothQuant, and what that did."""
        from sardonyx.model.save import model_to_proto
        from sardonyx.quantization.options import ExtraOptions
        from sardonyx.quantization.smooth import smooth
        from sardonyx.quantization.source import lift_constants, read_model
        from sardonyx.quantization.static import static_settings

        assert self._samples is not None
        model, options = read_model(str(source.path)), ExtraOptions.of(source.settings.get("extra_options"))
        settings = static_settings(
            model,
            op_types=source.settings.get("op_types_to_quantize"),
            nodes_to_quantize=self._only,
            nodes_to_exclude=self._never,
        )
        lift_constants(model.graph)
        done = smooth(
            model,
            settings,
            Reader(self._samples),
            alpha=options.smooth_quant_alpha,
            folding=options.smooth_quant_folding,
            providers=source.settings.get("calibration_providers"),
        )
        return model_to_proto(model), done

    def _correct(self, source: Source, path: Path) -> None:
        from sardonyx.quantization.bias_correction import correct_biases

        assert self._samples is not None
        correct_biases(read_proto(str(source.path)), str(path), self._samples, path)
