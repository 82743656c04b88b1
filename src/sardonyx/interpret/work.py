"""Estimates of how long numpy takes for a node. A numpy call cannot be interrupted, so work is estimated beforehand.

Estimates are for a slow core and on the high side: they separate seconds from hours. The deadline, checked after every
node, bounds what passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.ir.graph import Node

CALL_S = 20e-6
ELEMENT_S, TEXT_S, CHARACTER_S = 10e-9, 2e-6, 0.1e-6
"""Seconds per element of an input, per Python object, and per character of one."""
FLOAT_FLOPS, OTHER_FLOPS = 4e9, 3e8
"""Operations per second: numpy has no BLAS for matrices of types other than floats."""

Args = Sequence[Any]
Estimate = Callable[[Node, Args], float]


def seconds(node: Node, args: Args) -> float:
    """Estimated time of a node with these inputs."""
    estimate = None if node.domain not in ("", "ai.onnx.ml", "com.microsoft") else ESTIMATES.get(node.op_type)
    try:
        more = 0.0 if estimate is None else estimate(node, args)
    except (ValueError, IndexError, AttributeError, TypeError, ZeroDivisionError, OverflowError):
        more = 0.0  # wrong shapes or types are reported by the operator
    return CALL_S * (1 + len(args)) + more + sum(map(_reading_s, args))


def _reading_s(value: Any) -> float:
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return value.size * TEXT_S + CHARACTER_S * sum(len(s) for s in value.flat if isinstance(s, str))
        return value.size * ELEMENT_S
    if isinstance(value, list):
        return 1e-7 * len(value)
    return 1e-6 * len(value) if isinstance(value, dict) else 0.0


def _flops_s(flops: float, x: Any) -> float:
    return flops / (FLOAT_FLOPS if x.dtype.kind == "f" else OTHER_FLOPS)


def _matmul(node: Node, args: Args) -> float:
    a, b = args[0], args[1]
    batch = math.prod(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    rows = a.shape[-2] if a.ndim > 1 else 1
    columns = b.shape[-1] if b.ndim > 1 else 1
    return _flops_s(2.0 * batch * rows * a.shape[-1] * columns, a)


def _gemm(node: Node, args: Args) -> float:
    a, b = args[0], args[1]
    return _flops_s(2.0 * a.size * max(b.shape), a)


def _window(node: Node, args: Args, shape: Sequence[int]) -> float:
    """Elements of a window."""
    rank = len(shape)
    strides = node.attrs.get("strides") or [1] * rank
    pads = node.attrs.get("pads") or [0] * (2 * rank)
    return float(math.prod((d + pads[i] + pads[i + rank]) / strides[i] + 1 for i, d in enumerate(shape)))


def _conv(node: Node, args: Args) -> float:
    x, w = args[0], next(a for a in args[1:] if isinstance(a, np.ndarray) and a.ndim == args[0].ndim)
    return _flops_s(2.0 * x.shape[0] * w.size * _window(node, args, x.shape[2:]), x)


def _deform_conv(node: Node, args: Args) -> float:
    return 30.0 * _conv(node, args)


def _conv_transpose(node: Node, args: Args) -> float:
    x, w = args[0], args[1]
    return _flops_s(2.0 * x.size * w.size / max(w.shape[0], 1), x)


def _pool(node: Node, args: Args) -> float:
    x, kernel = args[0], node.attrs.get("kernel_shape") or ()
    places = _window(node, args, x.shape[2:]) * x.shape[0] * x.shape[1]
    return float(places * max(math.prod(kernel), 1) * ELEMENT_S)


def _lrn(node: Node, args: Args) -> float:
    return float(args[0].size * min(int(node.attrs.get("size", 1)), args[0].shape[1]) * ELEMENT_S)


def _einsum(node: Node, args: Args) -> float:
    equation = node.attrs["equation"].replace(" ", "").split("->")[0]
    sizes: dict[str, int] = {}
    for term, x in zip(equation.split(","), args, strict=True):
        letters = term.replace("...", "")
        for letter, size in zip(letters, x.shape[x.ndim - len(letters) :], strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    lead = max((math.prod(x.shape[: x.ndim - len(t.replace("...", ""))]) for t, x in _terms(equation, args)), default=1)
    return _flops_s(2.0 * math.prod(sizes.values()) * lead, args[0])


def _terms(equation: str, args: Args) -> list[tuple[str, Any]]:
    return list(zip(equation.split(","), args, strict=True))


def _attention(node: Node, args: Args) -> float:
    q, k = args[0], args[1]
    past = args[4].shape[-2] if len(args) > 4 and isinstance(args[4], np.ndarray) else 0
    heads = max(int(node.attrs.get("q_num_heads", 1)), 1)
    scores = q.shape[0] * (q.shape[1] if q.ndim == 4 else heads) * q.shape[-2] * (k.shape[-2] + past)
    return float(_flops_s(4.0 * scores * q.shape[-1], q) + 10 * scores * ELEMENT_S)


def _recurrent(node: Node, args: Args) -> float:
    x, w, r = args[0], args[1], args[2]
    steps, batch = (x.shape[0], x.shape[1]) if not node.attrs.get("layout") else (x.shape[1], x.shape[0])
    return float(steps * w.shape[0] * 100e-6 + _flops_s(2.0 * steps * batch * (w.size + r.size), x))


def _sorted(node: Node, args: Args) -> float:
    n = args[0].size
    return float(n * max(math.log2(max(n, 2)), 1) * ELEMENT_S)


def _suppression(node: Node, args: Args) -> float:
    scores = args[1]
    limit = int(args[2].reshape(-1)[0]) if len(args) > 2 and args[2] is not None and args[2].size else 0
    kept = min(max(limit, 0), scores.shape[2])
    return float(scores.shape[0] * scores.shape[1] * (50e-6 + kept * (20e-6 + scores.shape[2] * ELEMENT_S)))


def _det(node: Node, args: Args) -> float:
    return _flops_s(2.0 * args[0].size * args[0].shape[-1], args[0])


def _dft(node: Node, args: Args) -> float:
    length = args[1] if len(args) > 1 and args[1] is not None else None
    most = max([*args[0].shape, *([int(length.reshape(-1)[0])] if length is not None and length.size else [])])
    return float(10 * args[0].size / max(min(args[0].shape), 1) * most * ELEMENT_S)


def _sampled(node: Node, args: Args) -> float:
    """GridSample and RoiAlign: the work depends on the samples, not on the size of the image."""
    return float(30 * args[1].size * (args[0].shape[1] if args[0].ndim > 1 else 1) * ELEMENT_S)


def _forest(node: Node, args: Args) -> float:
    nodes = node.attrs.get("nodes_treeids") or node.attrs.get("tree_roots") or ()
    rows = args[0].shape[0] if args[0].ndim > 1 else 1
    trees = len(set(nodes))
    return float(len(nodes) * 2e-6 + rows * trees * 30 * 20 * ELEMENT_S)


def _support(node: Node, args: Args) -> float:
    size = len(node.attrs.get("support_vectors") or node.attrs.get("coefficients") or ())
    rows = args[0].shape[0] if args[0].ndim > 1 else 1
    return float(rows * size * ELEMENT_S)


def _pattern(node: Node, args: Args) -> float:
    return float(10 * sum(map(_reading_s, args)))


def _text_made(node: Node, args: Args) -> float:
    """Casts to or from strings, element by element."""
    return float(args[0].size * TEXT_S) if node.attrs.get("to") == 8 else 0.0


def _by_element(node: Node, args: Args) -> float:
    """Python loops over the elements."""
    return float(sum(a.size for a in args if isinstance(a, np.ndarray)) * TEXT_S)


ESTIMATES: dict[str, Estimate] = {
    **dict.fromkeys(("MatMul", "MatMulInteger"), _matmul),
    "Gemm": _gemm,
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _conv),
    "DeformConv": _deform_conv,
    **dict.fromkeys(("ConvTranspose", "ConvTransposeInteger"), _conv_transpose),
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool", "MaxRoiPool", "Col2Im"), _pool),
    "LRN": _lrn,
    "Einsum": _einsum,
    **dict.fromkeys(("Attention", "LinearAttention"), _attention),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), _recurrent),
    **dict.fromkeys(("TopK", "Unique"), _sorted),
    "NonMaxSuppression": _suppression,
    "Det": _det,
    **dict.fromkeys(("DFT", "STFT"), _dft),
    **dict.fromkeys(("GridSample", "RoiAlign"), _sampled),
    **dict.fromkeys(("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"), _forest),
    **dict.fromkeys(("SVMClassifier", "SVMRegressor", "LinearClassifier", "LinearRegressor"), _support),
    **dict.fromkeys(("RegexFullMatch", "Tokenizer", "TfIdfVectorizer", "StringNormalizer", "StringSplit"), _pattern),
    "Cast": _text_made,
    **dict.fromkeys(("LabelEncoder", "ZipMap", "DictVectorizer", "CastMap", "CategoryMapper"), _by_element),
}
