"""Opsets that no runtime implements any more (1 to 6), and operators that were removed, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx

Array = np.ndarray[Any, Any]
_rng = np.random.default_rng(5)


def f(*shape: int) -> Array:
    return _rng.standard_normal(shape).astype(np.float32)


def run(
    op: str, opset: int, inputs: list[Array], attrs: dict[str, Any], *, shapes: bool, outputs: int = 1
) -> list[Any]:
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape if shapes else None)
        for k, v in feeds.items()
    ]
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, list(feeds), names, **attrs)
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info(n) for n in names])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)
    return sardonyx.InferenceSession(model.SerializeToString()).run(None, feeds)  # type: ignore[no-any-return]


def _column(b: Array) -> Array:
    return b[None, :, None, None]


def _norm(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Array:
    return _column(scale) * (x - _column(mean)) / np.sqrt(_column(var) + 1e-5) + _column(bias)


def _batch_norm(x: Array, scale: Array, bias: Array, *_: Array) -> Array:
    return _norm(x, scale, bias, x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3)))


def _lp(x: Array, p: float) -> Array:
    return (np.abs(x) ** p).sum(axis=(2, 3), keepdims=True) ** (1 / p)


def _windows(x: Array, p: float) -> Array:
    a = np.abs(x) ** p
    return (a[..., :-1, :-1] + a[..., 1:, :-1] + a[..., :-1, 1:] + a[..., 1:, 1:]) ** (1 / p)


def _gru_unit(h: Array, g: Array, n: Array, t: Array) -> Array:
    size = h.shape[-1]
    z, c = 1 / (1 + np.exp(-g[..., size : 2 * size])), np.tanh(g[..., 2 * size :])
    return np.where((t < n)[None, :, None], z * h + (1 - z) * c, h)


X = f(2, 3, 4, 4)
B = X > 0
STATS = [f(3), f(3), f(3), np.abs(f(3))]
CASES: list[tuple[str, int, list[Array], dict[str, Any], Callable[..., Any]]] = [
    ("Add", 6, [X, f(3)], {"broadcast": 1, "axis": 1}, lambda x, b: x + _column(b)),
    ("Add", 1, [X, f(4)], {"broadcast": 1, "consumed_inputs": [0, 0]}, lambda x, b: x + b),
    ("Sub", 6, [X, f(3, 4)], {"broadcast": 1, "axis": -3}, lambda x, b: x - b[None, :, :, None]),
    ("Mul", 1, [X, f(2)], {"broadcast": 1, "axis": 0}, lambda x, b: x * b[:, None, None, None]),
    ("Div", 6, [X, f(4, 4)], {"broadcast": 1, "axis": 2}, lambda x, b: x / b),
    ("Pow", 1, [np.abs(X), f(3)], {"broadcast": 1, "axis": 1}, lambda x, b: x ** _column(b)),
    ("Less", 1, [X, f(3)], {"broadcast": 1, "axis": 1}, lambda x, b: x < _column(b)),
    ("Greater", 6, [X, f(3)], {"broadcast": 1, "axis": 1}, lambda x, b: x > _column(b)),
    ("Equal", 1, [B, B[0, :, 0, 0]], {"broadcast": 1, "axis": 1}, lambda x, b: x == _column(b)),
    ("And", 1, [B, B[0, :, 0, 0]], {"broadcast": 1, "axis": 1}, lambda x, b: x & _column(b)),
    ("Xor", 1, [B, B[0, 0, 0]], {"broadcast": 1}, lambda x, b: x ^ b),
    ("PRelu", 6, [X, f(3)], {}, lambda x, s: np.where(x < 0, x * _column(s), x)),
    ("PRelu", 1, [X, f(1)], {}, lambda x, s: np.where(x < 0, x * s, x)),
    ("Gemm", 6, [f(2, 3), f(3, 4), f(4)], {"broadcast": 1, "beta": 2.0}, lambda a, b, c: a @ b + 2 * c),
    ("Cast", 1, [X * 3], {"to": "INT64"}, lambda x: x.astype(np.int64)),
    ("Relu", 1, [X], {"consumed_inputs": [0]}, lambda x: np.maximum(x, 0)),
    ("Selu", 1, [X], {}, lambda x: 1.0507 * np.where(x > 0, x, 1.6732 * np.expm1(x))),
    ("Concat", 1, [X, X], {}, lambda x, y: np.concatenate([x, y], axis=1)),
    ("Tile", 1, [X, np.float32(3), np.float32(2)], {}, lambda x, n, a: np.tile(x, (1, 1, 3, 1))),
    ("Pad", 1, [X], {"paddings": [0, 0, 1, 0, 0, 0, 0, 2], "value": 2.0},
     lambda x: np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=2)),
    ("Upsample", 1, [X], {"height_scale": 2.0, "width_scale": 3.0}, lambda x: x.repeat(2, axis=2).repeat(3, axis=3)),
    ("BatchNormalization", 6, [X, *STATS], {"is_test": 1}, _norm),
    ("BatchNormalization", 1, [X, *STATS], {"is_test": 1, "consumed_inputs": [0] * 5}, _norm),
    ("BatchNormalization", 6, [X, *STATS], {}, _batch_norm),
    ("Dropout", 6, [X], {"is_test": 0, "ratio": 0.9}, lambda x: x),
    ("GlobalLpPool", 1, [X], {"p": 2.0}, lambda x: _lp(x, 2)),
    ("GlobalLpPool", 1, [X], {"p": 2.5}, lambda x: _lp(x, 2.5)),
    ("LpPool", 1, [X], {"p": 2.5, "kernel_shape": [2, 2]}, lambda x: _windows(x, 2.5)),
    ("GivenTensorFill", 1, [], {"values": [1.0, 2.0, 3.0, 4.0], "shape": [2, 2]}, lambda: np.float32([[1, 2], [3, 4]])),
    ("ConstantFill", 1, [], {"value": 2.0, "shape": [2], "extra_shape": [3]}, lambda: np.full((2, 3), np.float32(2))),
    ("ConstantFill", 1, [X], {"value": 2.0, "dtype": TensorProto.INT32}, lambda x: np.full(x.shape, np.int32(2))),
    ("ConstantFill", 1, [np.array([2, 5])], {"input_as_shape": 1}, lambda s: np.zeros((2, 5), np.float32)),
    ("GRUUnit", 1, [f(1, 3, 2), f(1, 3, 6), np.array([1, 3, 2], np.int32), np.array([1], np.int32)], {}, _gru_unit),
]  # fmt: skip


@pytest.mark.parametrize("shapes", [True, False], ids=["shaped", "shapeless"])
@pytest.mark.parametrize(
    ("op", "opset", "inputs", "attrs", "meaning"),
    CASES,
    ids=lambda v: "" if isinstance(v, list) or callable(v) else str(v),
)
def test_oldest_forms(
    op: str, opset: int, inputs: list[Array], attrs: dict[str, Any], meaning: Callable[..., Any], shapes: bool
) -> None:
    inputs = [np.asarray(x) for x in inputs]
    (ours,) = run(op, opset, inputs, attrs, shapes=shapes)
    expected = meaning(*inputs)
    assert ours.shape == expected.shape
    if expected.dtype.kind in "bi":
        assert ours.dtype == expected.dtype
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("opset", [1, 3])
def test_sequence_output_is_no_attribute_any_more(op: str, opset: int) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    inputs = [f(3, 2, 4), f(1, 3 * gates, 4), f(1, 3 * gates, 3)]
    old = run(op, opset, inputs, {"hidden_size": 3, "output_sequence": 1}, shapes=True, outputs=2)
    new = run(op, 22, inputs, {"hidden_size": 3}, shapes=True, outputs=2)
    for x, y in zip(old, new, strict=True):
        np.testing.assert_array_equal(x, y)


def test_split_sizes_were_an_input_first() -> None:
    a, b = run("Split", 1, [X, np.array([1, 2], np.float32)], {"axis": 1}, shapes=True, outputs=2)
    np.testing.assert_array_equal(a, X[:, :1])
    np.testing.assert_array_equal(b, X[:, 1:])


def test_training_outputs_without_positions() -> None:
    x, stats = f(5, 3, 2), [f(3, 2), f(3, 2), f(3, 2), np.abs(f(3, 2))]
    attrs = {"spatial": 0, "momentum": 0.75}
    y, mean, var, saved_mean, saved_std = run("BatchNormalization", 7, [x, *stats], attrs, shapes=True, outputs=5)
    expected = stats[0] * (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) + stats[1]
    for ours, theirs in (
        (y, expected),
        (mean, 0.75 * stats[2] + 0.25 * x.mean(0)),
        (var, 0.75 * stats[3] + 0.25 * x.var(0)),
        (saved_mean, x.mean(0)),
        (saved_std, 1 / np.sqrt(x.var(0) + 1e-5)),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
