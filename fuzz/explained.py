"""Differences from onnxruntime or onnx.reference that are right, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from fuzz import ancestry, answers, conditions
from fuzz.cases import Case, Run


@dataclass(frozen=True)
class Difference:
    """A result that is not the one of an oracle."""

    case: Case
    subject: str
    """The operator whose result differs."""
    run: Run
    text: str
    ours: Any
    theirs: Any
    agrees: Callable[[str], bool]
    """Whether another oracle agrees with us."""


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
    answers: Callable[[conditions.Operands, Any, Any], bool] | None = None
    """Holds only where our answer and theirs, arrays of one shape, are so, given the operands of a node."""
    computed_by: tuple[str, ...] = ()
    """Holds only where the result is computed by all of these operators, too."""
    oracle: str = ""
    """Holds only where this other oracle agrees with us: ``reference``, the reference provider, or ``onnx``."""


REFERENCE = "reference"
NONE_MADE = "nothing tells the shape of elements that no trip made"
OUTSIDE = "what a float outside of an integer type becomes is the machine's choice"
NO_MEAN = "the mean of nothing is NaN, as in onnx.reference; onnxruntime gives 0"
NO_DENORMALS = "a softmax gives 0 where its result would be denormal"
NAN_IN_ORDER = "NaN is the largest, as in onnx.reference; onnxruntime has no order for it"
NAN_IN_WINDOW = "the maximum of a window with NaN is NaN; onnxruntime's and onnx.reference's follow from the order"
ORT_EMPTY = "onnxruntime keeps the shape of an empty operand"
NO_CROP = "padding is never negative, as for Conv; onnxruntime crops, but for a MaxPool of float32, which it refuses"
NO_STEPS = "a recurrence over no steps ends in its initial state"
RECURRENT = ("LSTM", "GRU", "RNN")
NO_SUM = "a sum of no products is 0; onnxruntime leaves what was in memory"
DILATED = "auto_pad SAME covers the input with dilated windows; onnxruntime pads for windows that are not"
CUT = "a weighted sum of integers is rounded, as in onnx.reference's Resize; onnxruntime cuts off the fraction"
TIE = "a weighted sum of bytes in float32 lies on the other side of a half than in float64"
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
    Explanation("*", "nan), expected", (), NO_MEAN, computed_by=("ReduceMean",), answers=answers.is_nan_for_0),
    Explanation("Sign", "nan), expected", (), NO_MEAN, computed_by=("ReduceMean",)),
    Explanation(
        "*", "nan), expected", (), NAN_IN_WINDOW, computed_by=("MaxPool", "Sqrt"), answers=answers.is_nan_where_other
    ),
    Explanation(
        "Resize",
        "nan), expected",
        (),
        "a neighbour of weight 0 is multiplied too, as in onnxruntime, and NaN times 0 is NaN",
        computed_by=("Sqrt",),
        answers=answers.is_nan_where_other,
    ),
    Explanation("Pow", " elements", (), NO_DENORMALS, computed_by=("Softmax",), answers=answers.ours_is_0_where_other),
    Explanation("Equal", "True, expected False", (), NO_DENORMALS, computed_by=("Softmax",)),
    Explanation("TopK", " int64 elements", (), NO_DENORMALS, computed_by=("Softmax",)),
    Explanation("TopK", " int64 elements", (), NAN_IN_ORDER, computed_by=("Pow",)),
    Explanation(
        "Cast",
        " float32 elements",
        (),
        "elements that were float16 before have the digits of float16; onnxruntime computes in float32",
        answers=answers.are_halves,
    ),
    Explanation(
        "Pow",
        " float16 elements",
        (),
        "a power magnifies how its operand, a sum near 0, was rounded to float16",
        computed_by=("Add",),
        answers=answers.is_near,
    ),
    Explanation(
        "*",
        "4611686018427387904]",
        (),
        "-1 beside a copied size of 0 stands for the sizes that are left; onnxruntime divides by 0",
        computed_by=("Reshape",),
        are_both_empty=True,
    ),
    Explanation(
        "If",
        "np.float64(0.0), expected np.float64(1.0)",
        (),
        NO_DENORMALS,
        model_has=(b"Softmax",),
    ),
    Explanation(
        "MaxUnpool",
        " elements",
        (),
        "among elements that are equal but for rounding, the one that is the maximum follows from it",
        model_has=(b"Resize",),
    ),
    *(
        Explanation(
            operator,
            " elements",
            (),
            "a power magnifies what precision 'medium' leaves out of a product near 0",
            computed_by=("Pow",),
            precisions=("medium",),
        )
        for operator in ("Pow", "SequenceConstruct", "ConcatFromSequence")
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
    Explanation("TopK", "nan), expected", (), NAN_IN_ORDER),
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
    Explanation(
        "*",
        "shape",
        (),
        "an axis that is named twice is reduced once; of an empty tensor, onnxruntime leaves out another axis or none",
        node=conditions.repeats_axes_of_nothing,
    ),
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
    Explanation(
        "NonMaxSuppression",
        "shape",
        (),
        "onnxruntime reads the first element of a threshold that has none",
        node=conditions.has_empty_threshold,
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
    *(
        Explanation(op, " elements", (), NO_STEPS, answers=answers.is_0_where_other, oracle=REFERENCE)
        for op in RECURRENT
    ),
    Explanation("LpPool", "shape", (), DILATED, node=conditions.is_dilated_same, oracle=REFERENCE),
    Explanation(
        "AveragePool",
        "nan), expected",
        (),
        NO_MEAN,
        node=conditions.is_dilated,
        answers=answers.is_nan_for_0,
        oracle=REFERENCE,
    ),
    Explanation(
        "NegativeLogLikelihoodLoss", "nan), expected", (), NO_MEAN, answers=answers.reads_nothing, oracle=REFERENCE
    ),
    Explanation("ConvInteger", " elements", (), NO_SUM, answers=answers.is_sum_of_nothing, oracle=REFERENCE),
    Explanation("ConvTranspose", " elements", (), NO_SUM, answers=answers.is_sum_of_nothing, oracle=REFERENCE),
    Explanation(
        "ConvTranspose",
        "shape",
        (),
        "auto_pad SAME gives the input's size times the stride; onnxruntime gives less where windows leave gaps",
        node=conditions.is_sparse,
        oracle=REFERENCE,
    ),
    Explanation(
        "MeanVarianceNormalization",
        "(0.0), expected np.float32(nan)",
        ("plain", "resized"),
        "the variance of equal elements is 0; E(x^2) - E(x)^2 rounds below 0, and its root is NaN",
        answers=answers.is_0_for_nan,
        oracle=REFERENCE,
    ),
    Explanation("ReduceL2", "int", (), OUTSIDE, answers=answers.is_the_largest),
    Explanation(
        "Pad",
        " elements",
        (),
        "onnxruntime 1.30 reads other memory where it wraps one axis around and crops another; 1.31 does not",
        node=conditions.wraps_and_crops,
        oracle=REFERENCE,
    ),
    Explanation(
        "ai.onnx.preview.FlexAttention",
        " elements",
        (),
        "a softmax magnifies what precision 'medium' leaves out of large scores",
        precisions=("medium",),
        answers=answers.differs_in_few,
    ),
    *(
        Explanation(
            op,
            " elements",
            (),
            "a recurrence with large weights magnifies what precision 'medium' leaves out of a step",
            precisions=("medium",),
            node=conditions.has_large_recurrence,
            answers=answers.differs_in_few,
        )
        for op in RECURRENT
    ),
    Explanation("CastLike", " int8 elements", (), OUTSIDE, answers=answers.differs_at_infinity),
    *(
        Explanation(op, text, (), reason, node=conditions.is_weighted, answers=holds)
        for op in ("Resize", "Upsample")
        for text, reason, holds in (("int", CUT, answers.cuts_fractions), ("int8", TIE, answers.differs_by_a_tie))
    ),
    Explanation(
        "Resize",
        " elements",
        (),
        "a scale makes a length with a fraction, which tf_crop_and_resize divides by, as in onnx.reference",
        node=conditions.is_scaled_crop,
        oracle=REFERENCE,
    ),
    Explanation(
        "Upsample",
        " elements",
        (),
        "onnxruntime copies an image that keeps its sizes, whatever the scales",
        answers=answers.copies_an_operand,
        oracle=REFERENCE,
    ),
)


def why(found: Difference) -> str | None:
    """The reason why the answer of an operator differs, where it is known."""
    return next((e.reason for e in EXPLAINED if _holds(e, found)), None)


def _holds(e: Explanation, found: Difference) -> bool:
    case = found.case
    if e.operator not in ("*", found.subject) or e.difference not in found.text:
        return False
    if (e.kinds and found.run.kind not in e.kinds) or (e.precisions and case.options.precision not in e.precisions):
        return False
    if e.model_has and not any(name in case.model for name in e.model_has):
        return False
    if e.are_both_empty and not _are_both_empty(found.text):
        return False
    if e.empty and not any(a.name == e.empty and not a.ints for n in _nodes(case) for a in n.attribute):
        return False
    if e.attributes is not None and not _has(case, *e.attributes):
        return False
    if e.computed_by and not ancestry.computed_by(onnx.load_from_string(case.model), found.subject) >= {*e.computed_by}:
        return False
    return _is_met(e, found) and (not e.oracle or found.agrees(e.oracle))


def _is_met(e: Explanation, found: Difference) -> bool:
    """Whether a node and its operands, and the answers, are as an explanation asks."""
    if e.node is None and e.answers is None:
        return True
    graph = onnx.load_from_string(found.case.model).graph
    nodes = [(n, conditions.operands(graph, n, found.run.feeds)) for n in graph.node]
    if e.node is not None and not any(e.node(n, given) for n, given in nodes):
        return False
    return e.answers is None or (_are_alike(found) and any(e.answers(g, found.ours, found.theirs) for _, g in nodes))


def _are_alike(found: Difference) -> bool:
    both = found.ours, found.theirs
    return all(isinstance(x, np.ndarray) for x in both) and found.ours.shape == found.theirs.shape


def _are_both_empty(difference: str) -> bool:
    shapes = re.findall(r"\[([^\]]*)\]", difference)
    return len(shapes) == 2 and all("0" in shape.split(", ") for shape in shapes)


def _has(case: Case, name: str, usual: tuple[int, ...]) -> bool:
    """Whether a node has the attribute with an unusual value."""
    return any(a.name == name and a.i not in usual for n in _nodes(case) for a in n.attribute)


def _nodes(case: Case) -> Sequence[onnx.NodeProto]:
    return onnx.load_from_string(case.model).graph.node
