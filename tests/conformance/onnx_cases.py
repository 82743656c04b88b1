"""ONNX's own backend suite as plain cases: a model, and data sets of inputs and expected outputs."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from sardonyx import dtypes
from tests.comparing import Tolerance, Tolerances

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


REALS = tuple(t.numpy.name for t in dtypes.every() if t.kind in ("float", "complex"))
NOISE = {"test_dft_inverse": 2e-6, "test_dft_inverse_opset19": 2e-6}
"""Cases whose expected zeros are the rounding errors of one FFT in f32, and larger than the tolerance of the case."""


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    source: Any

    @property
    def tolerance(self) -> Tolerances:
        relative, absolute = float(self.source.rtol), max(float(self.source.atol), NOISE.get(self.name, 0.0))
        found = dict.fromkeys(REALS, Tolerance(relative, absolute=absolute))
        return {**found, "bfloat16": Tolerance(max(relative, 2**-6), absolute=absolute)}

    def written_out(self) -> Case:
        """The suite's case with this one's inputs and its operator as a body of simpler ones, where there is one."""
        return by_name().get(f"{self.name}_expanded", self)

    def model(self) -> onnx.ModelProto:
        if self.source.model is not None:
            return self.source.model
        return onnx.load(os.path.join(self.source.model_dir, "model.onnx"))

    def data_sets(self) -> Iterator[tuple[list[Any], list[Any]]]:
        if self.source.data_sets is not None:
            for inputs, outputs in self.source.data_sets:
                yield [_array(x) for x in inputs], [_array(x) for x in outputs]
            return
        graph = self.model().graph
        for folder in sorted(Path(self.source.model_dir).glob("test_data_set_*")):
            yield _read(folder, "input", graph.input), _read(folder, "output", graph.output)


@functools.cache
def every() -> tuple[Case, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some generators overflow on purpose
        return tuple(Case(c.name, kind, c) for kind in KINDS for c in load_model_tests(kind=kind))


@functools.cache
def by_name() -> dict[str, Case]:
    return {case.name: case for case in every()}


def _array(x: Any) -> Any:
    return numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x


def _read(folder: Path, word: str, infos: Any) -> list[Any]:
    count = len(list(folder.glob(f"{word}_*.pb")))
    return [_from_file(folder / f"{word}_{i}.pb", infos[i].type) for i in range(count)]


def _from_file(path: Path, type_: onnx.TypeProto) -> Any:
    data, kind = path.read_bytes(), type_.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))
