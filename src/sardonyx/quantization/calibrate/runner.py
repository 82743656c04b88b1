"""Runs of a model over calibration data, with checks of every sample."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ir.graph import Model
from sardonyx.quantization.calibrate.augment import as_bytes
from sardonyx.quantization.data import Feeds, feeds_of
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.progress import length_of, shown
from sardonyx.session.enums import GraphOptimizationLevel
from sardonyx.session.options import SessionOptions
from sardonyx.session.session import InferenceSession

Providers = Sequence[Any]


class Runner:
    """A session of a model whose outputs are what calibration looks at."""

    def __init__(self, model: Model, providers: Providers | None = None) -> None:
        content, apart = as_bytes(model)
        options = SessionOptions()
        options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.add_session_config_entry("session.cache", "0")
        options.add_external_initializers(list(apart), list(apart.values()))
        self.session = InferenceSession(content, options, list(providers) if providers else ["CPUExecutionProvider"])
        self.names = [output.name for output in self.session.get_outputs()]
        self._inputs = {given.name: given.type for given in self.session.get_inputs()}
        self._known = {*self._inputs, *(given.name for given in self.session.get_overridable_initializers())}

    def run_all(self, reader: object, take: Callable[[int, list[Any]], None]) -> int:
        """Call ``take`` with the number and the outputs of every sample; returns how many there were."""
        count = 0
        for count, feeds in enumerate(shown(feeds_of(reader), "calibrating", length_of(reader)), 1):
            self._check(feeds, count)
            try:
                outputs = self.session.run(None, feeds)
            except InvalidArgument as error:
                raise Misuse(" ".join(str(error).split()), where=_sample(count)) from None
            take(count, outputs)
        return count

    def _check(self, feeds: Feeds, number: int) -> None:
        where = _sample(number)
        if not isinstance(feeds, Mapping):
            raise Misuse("a sample is a dictionary from input names to arrays", where=where, got=type(feeds).__name__)
        for name in feeds:
            if name not in self._known:
                near = difflib.get_close_matches(str(name), self._known, 1)
                raise Misuse(
                    "the model has no input of this name",
                    where=where,
                    expected=", ".join(self._known),
                    got=repr(name),
                    hint=f"did you mean {near[0]!r}?" if near else None,
                )
        missing = [name for name, kind in self._inputs.items() if name not in feeds and not kind.startswith("optional")]
        if missing:
            raise Misuse("an input is missing", where=where, expected=", ".join(self._inputs), got=", ".join(feeds))
        for name, value in feeds.items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f" and np.isnan(value).any():
                raise Misuse("calibration data has NaN", where=f"{where}, input {name!r}")


def _sample(number: int) -> str:
    return f"sample {number} of the calibration data"


def found_nan(name: str, number: int) -> Misuse:
    """The error of a tensor that is NaN somewhere."""
    return Misuse(
        "the model computes NaN from the calibration data",
        where=f"tensor {name!r}, sample {number}",
        hint="run the float model on this sample; a model that computes NaN cannot be calibrated",
    )
