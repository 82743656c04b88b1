"""ONNX's own backend suite, as far as its cases are lowered whole."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from onnx import TensorProto

from sardonyx.dtypes import DType
from sardonyx.errors import SardonyxError
from sardonyx.ir.graph import Graph
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import interpret
from sardonyx.lower.build import lower
from sardonyx.lower.claims import refusals
from sardonyx.lower.sizes import DataDependent
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize
from sardonyx.optimize.pipelines import optimize
from tests.comparing import assert_same
from tests.conformance import onnx_cases
from tests.lower.agree import part_of

SHARE = 0.5
"""Of the cases, at least so many are lowered: a refusal that is too eager must not pass for success."""


@pytest.mark.slow
def test_cases_answer_as_the_suite_expects() -> None:
    ran = total = 0
    for case in onnx_cases.every():
        if "bernoulli" in case.name:  # what the suite expects is one random draw
            continue
        model = load(case.model().SerializeToString())
        normalize(model)
        optimize(model.graph, "all", frozenset())
        ((inputs, expected), *_) = case.data_sets()
        graph = model.graph
        _fix_what_models_fix(graph, inputs)
        total += 1
        values = (v for node in graph.nodes for v in (*node.inputs, *node.outputs) if v is not None)
        if any(v.dtype is not None and _is_narrow(v.dtype) for v in values):
            continue
        if not len(graph) or any(refusals(graph).values()):
            continue
        part, fed = part_of(graph), dict(zip(graph.inputs, inputs, strict=False))
        try:
            lowered = lower(part)
        except DataDependent:  # a session cuts the part there
            continue
        ran += 1
        found = dict(zip(part.outputs, interpret.run(lowered, [fed[v] for v in part.inputs]), strict=True))
        for value, want in zip(graph.outputs, expected, strict=True):
            if value in found:
                try:
                    assert_same(found[value], want, case.tolerance)
                except AssertionError as e:
                    pytest.fail(f"{case.name}: {e}")
    assert ran >= SHARE * total


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_results_of_narrow_floats_have_the_type_of_their_memory(narrow: int) -> None:
    """Otherwise they would overwrite adjacent memory; rules that do so are refused."""
    ran = 0
    for case in onnx_cases.every():
        proto = copy.deepcopy(case.model())
        tensors = [v.type.tensor_type for v in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)]
        wide = [t for t in tensors if t.elem_type == TensorProto.FLOAT]
        for t in wide:
            t.elem_type = narrow
        try:
            model = load(proto.SerializeToString())
            normalize(model)
            reasons = refusals(model.graph)
        except SardonyxError:  # an operator that is not for such floats
            continue
        ran += bool(wide)
        assert not [why for why in reasons.values() if why and " makes " in why], case.name
    assert ran > 500


def _is_narrow(dtype: DType) -> bool:
    """Floats of a byte and less, and integers below one, are rounded by kernels in ways that numpy does not know."""
    return dtype.bits < (16 if dtype.is_float else 8) and dtype.name != "bool"


def _fix_what_models_fix(graph: Graph, arrays: list[object]) -> None:
    """Axes, sizes, scales and the like are inputs in the suite, and constants in models."""
    for value, array in zip(graph.inputs, arrays, strict=False):
        if not isinstance(array, np.ndarray) or array.size > 8 or array.ndim > 1:
            continue
        if array.dtype.kind in "bi" or value.name in ("scales", "roi"):
            value.const = Tensor.of(array, value.name)
            value.type = value.const.type
