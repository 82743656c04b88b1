"""One operator, three ways: our meaning, onnxruntime, and onnx.reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from sardonyx import dtypes
from sardonyx.ops import registry
from tests.comparing import Tolerance, assert_same

PEER_OPSETS = {"GlobalLpPool": 21, "MaxRoiPool": 21, "RoiAlign": 21}
"""The newest opset that onnxruntime runs an operator at, where that is not the newest up to 24."""


def meaning(name: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> tuple[np.ndarray, ...]:
    """What our table says; inputs must come out unchanged."""
    found = registry.find("", name)
    assert found is not None, f"{name} has no meaning"
    assert set(attributes) <= found.attributes | found.supplied, f"{name} knows no {set(attributes) - found.attributes}"
    before = [None if x is None else x.copy() for x in inputs]
    extra = {"outputs": outputs} if "outputs" in found.supplied else {}
    with np.errstate(all="ignore"):
        got = found.numpy(*inputs, **attributes, **extra)
    for old, new in zip(before, inputs, strict=True):
        assert old is None or old.tobytes() == new.tobytes(), f"{name} wrote into an input"
    return tuple(got[:outputs]) if isinstance(got, tuple) else (got,)


def model(name: str, inputs: tuple[Any, ...], outputs: int, attributes: dict[str, Any]) -> onnx.ModelProto:
    names = ["" if x is None else f"i{k}" for k, x in enumerate(inputs)]
    typed = [
        helper.make_tensor_value_info(n, dtypes.of_numpy(x.dtype).onnx, x.shape)
        for n, x in zip(names, inputs, strict=True)
        if x is not None
    ]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(name, names, [f"o{k}" for k in range(outputs)], **attributes)
    graph = helper.make_graph([node], "one", typed, [onnx.ValueInfoProto(name=f"o{k}") for k in range(outputs)])
    opset = min(onnx.defs.get_schema(name).since_version, PEER_OPSETS.get(name, 24))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _feeds(inputs: tuple[Any, ...]) -> dict[str, np.ndarray]:
    return {f"i{k}": x for k, x in enumerate(inputs) if x is not None}


def onnxruntime(name: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    proto = model(name, inputs, outputs, attributes).SerializeToString()
    return ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"]).run(None, _feeds(inputs))


def reference(name: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model(name, inputs, outputs, attributes)).run(None, _feeds(inputs))


def same(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Results agree one by one; the tolerance is a share of each element and of the largest."""
    assert_same([*got], [*expected], Tolerance(relative=tolerance, of_largest=tolerance))


def agree(name: str, *inputs: Any, peer: Any = onnxruntime, tolerance: float = 1e-5, **attributes: Any) -> None:
    same(meaning(name, *inputs, **attributes), peer(name, *inputs, **attributes), tolerance)


def rounds_once(
    name: str, dtype: Any, *inputs: Any, outputs: int = 1, tolerance: float = 0.0, **attributes: Any
) -> None:
    """A narrow float's result is the float32 result of the same values, rounded to it."""
    narrow = [x.astype(dtype) if x is not None and x.dtype == np.float32 else x for x in inputs]
    wide = [x.astype(np.float32) if x is not None and x.dtype == dtype else x for x in narrow]
    got = meaning(name, *narrow, outputs=outputs, **attributes)
    expected = meaning(name, *wide, outputs=outputs, **attributes)
    same(got, [e.astype(g.dtype) for g, e in zip(got, expected, strict=True)], tolerance)


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype)


def multiplied_exactly(weights: np.ndarray) -> np.ndarray:
    """Weights as onnxruntime multiplies them on every chip: signed bytes lose a bit.

    Where a chip has no instruction for sums of four products of bytes, onnxruntime adds two at a time in 16 bits, and
    sums of larger ones stop at the ends.
    """
    return weights >> 1 if weights.dtype == np.int8 else weights
