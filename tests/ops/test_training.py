"""One optimizer step, against onnx's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from sardonyx.errors import InvalidGraph
from sardonyx.ops import registry

DOMAIN = "ai.onnx.preview.training"
MOMENTUM = {"alpha": 0.9, "beta": 0.8, "norm_coefficient": 0.01}
CASES: list[tuple[str, int, int, dict[str, Any]]] = [
    ("Adagrad", 3, 2, {"decay_factor": 0.1, "epsilon": 1e-4, "norm_coefficient": 0.01}),
    ("Adam", 4, 3, {"alpha": 0.9, "beta": 0.99, "norm_coefficient": 0.01, "norm_coefficient_post": 0.02}),
    ("Momentum", 3, 2, MOMENTUM | {"mode": "standard"}),
    ("Momentum", 3, 2, MOMENTUM | {"mode": "nesterov"}),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tensors", [1, 2])
@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize(("op", "groups", "states", "attrs"), CASES)
def test_step(op: str, groups: int, states: int, attrs: dict[str, Any], step: int, tensors: int, dtype: Any) -> None:
    rng = np.random.default_rng(2)
    values = [np.abs(rng.standard_normal((2, 3 + i % tensors))).astype(dtype) for i in range(groups * tensors)]
    inputs = [np.array(0.1, dtype), np.array(step, np.int64), *values]
    names, outs = [f"x{i}" for i in range(len(inputs))], [f"y{i}" for i in range(states * tensors)]
    node = helper.make_node(op, names, outs, domain=DOMAIN, **attrs)
    infos = [helper.make_empty_tensor_value_info(n) for n in names]
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info(n) for n in outs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)])
    theirs = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    meaning = registry.find(DOMAIN, op)
    assert meaning is not None
    ours = meaning.numpy(*inputs, **attrs)
    for x, y in zip(ours, theirs, strict=True):
        assert x.dtype == dtype and x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-5)


def test_wrong_groups_are_refused() -> None:
    meaning = registry.find(DOMAIN, "Adam")
    assert meaning is not None
    with pytest.raises(InvalidGraph):
        meaning.numpy(np.float32(0.1), np.int64(0), *[np.ones(2, np.float32)] * 5)
