"""com.microsoft.Tokenizer compared with onnxruntime, on texts, patterns and shapes of every kind."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.errors import InvalidArgument, InvalidGraph, OutOfBudget, SardonyxError
from sardonyx.ops import regex

ort = pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, Any]
PATTERNS = (
    "a", "ab", "a|ab", "a*", "b+", "[ab]+", "[^ ]+", " ", r"\w+", r"\b\w\w+\b", r"\pL+", ".", "^a", "b$", "(?i)A+", "é",
    "x?", r"\s+", "[a-zA-Z0-9_]+", "(a|b)*c", "[[:punct:]]", r"\d{1,3}", "$", "^", r"\b", "(?:ab|a)(?:c|bcd)?",
)  # fmt: skip


def model(rank: int, **attrs: Any) -> bytes:
    node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **attrs)
    x = helper.make_tensor_value_info("x", TensorProto.STRING, [None] * rank)
    graph = helper.make_graph([node], "g", [x], [helper.make_tensor_value_info("y", TensorProto.STRING, None)])
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def both(x: Array, **attrs: Any) -> tuple[Any, Any]:
    """Ours and onnxruntime's result, None where it is refused."""
    made = model(x.ndim, **attrs)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    results: list[Any] = []
    for start, refused in (
        (lambda: sardonyx.InferenceSession(made), SardonyxError),
        (lambda: ort.InferenceSession(made, options, providers=["CPUExecutionProvider"]), Exception),
    ):
        try:
            results.append(start().run(None, {"x": x})[0])
        except refused:
            results.append(None)
    return results[0], results[1]


def check(x: Array, **attrs: Any) -> None:
    ours, theirs = both(x, **{"mark": 0, "mincharnum": 1, "pad_value": "#", **attrs})
    if theirs is None:
        assert ours is None
    else:
        assert ours is not None and ours.shape == theirs.shape and ours.tolist() == theirs.tolist()


def texts(*words: str) -> Array:
    return np.array(words, object)


@pytest.mark.parametrize("seed", range(4))
def test_random_texts(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(60):
        words = ["".join(draw.choices("ab cé x,1.A\n日", k=draw.randint(0, 9))) for _ in range(draw.randint(1, 4))]
        x = texts(*words)
        attrs: dict[str, Any] = {"mark": draw.randint(0, 1), "mincharnum": draw.choice([1, 1, 2, 3])}
        if draw.random() < 0.5:
            attrs["tokenexp"] = draw.choice(PATTERNS)
        else:
            attrs["separators"] = draw.choices((*PATTERNS, ""), k=draw.randint(1, 3))
        check(x.reshape(1, -1) if draw.random() < 0.3 else x, **attrs)


@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2,), (1, 2), ()], ids=str)
def test_shapes(shape: tuple[int, ...], mark: int) -> None:
    check(np.full(shape, "a b", object), separators=[" "], mark=mark)
    check(np.full(shape, "", object), separators=[" "], mark=mark)


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"tokenexp": ""},
        {"tokenexp": "("},
        {"separators": ["("]},
        {"separators": [" "], "mincharnum": 0},
        {"separators": [""], "mincharnum": 2},
        {"tokenexp": ".", "mincharnum": 2},
        {"separators": [" "], "tokenexp": "a"},
        {"separators": ["a", ""]},
        {"separators": [" "], "mark": 5},
        {"separators": [" "], "pad_value": ""},
    ],
    ids=str,
)
def test_attributes(attrs: dict[str, Any]) -> None:
    check(texts("a b", "ab cd ef"), **attrs)


def test_wrong_attributes_are_refused_before_a_run() -> None:
    with pytest.raises(InvalidGraph, match="mincharnum"):
        sardonyx.InferenceSession(model(1, mark=0, mincharnum=0, pad_value="#", separators=[" "]))
    with pytest.raises(InvalidGraph, match="pad_value"):
        sardonyx.InferenceSession(model(1, mark=0, mincharnum=1, separators=[" "]))
    session = sardonyx.InferenceSession(model(3, mark=0, mincharnum=1, pad_value="#", separators=[" "]))
    with pytest.raises(InvalidArgument, match="shapes"):
        session.run(None, {"x": np.full((1, 1, 1), "a", object)})


def test_tokens_are_counted() -> None:
    """As CountVectorizer is written: the padding of short texts is no word."""
    tokens = helper.make_node(
        "Tokenizer", ["x"], ["t"], domain="com.microsoft", mark=0, mincharnum=1, pad_value="#", tokenexp=r"\b\w\w+\b"
    )
    vectors = helper.make_node(
        "TfIdfVectorizer", ["t"], ["y"], mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0,
        ngram_counts=[0], ngram_indexes=[0, 1, 2], pool_strings=["first", "second", "document"],
    )  # fmt: skip
    graph = helper.make_graph(
        [tokens, vectors],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    session = sardonyx.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    x = texts("first second a", "document", "second, second; document", "")
    assert session.run(None, {"x": x})[0].tolist() == [[1, 1, 0], [0, 0, 1], [0, 2, 1], [0, 0, 0]]


def test_searching_has_a_budget() -> None:
    with pytest.raises(OutOfBudget):
        list(regex.compile("a(.*b)?").spans("a" * 20_000))
