"""Patterns against Python's re where the two languages agree, and against onnxruntime's RE2 where it is installed."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.errors import SardonyxError
from sardonyx.ops import regex

CASES = [
    (r"www\.[\w.-]+\.\bcom\b", ["www.google.com", "www.facebook.com", "www.bbc.co.uk"]),
    (
        r"(\W|^)[\w.\-]{0,25}@(yahoo|gmail)\.com(\W|$)",
        ["account@gmail.com", "account@hotmail.com", "not email", "@yahoo.com"],
    ),
    (r"a{2,3}", ["a", "aa", "aaa", "aaaa"]),
    (r"a{2}b?|c*", ["aa", "aab", "", "ccc", "ac"]),
    (r"a{,2}", ["a{,2}", "aa"]),
    (r"(?i)straSSe[a-c]", ["STRASSEB", "strasse", "StrasseC"]),
    (r"(?s).+", ["a\nb"]),
    (r".+", ["a\nb", "ab"]),
    (r"(?m)^a$\n^b$", ["a\nb"]),
    (r"[^]a-c-]+", ["d]", "xyz", "a-", "_"]),
    (r"[[:alpha:][:digit:]]+", ["ab1", "a b", "é"]),
    (r"\d\D\w\W\s\S", ["1a_- x", "1aa- x", "٣a_- x"]),
    (r"\x41\x{1F600}\101\t", ["A😀A\t"]),
    (r"\Qa.b*\E+", ["a.b*", "a.b***", "axb"]),
    (r"\pL+\p{Nd}\PL", ["äß1!", "a11", "1"]),
    (r"\bfoo\b.*\Bx", ["foo yx", "foo x", "food"]),
    (r"(?P<name>ab)+(?:c|d)?", ["ababc", "abcd"]),
    (r"", ["", "a"]),
    (r"a|", ["", "a", "b"]),
    (r"\.\*\[\]\(\)", [".*[]()"]),
]
BAD = [
    "(",
    ")",
    "a)",
    "[",
    "[b-a]",
    "*a",
    "a**",
    "a{1001}",
    "a{3,2}",
    "\\",
    "\\y",
    "\\1",
    "(?z)",
    "[[:nope:]]",
    "(?P<n",
    "\\x{110000}",
]


@pytest.mark.parametrize(("pattern", "texts"), CASES)
def test_as_onnxruntime(pattern: str, texts: list[str]) -> None:
    ort = pytest.importorskip("onnxruntime")
    node = onnx.helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [None])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.BOOL, [None])
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": np.array(texts, object)})
    assert [regex.compile(pattern).matches(t) for t in texts] == expected.tolist()


@pytest.mark.parametrize("pattern", BAD)
def test_bad_patterns(pattern: str) -> None:
    with pytest.raises(SardonyxError):
        regex.compile(pattern)


@settings(max_examples=300)
@given(st.text("ab|*+?().[]^-{}12,", max_size=8), st.lists(st.text("ab.-1", max_size=6), min_size=5, max_size=5))
def test_as_re(pattern: str, texts: list[str]) -> None:
    try:
        ours = regex.compile(pattern)
        theirs = re.compile(pattern)
    except (SardonyxError, re.error, FutureWarning):
        return
    if re.search(r"\{\d*,\d*\}|[*+?}]\+|\(\?|\[\[|--|\|\|", pattern):
        return  # the languages differ here
    for text in texts:
        assert ours.matches(text) == (theirs.fullmatch(text) is not None), (pattern, text)
