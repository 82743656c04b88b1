"""Small transformers written as exporters write them, for tests without torch."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def encoder(*, hidden: int = 8, heads: int = 2, layers: int = 2, vocabulary: int = 13) -> onnx.ModelProto:
    """A post-norm encoder with written-out normalizations and Gelu, as TorchScript gives at opset 14."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def const(array: object, dtype: type = np.float32) -> str:
        weights.append(numpy_helper.from_array(np.asarray(array, dtype), f"w{len(weights)}"))
        return weights[-1].name

    def normal(*shape: int) -> str:
        return const(rng.standard_normal(shape) * 0.3)

    def op(op_type: str, *inputs: str, **attrs: object) -> str:
        nodes.append(helper.make_node(op_type, inputs, [f"v{len(nodes)}"], name=f"n{len(nodes)}", **attrs))
        return nodes[-1].output[0]

    def norm(x: str) -> str:
        centred = op("Sub", x, op("ReduceMean", x, axes=[-1], keepdims=1))
        variance = op("ReduceMean", op("Pow", centred, const(2.0)), axes=[-1], keepdims=1)
        scaled = op("Div", centred, op("Sqrt", op("Add", variance, const(1e-5))))
        return op("Add", op("Mul", scaled, normal(hidden)), normal(hidden))

    def linear(x: str, n: int, m: int) -> str:
        return op("Add", op("MatMul", x, normal(n, m)), normal(m))

    def heads_of(x: str, perm: list[int]) -> str:
        return op("Transpose", op("Reshape", x, const([0, -1, heads, hidden // heads], np.int64)), perm=perm)

    def attend(x: str, bias: str) -> str:
        q, k, v = (heads_of(linear(x, hidden, hidden), p) for p in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = op("Div", op("MatMul", q, k), const(np.sqrt(hidden / heads)))
        mixed = op("MatMul", op("Softmax", op("Add", scores, bias), axis=-1), v)
        back = op("Reshape", op("Transpose", mixed, perm=[0, 2, 1, 3]), const([0, 0, hidden], np.int64))
        return linear(back, hidden, hidden)

    def gelu(x: str) -> str:
        half = op("Add", op("Erf", op("Div", x, const(np.sqrt(2.0)))), const(1.0))
        return op("Mul", op("Mul", x, half), const(0.5))

    mask = op("Cast", op("Unsqueeze", "attention_mask", const([1, 2], np.int64)), to=TensorProto.FLOAT)
    bias = op("Mul", op("Sub", const(1.0), mask), const(np.finfo(np.float32).min))
    words = op("Gather", normal(vocabulary, hidden), "input_ids")
    x = norm(op("Add", words, op("Gather", normal(2, hidden), "token_type_ids")))
    for _ in range(layers):
        x = norm(op("Add", attend(x, bias), x))
        x = norm(op("Add", linear(gelu(linear(x, hidden, 4 * hidden)), 4 * hidden, hidden), x))
    nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"]))
    names = ("input_ids", "attention_mask", "token_type_ids")
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "sequence"]) for n in names],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", hidden])],
        weights,
    )
    opsets = [helper.make_opsetid("", 14)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="pytorch")


def feeds(batch: int = 2, sequence: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    mask = np.ones((batch, sequence), np.int64)
    mask[1:, -2:] = 0
    return {
        "input_ids": rng.integers(0, 13, (batch, sequence)),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, (batch, sequence)),
    }
