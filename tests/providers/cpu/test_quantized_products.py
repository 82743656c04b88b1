"""Products of two quantized tensors, element by element: ties go as in onnxruntime, in every spelling."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import sardonyx

Array = np.ndarray[Any, Any]
TIES = ((0.02, 0.03, 0.05), (0.1, 0.1, 0.5), (0.5, 0.5, 0.5), (0.013, 0.007, 0.009))
"""Scales of the operands and the result; most have products that lie halfway between two integers."""


def model(
    dtype: type[Any], zeros: tuple[int, int, int], scales: tuple[float, ...], *, is_pair: bool
) -> onnx.ModelProto:
    """All pairs of bytes, by QLinearMul, or by operators between reals."""
    constants: dict[str, Array] = {f"s{i}": np.asarray(s, np.float32) for i, s in enumerate(scales)}
    constants |= {f"z{i}": np.asarray(z, dtype) for i, z in enumerate(zeros)}
    if is_pair:
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "s0", "z0"], ["a"]),
            helper.make_node("DequantizeLinear", ["v", "s1", "z1"], ["b"]),
            helper.make_node("Mul", ["a", "b"], ["c"]),
            helper.make_node("QuantizeLinear", ["c", "s2", "z2"], ["y"]),
        ]
    else:
        given = ["x", "s0", "z0", "v", "s1", "z1", "s2", "z2"]
        nodes = [helper.make_node("QLinearMul", given, ["y"], domain="com.microsoft")]
    tensor = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", tensor, [256, 1]), helper.make_tensor_value_info("v", tensor, [1, 256])],
        [helper.make_tensor_value_info("y", tensor, [256, 256])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)


@pytest.mark.parametrize("cpu", ["sapphirerapids", "cascadelake", "haswell", "neoverse-n1"])
@pytest.mark.parametrize("scales", TIES)
@pytest.mark.parametrize(("dtype", "zeros"), [(np.uint8, (128, 3, 128)), (np.uint8, (0, 0, 6)), (np.int8, (3, -9, 0))])
def test_all_pairs_of_bytes(
    dtype: type[Any], zeros: tuple[int, int, int], scales: tuple[float, ...], cpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SARDONYX_CPU", cpu)
    every = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
    feeds = {"x": every[:, None], "v": every[None]}
    plain = model(dtype, zeros, scales, is_pair=False).SerializeToString()
    (want,) = onnxruntime.InferenceSession(plain, providers=["CPUExecutionProvider"]).run(None, feeds)
    for is_pair in (False, True):
        session = sardonyx.InferenceSession(model(dtype, zeros, scales, is_pair=is_pair).SerializeToString())
        np.testing.assert_array_equal(session.run(None, feeds)[0], want)


def test_exact_ties_go_to_the_even_number_whatever_the_zero_point() -> None:
    """As QuantizeLinear rounds; onnxruntime's QLinearMul adds odd zero points first."""
    every = np.arange(256).astype(np.uint8)
    session = sardonyx.InferenceSession(model(np.uint8, (9, 4, 7), TIES[2], is_pair=True).SerializeToString())
    units = (every.astype(int)[:, None] - 9) * (every.astype(int) - 4) * 0.5
    (got,) = session.run(None, {"x": every[:, None], "v": every[None]})
    np.testing.assert_array_equal(got, np.clip(np.rint(units) + 7, 0, 255))
