"""Differences from onnxruntime or onnx.reference that are right, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx

from fuzz import conditions
from fuzz.cases import Case, Run


@dataclass(frozen=True)
class Explanation:
    operator: str
    """Whose result differs; ``*`` for any."""
    difference: str
    """A piece of text that the difference has; empty for any."""
    kinds: tuple[str, ...]
    """The kinds of runs that it holds for; none for any."""
    reason: str
    attributes: tuple[str, tuple[int, ...]] | None = None
    """Holds only where a node has this attribute with a value other than these."""
    model_has: tuple[bytes, ...] = ()
    """Holds only where the model has one of these operators."""
    are_both_empty: bool = False
    """Holds only where both shapes have a dimension of 0."""
    empty: str = ""
    """Holds only where a node has this attribute, and nothing in it."""
    precisions: tuple[str, ...] = ()
    """The precisions of sessions that it holds for; none for any."""
    node: Callable[[onnx.NodeProto, conditions.Operands], bool] | None = None
    """Holds only where a node of the graph and its operands are so."""


NONE_MADE = "nothing tells the shape of elements that no trip made"
OUTSIDE = "what a float outside of an integer type becomes is the machine's choice"
NO_MEAN = "the mean of nothing is NaN, as in onnx.reference; onnxruntime gives 0"
ORT_EMPTY = "onnxruntime keeps the shape of an empty operand"
NO_CROP = "padding is never negative, as for Conv; onnxruntime crops, but for a MaxPool of float32, which it refuses"
NEARLY_WHOLE = "a sum of cosines that is nearly a whole number is cut to it, or to the one below"
NAN_STAYS = "the minimum or maximum with NaN is NaN, as for Min and Max; onnxruntime's follows from the order"
ONE_PROBIT = "onnxruntime writes PROBIT of a single score over the first half of the scores, and leaves the rest unset"
EXPLAINED: tuple[Explanation, ...] = (
    Explanation("BlackmanWindow", "e-17), expected", (), "a sum of cosines that is 0 but for rounding"),
    Explanation("BlackmanWindow", " int", (), NEARLY_WHOLE),
    Explanation("BlackmanWindow", " uint", (), NEARLY_WHOLE),
    Explanation("*", "shape [0", (), NONE_MADE, model_has=(b"Loop", b"Scan")),
    Explanation("*", "shape [", (), NONE_MADE, model_has=(b"Loop", b"Scan"), are_both_empty=True),
    Explanation("Cast", " elements", ("extreme", "out"), OUTSIDE),
    Explanation("Cast", "expected -9223372036854775808", (), OUTSIDE),
    Explanation("Cast", "np.float32(9.223372e+18), expected np.float32(-9.223372e+18)", (), OUTSIDE),
    Explanation("Cast", " uint", (), OUTSIDE),
    Explanation("CastLike", " elements", ("extreme", "out"), OUTSIDE),
    Explanation("CastLike", " uint", (), OUTSIDE),
    Explanation("Gather", " int8 elements", ("wrong",), OUTSIDE, model_has=(b"Cast",)),
    Explanation("Pow", " int", (), OUTSIDE),
    Explanation("Shrink", " int", ("extreme",), OUTSIDE),
    Explanation("Shrink", " uint", ("extreme",), OUTSIDE),
    Explanation("ArgMax", "shape [0", (), ORT_EMPTY),
    Explanation("ArgMin", "shape [0", (), ORT_EMPTY),
    Explanation("*", "shape", (), "a flag is set unless it is 0; onnxruntime takes 1 alone", ("keepdims", (0, 1))),
    Explanation("Shrink", " int", ("extreme", "out"), OUTSIDE),
    Explanation(
        "Squeeze",
        "shape",
        (),
        "an empty list names no axis, as in onnx's shape inference; onnxruntime squeezes all",
        empty="axes",
    ),
    Explanation(
        "ConvTranspose",
        "np.float32(nan), expected",
        (),
        "padding is multiplied too, and NaN or Inf times 0 is NaN",
    ),
    Explanation(
        "ai.onnx.preview.FlexAttention",
        "expected np.float16(nan)",
        (),
        "compiled code scales in float32, where a scale that float16 cannot hold is finite",
    ),
    Explanation("ReduceMean", "nan), expected", (), NO_MEAN),
    Explanation("Sign", "nan), expected", (), NO_MEAN, model_has=(b"ReduceMean",)),
    Explanation(
        "If",
        "np.float64(0.0), expected np.float64(1.0)",
        (),
        "a softmax gives 0 where its result would be denormal, and a sign shows it",
        model_has=(b"Softmax",),
    ),
    Explanation(
        "MaxUnpool",
        " elements",
        (),
        "among elements that are equal but for rounding, the one that is the maximum follows from it",
        model_has=(b"Resize",),
    ),
    Explanation(
        "Pow",
        " elements",
        (),
        "a power magnifies what precision 'medium' leaves out of a product near 0",
        precisions=("medium",),
    ),
    Explanation(
        "Elu",
        "np.float32(0.0), expected np.float32(1.3",
        (),
        "the normalization of equal elements magnifies how their mean is rounded",
        model_has=(b"LayerNormalization",),
    ),
    Explanation(
        "Cast",
        " float64 elements",
        (),
        "elements that were float32 before have the digits of float32",
        model_has=(b"LayerNormalization",),
    ),
    Explanation(
        "TopK", "nan), expected", (), "NaN is the largest, as in onnx.reference; onnxruntime has no order for it"
    ),
    Explanation(
        "ZipMap",
        " elements",
        (),
        "onnxruntime's logistic of scores far below 0 keeps few digits",
        model_has=(b"LOGISTIC",),
    ),
    Explanation(
        "DequantizeLinear",
        " elements",
        (),
        "a product in lower precision that lies close to the middle of two steps rounds to the other one",
        model_has=(b"MatMul", b"Gemm", b"Conv"),
        precisions=("medium",),
    ),
    Explanation("MaxPool", " elements", (), NO_CROP, node=conditions.is_sparse),
    Explanation("LpPool", " elements", (), NO_CROP, node=conditions.is_sparse),
    Explanation(
        "MeanVarianceNormalization",
        "np.float16(0.0), expected np.float16(nan)",
        (),
        "1e-9 is added to a deviation of 0 in float32; float16 has no such number, and onnxruntime divides 0 by 0",
    ),
    Explanation(
        "Scan",
        "output 0: ",
        (),
        "a Scan over no steps ends in its initial state; onnxruntime's of opset 8 returns what was in memory",
        node=conditions.has_no_steps,
    ),
    Explanation("LSTM", "expected np.float32(0.0)", (), "a recurrence over no steps ends in its initial state"),
    Explanation("GRU", "expected np.float32(0.0)", (), "a recurrence over no steps ends in its initial state"),
    Explanation("RNN", "expected np.float32(0.0)", (), "a recurrence over no steps ends in its initial state"),
    Explanation(
        "OneHot",
        " elements",
        (),
        "indices that are no integers are cast to int64, as ONNX says; onnxruntime compares them as they are",
        node=conditions.has_fractional_indices,
    ),
    Explanation(
        "Range",
        "shape",
        (),
        "the number of integers is computed in integers; onnxruntime rounds the span to a double",
        node=conditions.is_past_doubles,
    ),
    Explanation("ScatterElements", "nan), expected", (), NAN_STAYS, node=conditions.reduces_nan),
    Explanation("ScatterND", "nan), expected", (), NAN_STAYS, node=conditions.reduces_nan),
    Explanation(
        "StringSplit",
        "",
        (),
        "white space is what Python's split takes for it, as in onnx.reference; onnxruntime knows the space alone",
        node=conditions.has_other_spaces,
    ),
    Explanation(
        "TfIdfVectorizer",
        " elements",
        (),
        "the longest distance is one more than the count of words to skip, which overflows in onnxruntime",
        node=conditions.skips_everything,
    ),
    Explanation("ai.onnx.ml.LinearClassifier", "output 1: ", (), ONE_PROBIT, node=conditions.has_one_probit_score),
    Explanation("ai.onnx.ml.SVMClassifier", "output 1: ", (), ONE_PROBIT, node=conditions.has_one_probit_score),
    Explanation(
        "ai.onnx.ml.TreeEnsembleClassifier", "output 1: ", (), ONE_PROBIT, node=conditions.has_one_probit_score
    ),
    Explanation(
        "ai.onnx.ml.LinearRegressor",
        "expected np.float32(",
        (),
        "onnxruntime's logistic of scores far below 0 keeps few digits",
        node=conditions.has_low_scores,
    ),
)


def why(case: Case, subject: str, run: Run, difference: str) -> str | None:
    """The reason why the answer of an operator differs, where it is known."""
    for e in EXPLAINED:
        if e.operator not in ("*", subject) or e.difference not in difference or (e.kinds and run.kind not in e.kinds):
            continue
        if e.precisions and case.options.precision not in e.precisions:
            continue
        if e.model_has and not any(name in case.model for name in e.model_has):
            continue
        if e.are_both_empty and not _are_both_empty(difference):
            continue
        if e.empty and not any(a.name == e.empty and not a.ints for n in _nodes(case) for a in n.attribute):
            continue
        if e.node and not _holds(e.node, case, run):
            continue
        if e.attributes is None or _has(case, *e.attributes):
            return e.reason
    return None


def _holds(condition: Callable[[onnx.NodeProto, conditions.Operands], bool], case: Case, run: Run) -> bool:
    graph = onnx.load_from_string(case.model).graph
    return any(condition(n, conditions.operands(graph, n, run.feeds)) for n in graph.node)


def _are_both_empty(difference: str) -> bool:
    shapes = re.findall(r"\[([^\]]*)\]", difference)
    return len(shapes) == 2 and all("0" in shape.split(", ") for shape in shapes)


def _has(case: Case, name: str, usual: tuple[int, ...]) -> bool:
    """Whether a node has the attribute with an unusual value."""
    return any(a.name == name and a.i not in usual for n in _nodes(case) for a in n.attribute)


def _nodes(case: Case) -> Sequence[onnx.NodeProto]:
    return onnx.load_from_string(case.model).graph.node
