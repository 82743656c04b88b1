"""The share of right answers, as the metric of a budget and of ``sardonyx quantize``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument


class ShareRight:
    """How many of a classifier's answers are the expected ones.

    ``labels`` has one element for each answer, over all samples. The answers are the output named ``output``; without a
    name the first that fits: one with a label for each sample, else one with scores, whose largest counts. With
    ``first_ones`` there may be more labels than answers: the first labels count.
    """

    def __init__(self, labels: Any, output: str | None = None, first_ones: bool = False) -> None:
        self._labels = np.asarray(labels).reshape(-1)
        self._output, self._first_ones = output, first_ones
        if not self._labels.size:
            raise InvalidArgument("there are no labels")

    def __call__(self, outputs_by_sample: Sequence[Mapping[str, Any]]) -> float:
        names = list(outputs_by_sample[0])
        if self._output is not None and self._output not in names:
            raise InvalidArgument("the model has no such output", expected=names, got=self._output)
        tried = names if self._output is None else [self._output]
        found = {name: self._answers(outputs_by_sample, name) for name in tried}
        fitting = {name: answers for name, answers in found.items() if answers is not None}
        if not fitting:
            raise InvalidArgument(
                "no output has an answer for each label",
                where=", ".join(tried),
                expected=f"{len(self._labels)} labels or rows of scores",
                got=f"{len(outputs_by_sample)} samples",
            )
        given = next((a for name, a in fitting.items() if self._are_labels(outputs_by_sample[0][name])), None)
        answers = next(iter(fitting.values())) if given is None else given
        return float(np.mean(answers == self._labels[: len(answers)]))

    @staticmethod
    def _are_labels(value: Any) -> bool:
        return bool(value.dtype.kind in "iuOUSb")

    def _answers(self, outputs_by_sample: Sequence[Mapping[str, Any]], name: str) -> Any:
        """One answer for each label; None if the output does not give as many."""
        parts = [outputs[name] for outputs in outputs_by_sample]
        if not all(isinstance(part, np.ndarray) and part.size for part in parts):
            return None
        if self._are_labels(parts[0]):
            found = np.concatenate([part.reshape(-1) for part in parts])
        else:
            found = np.concatenate([part.reshape(-1, part.shape[-1] if part.ndim else 1).argmax(-1) for part in parts])
        is_fitting = len(found) == len(self._labels) or (self._first_ones and len(found) < len(self._labels))
        return found if is_fitting else None
