"""Small networks around single operators: what reads and writes them is quantized, so that they may be too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.quantization.graphs import Network, Weights, build, node

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def image(
    middle: Callable[[Weights], Sequence[onnx.NodeProto]],
    shape: Sequence[int | str],
    *,
    opset: int = 17,
    last: bool = True,
    dtype: Any = np.float32,
) -> Network:
    """x [N, 3, 8, 8] -> Conv to m [N, 4, 8, 8] -> the operator -> t of this shape -> Mul by a constant."""
    w = Weights(5, dtype)
    nodes = [
        node("Conv", ["x", w.real("w", 4, 3, 3, 3), w.real("b", 4)], ["m"], "conv", pads=[1, 1, 1, 1]),
        *middle(w),
    ]
    if last:
        nodes.append(node("Mul", ["t", w.add("two", np.array(0.7, dtype))], ["y"], "mul"))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = build(nodes, w, {"x": (element, ["N", 3, 8, 8])}, {"y" if last else "t": shape}, opset)
    return Network(model, [{"x": w.random.standard_normal((2, 3, 8, 8)).astype(dtype)} for _ in range(3)])


def one(op_type: str, shape: Sequence[int | str], *constants: Any, **attrs: Any) -> Callable[..., Network]:
    """An operator that reads the image and constants."""

    def make(**settings: Any) -> Network:
        def middle(w: Weights) -> list[onnx.NodeProto]:
            names = [w.add(f"k{i}", each) if each is not None else "" for i, each in enumerate(constants)]
            return [node(op_type, ["m", *names], ["t"], "middle", **attrs)]

        return image(middle, shape, **settings)

    return make


def _reals(*shape: int, seed: int = 3) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.4).astype(np.float32)


def _positive(n: int) -> np.ndarray:
    return np.abs(_reals(n)) + np.float32(0.5)


def _integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


WHOLE = ["N", 4, 8, 8]


def with_split(**settings: Any) -> Network:
    def middle(w: Weights) -> list[onnx.NodeProto]:
        attrs = {"num_outputs": 2} if settings.get("opset", 17) >= 18 else {}
        return [
            node("Split", ["m"], ["s0", "s1"], "middle", axis=1, **attrs),
            node("Add", ["s0", "s1"], ["t"], "add"),
        ]

    return image(middle, ["N", 2, 8, 8], **settings)


def with_arg_max(**settings: Any) -> Network:
    def middle(w: Weights) -> list[onnx.NodeProto]:
        return [node("ArgMax", ["m"], ["i"], "middle", axis=1), node("Cast", ["i"], ["t"], "cast", to=FLOAT)]

    return image(middle, ["N", 1, 8, 8], last=False, **settings)


def with_top_k(**settings: Any) -> Network:
    def middle(w: Weights) -> list[onnx.NodeProto]:
        return [node("TopK", ["m", w.add("k", _integers(3))], ["t", "places"], "middle", axis=1)]

    return image(middle, ["N", 3, 8, 8], **settings)


def with_where(**settings: Any) -> Network:
    def middle(w: Weights) -> list[onnx.NodeProto]:
        return [
            node("Greater", ["m", w.add("half", np.float32(0.5))], ["c"], "greater"),
            node("Conv", ["x", w.real("w2", 4, 3, 1, 1)], ["n"], "conv2"),
            node("Where", ["c", "m", "n"], ["t"], "middle"),
        ]

    return image(middle, WHOLE, **settings)


def with_max_pool_indices(**settings: Any) -> Network:
    def middle(w: Weights) -> list[onnx.NodeProto]:
        return [
            node("MaxPool", ["m"], ["p", "i"], "middle", kernel_shape=[2, 2], strides=[2, 2]),
            node("Cast", ["i"], ["r"], "cast", to=FLOAT),
            node("Add", ["p", "r"], ["t"], "add"),
        ]

    return image(middle, ["N", 4, 4, 4], **settings)


def with_two_readers(**settings: Any) -> Network:
    """A tensor that is also an output, read by several, one of them twice."""

    def middle(w: Weights) -> list[onnx.NodeProto]:
        return [
            node("Relu", ["m"], ["r"], "relu"),
            node("Mul", ["m", "m"], ["q"], "square"),
            node("Add", ["r", "q"], ["s"], "add"),
            node("Conv", ["m", w.real("w2", 4, 4, 1, 1), "b"], ["c"], "conv2"),
            node("Sub", ["s", "c"], ["t"], "middle"),
        ]

    made = image(middle, WHOLE, **settings)
    made.model.graph.output.append(helper.make_tensor_value_info("m", FLOAT, WHOLE))
    return made


def with_shared_weights(**settings: Any) -> Network:
    """Two convolutions with one weight and one bias."""

    def middle(w: Weights) -> list[onnx.NodeProto]:
        return [
            node("Conv", ["x", "w", "b"], ["n"], "conv2", pads=[1, 1, 1, 1]),
            node("Sigmoid", ["n"], ["g"], "sigmoid"),
            node("Mul", ["m", "g"], ["t"], "middle"),
        ]

    return image(middle, WHOLE, **settings)


def with_constant_nodes(**settings: Any) -> Network:
    """Weights as results of Constant nodes."""

    def middle(w: Weights) -> list[onnx.NodeProto]:
        weight = helper.make_tensor("v", FLOAT, [4, 4, 1, 1], _reals(4, 4, 1, 1).ravel())
        return [
            node("Constant", [], ["cw"], "constant", value=weight),
            node("Conv", ["m", "cw"], ["t"], "middle"),
        ]

    return image(middle, WHOLE, **settings)


def with_chain(**settings: Any) -> Network:
    """Operators that move values, one behind the other."""

    def middle(w: Weights) -> list[onnx.NodeProto]:
        return [
            node("Transpose", ["m"], ["a"], "transpose", perm=[0, 2, 3, 1]),
            node("Reshape", ["a", w.add("by", _integers(0, 64, 4))], ["b1"], "reshape"),
            node("Unsqueeze", ["b1", w.add("axes", _integers(1))], ["c"], "unsqueeze"),
            node("Squeeze", ["c", "axes"], ["d"], "squeeze"),
            node("Flatten", ["d"], ["t"], "flatten"),
        ]

    return image(middle, ["N", 256], **settings)


def product(
    *, alpha: float = 1.0, beta: float = 1.0, left: int = 0, right: int = 0, bias: bool = True, opset: int = 17
) -> Network:
    """A Gemm with factors and transposed operands, behind a product."""
    w = Weights(6)
    first = [w.real("w0", 5, 5), "x"] if left else ["x", w.real("w0", 5, 5)]
    names = ["h", w.real("w1", *((6, 5) if right else (5, 6))), *([w.real("b1", 6)] if bias else [])]
    nodes = [
        node("MatMul", first, ["h"], "matmul"),
        node("Gemm", names, ["y"], "gemm", alpha=alpha, beta=beta, transA=left, transB=right),
    ]
    shape = (5, 4) if left else (4, 5)
    model = build(nodes, w, {"x": (FLOAT, shape)}, {"y": [4, 6]}, opset)
    return Network(model, [{"x": w.random.standard_normal(shape).astype(np.float32)} for _ in range(3)])


def sequence(op_type: str = "LSTM", directions: int = 2) -> Network:
    """A recurrent layer."""
    w = Weights(7)
    gates = 4
    nodes = [
        node("MatMul", ["x", w.real("w0", 6, 6)], ["h"], "matmul"),
        node(
            op_type,
            ["h", w.real("wi", directions, gates * 5, 6), w.real("wr", directions, gates * 5, 5),
             w.real("bi", directions, 2 * gates * 5)],
            ["y", "", ""],
            "recurrent",
            hidden_size=5,
            direction="bidirectional" if directions == 2 else "forward",
        ),
    ]  # fmt: skip
    model = build(nodes, w, {"x": (FLOAT, ["T", 2, 6])}, {"y": ["T", directions, 2, 5]})
    return Network(model, [{"x": w.random.standard_normal((4, 2, 6)).astype(np.float32)} for _ in range(3)])


def branches(opset: int = 17) -> Network:
    """An If whose bodies have products of their own, one of which reads a tensor from outside."""
    w = Weights(8)
    inner = Weights(9)
    shape = ["N", 6]
    then = helper.make_graph(
        [node("MatMul", ["h", inner.real("wt", 6, 6)], ["t"], "then_matmul")],
        "then",
        [],
        [helper.make_tensor_value_info("t", FLOAT, shape)],
        inner.made,
    )
    inner = Weights(10)
    other = helper.make_graph(
        [node("MatMul", ["h", inner.real("we", 6, 6)], ["e0"], "else_matmul"), node("Neg", ["e0"], ["e"], "neg")],
        "else",
        [],
        [helper.make_tensor_value_info("e", FLOAT, shape)],
        inner.made,
    )
    nodes = [
        node("MatMul", ["x", w.real("w0", 6, 6)], ["h"], "matmul"),
        node("If", ["flag"], ["i"], "if", then_branch=then, else_branch=other),
        node("MatMul", ["i", w.real("w1", 6, 6)], ["y"], "last"),
    ]
    model = build(nodes, w, {"x": (FLOAT, shape), "flag": (TensorProto.BOOL, [])}, {"y": shape}, opset)
    return Network(
        model,
        [{"x": w.random.standard_normal((2, 6)).astype(np.float32), "flag": np.array(i % 2 == 0)} for i in range(4)],
    )


OPERATORS: dict[str, Callable[..., Network]] = {
    "ConvTranspose": one("ConvTranspose", ["N", 5, 10, 10], _reals(4, 5, 3, 3), _reals(5)),
    "Conv depthwise": one("Conv", ["N", 4, 6, 6], _reals(4, 1, 3, 3), _reals(4), group=4),
    "AveragePool": one("AveragePool", ["N", 4, 4, 4], kernel_shape=[2, 2], strides=[2, 2]),
    "MaxPool": one("MaxPool", ["N", 4, 4, 4], kernel_shape=[2, 2], strides=[2, 2]),
    "MaxPool with indices": with_max_pool_indices,
    "GlobalAveragePool": one("GlobalAveragePool", ["N", 4, 1, 1]),
    "Add": one("Add", WHOLE, _reals(4, 1, 1)),
    "Mul": one("Mul", WHOLE, _reals(4, 1, 1)),
    "Sub": one("Sub", WHOLE, _reals(4, 1, 1)),
    "Relu": one("Relu", WHOLE),
    "Clip": one("Clip", WHOLE, np.float32(-0.5), np.float32(0.7)),
    "Clip from 0": one("Clip", WHOLE, np.float32(0), None),
    "LeakyRelu": one("LeakyRelu", WHOLE, alpha=0.2),
    "Sigmoid": one("Sigmoid", WHOLE),
    "Tanh": one("Tanh", WHOLE),
    "Softmax": one("Softmax", WHOLE, axis=1),
    "Concat": one("Concat", ["N", 4, 9, 8], _reals(2, 4, 1, 8), axis=2),
    "Split": with_split,
    "Pad": one("Pad", ["N", 4, 10, 10], _integers(0, 0, 1, 1, 0, 0, 1, 1)),
    "Pad with 1": one("Pad", ["N", 4, 10, 10], _integers(0, 0, 1, 1, 0, 0, 1, 1), np.float32(1)),
    "Pad edge": one("Pad", ["N", 4, 10, 10], _integers(0, 0, 1, 1, 0, 0, 1, 1), mode="edge"),
    "Resize": one("Resize", ["N", 4, 16, 16], None, np.array([1, 1, 2, 2], np.float32), mode="nearest"),
    "Resize linear": one("Resize", ["N", 4, 16, 16], None, np.array([1, 1, 2, 2], np.float32), mode="linear"),
    "movement": with_chain,
    "Slice": one("Slice", ["N", 4, 4, 8], _integers(2), _integers(6), _integers(2)),
    "Gather": one("Gather", ["N", 2, 8, 8], _integers(0, 2), axis=1),
    "GatherElements": one("GatherElements", ["N", 1, 8, 8], np.zeros((2, 1, 8, 8), np.int64), axis=1),
    "Where": with_where,
    "ArgMax": with_arg_max,
    "TopK": with_top_k,
    "CumSum": one("CumSum", WHOLE, np.array(1, np.int64)),
    "InstanceNormalization": one("InstanceNormalization", WHOLE, _positive(4), _reals(4)),
    "BatchNormalization": one("BatchNormalization", WHOLE, _positive(4), _reals(4), _reals(4), _positive(4)),
    "LayerNormalization": one("LayerNormalization", WHOLE, _positive(8), _reals(8)),
    "MatMul": one("MatMul", ["N", 4, 8, 5], _reals(8, 5)),
    "MatMul batched": one("MatMul", ["N", 4, 8, 5], _reals(4, 8, 5)),
    "MatMul vector": one("MatMul", ["N", 4, 8], _reals(8)),
    "two readers": with_two_readers,
    "shared weights": with_shared_weights,
    "Constant nodes": with_constant_nodes,
    "Gemm": product,
    "Gemm with factors": lambda **s: product(alpha=0.5, beta=2.0, right=1, **s),
    "Gemm transposed": lambda **s: product(left=1, right=1, **s),
    "Gemm without bias": lambda **s: product(right=1, bias=False, **s),
}  # fmt: skip
"""Networks by the operator in their middle."""
