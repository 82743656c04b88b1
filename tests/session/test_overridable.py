"""Initializers that are inputs too: what a caller feeds counts, not what the file holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort

RNG = np.random.default_rng(0)


def _floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def _numbers(*given: int) -> tuple[Any, ...]:
    return tuple(np.array(n, np.int64) for n in given)


CASES: dict[str, tuple[dict[str, Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "Range": ({}, _numbers(0, 3, 1), _numbers(1, 9, 2)),
    "Resize": (
        {"mode": "nearest"},
        (_floats(1, 1, 2, 2), None, np.array([1, 1, 2, 2], np.float32)),
        (_floats(1, 1, 2, 2), None, np.array([1, 1, 3, 1], np.float32)),
    ),
    "GRU": (
        {"hidden_size": 2},
        (_floats(3, 1, 2), _floats(1, 6, 2), _floats(1, 6, 2), _floats(1, 12)),
        (_floats(3, 1, 2), _floats(1, 6, 2), _floats(1, 6, 2), _floats(1, 12)),
    ),
    "ConvTranspose": ({}, (_floats(1, 2, 3, 3), _floats(2, 3, 2, 2)), (_floats(1, 2, 3, 3), _floats(2, 3, 2, 2))),
    "MelWeightMatrix": (
        {},
        (*_numbers(4, 16, 8192), np.float32(0), np.float32(4096)),
        (*_numbers(6, 32, 8192), np.float32(8), np.float32(4000)),
    ),
}


@pytest.mark.parametrize("operator", CASES)
def test_fed_values_replace_defaults(operator: str) -> None:
    attributes, defaults, fed = CASES[operator]
    names = ["" if v is None else f"i{k}" for k, v in enumerate(defaults)]
    given = {n: np.asarray(v) for n, v in zip(names, fed, strict=True) if n}
    held = {n: np.asarray(v) for n, v in zip(names, defaults, strict=True) if n}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in held.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.INT64 if operator == "Range" else TensorProto.FLOAT, None)
    node = helper.make_node(operator, names, ["y"], **attributes)
    results = []
    for tensors in ([], [numpy_helper.from_array(v, n) for n, v in held.items()]):
        graph = helper.make_graph([node], "g", inputs, [output], tensors)
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
        results.append(ort.InferenceSession(model.SerializeToString()).run(None, given)[0])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "dtype"), [("int64", np.int64), ("float", np.float32)])
def test_the_limit_of_a_range_may_be_fed(kind: str, dtype: Any) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]> g ({kind} limit) => ({kind}[k] y)
    <{kind} start = {{0}}, {kind} limit = {{3}}, {kind} delta = {{1}}> {{ y = Range(start, limit, delta) }}"""
    session = ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    for limit in (5, 0, -3, -(2**31)):
        assert session.run(None, {"limit": np.array(limit, dtype)})[0].tolist() == list(range(limit))
    assert session.run(None, {})[0].tolist() == [0, 1, 2]
