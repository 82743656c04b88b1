import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peers import agree, integers, meaning, onnxruntime, same


def words(*values):
    return np.array(values, object)


def test_string_concat():
    agree("StringConcat", words(["a", "b"], ["c", ""]), words("x", "yz"))
    with pytest.raises(errors.InvalidArgument, match="broadcast"):
        meaning("StringConcat", words("a", "b"), words("a", "b", "c"))


SPLITS = [
    {},
    {"delimiter": ","},
    {"delimiter": ",", "maxsplit": 1},
    {"delimiter": ""},
    {"maxsplit": 1},
    {"delimiter": "bc"},
]


@pytest.mark.parametrize("attributes", SPLITS, ids=str)
def test_string_split(attributes):
    agree("StringSplit", words(["a,b,c", " x y  z"], ["abcbc", ","]), outputs=2, **attributes)


def test_string_split_of_nothing():
    parts, counts = meaning("StringSplit", np.zeros((2, 0), object), outputs=2)
    assert parts.shape == (2, 0, 0) and counts.shape == (2, 0) and counts.dtype == np.int64


NORMALIZED = [
    ({"stopwords": ["THE"], "is_case_sensitive": 1}, ["The", "Cat", "the", "é"]),
    ({"stopwords": ["the"], "is_case_sensitive": 0}, ["Cat", "é"]),
    ({"stopwords": ["cat"], "is_case_sensitive": 0, "case_change_action": "UPPER"}, ["THE", "THE", "THE", "É"]),
    ({"case_change_action": "LOWER"}, ["the", "cat", "the", "the", "é"]),
    ({}, ["The", "Cat", "THE", "the", "é"]),
]


@pytest.mark.parametrize(("attributes", "expected"), NORMALIZED)
def test_string_normalizer(attributes, expected):
    x = words("The", "Cat", "THE", "the", "é")
    same(meaning("StringNormalizer", x, **attributes), [words(*expected)])
    same(meaning("StringNormalizer", x[None], **attributes), [words(*expected)[None]])


def test_string_normalizer_against_onnxruntime():
    x = words("The", "Cat", "THE", "the cat", "")
    agree("StringNormalizer", x, stopwords=["THE", "Cat"], is_case_sensitive=1)
    agree("StringNormalizer", words("THE"), stopwords=["THE"], is_case_sensitive=1)


def test_case_changes_character_by_character():
    """As the C library's locale en_US.UTF-8 does, on which onnxruntime relies: a text keeps its length."""
    x = words("straße", "İI", "\u0391\u03a3", "ﬁn", "ŉ", "ᾳ", "ǆ", "ÿ", "𐐨", "Äb")
    upper = words("STRAßE", "İI", "\u0391\u03a3", "ﬁN", "ŉ", "ᾼ", "Ǆ", "Ÿ", "𐐀", "ÄB")
    same(meaning("StringNormalizer", x, case_change_action="UPPER"), [upper])
    lower = words("straße", "ii", "\u03b1\u03c3", "ﬁn", "ŉ", "ᾳ", "ǆ", "ÿ", "𐐨", "äb")
    same(meaning("StringNormalizer", x, case_change_action="LOWER"), [lower])


def test_string_normalizer_refuses_columns():
    with pytest.raises(errors.InvalidArgument, match=r"\[1, C\]"):
        meaning("StringNormalizer", words(["a"], ["b"]))


@pytest.mark.parametrize("pattern", [r"www\.[\w.-]+\.\bcom\b", "a|ab", "", r"[^b]*"])
def test_regex_full_match(pattern):
    agree("RegexFullMatch", words(["www.x.com", "ab"], ["", "www.x.com.de"]), pattern=pattern)


def test_regex_errors():
    with pytest.raises(errors.InvalidArgument, match="pattern"):
        meaning("RegexFullMatch", words("a"), pattern="(")


POOL = {
    "min_gram_length": 1,
    "max_gram_length": 3,
    "ngram_counts": [0, 4, 10],
    "ngram_indexes": [6, 5, 4, 3, 2, 1, 0, 7, 8],
    "pool_int64s": [1, 2, 3, 4, 1, 2, 2, 3, 3, 1, 1, 2, 3, 4, 4, 4],
}
WEIGHTS = [0.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skip", [0, 1, 3])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 3), (2, 2), (2, 3), (3, 3)])
@pytest.mark.parametrize("weights", [{}, {"weights": WEIGHTS}], ids=["plain", "weighted"])
def test_tf_idf(mode, skip, lengths, weights):
    pool = {**POOL, "min_gram_length": lengths[0], "max_gram_length": lengths[1], **weights}
    agree("TfIdfVectorizer", integers(0, 6, 4, 30), mode=mode, max_skip_count=skip, **pool)
    agree("TfIdfVectorizer", integers(0, 6, 30), mode=mode, max_skip_count=skip, **pool)


def test_tf_idf_of_words():
    letters = {k: v for k, v in POOL.items() if k != "pool_int64s"}
    letters["pool_strings"] = ["abcd"[i - 1] for i in POOL["pool_int64s"]]
    x = np.array(["xabcde"[i] for i in integers(0, 6, 90)], object).reshape(3, 30)
    agree("TfIdfVectorizer", x, mode="TF", max_skip_count=1, **letters)


def test_tf_idf_of_more_grams_than_columns_is_refused():
    with pytest.raises(errors.InvalidArgument, match="no column"):
        pool = {**POOL, "ngram_indexes": [0, 1, 2, 3, 4]}
        meaning("TfIdfVectorizer", integers(0, 6, 30), mode="TF", max_skip_count=0, **pool)


def test_tf_idf_of_little():
    for shape in ((0,), (2, 0), (1,)):
        x = np.ones(shape, np.int64)
        same(
            meaning("TfIdfVectorizer", x, mode="TF", max_skip_count=0, **POOL),
            onnxruntime("TfIdfVectorizer", x, mode="TF", max_skip_count=0, **POOL),
        )
