"""TfIdfVectorizer: counts of the n-grams of a pool, in integers or strings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ops.axes import Array
from sardonyx.ops.registry import op
from sardonyx.records import Record


class Grams(Record):
    """The n-grams of one length, found word by word.

    Prefixes of n-grams are numbered: one word by its index in the pool, i + 1 words by the position of ``number of the
    first i * base + last word`` in ``levels[i - 1]``. A number past the end stands for all other prefixes.
    """

    base: int
    levels: list[Array]
    columns: Array
    """The output column of each n-gram, followed by -1."""

    def find(self, words: list[Array]) -> Array:
        """The columns of the n-grams whose i-th words are ``words[i]``; -1 for unknown ones."""
        number = words[0]
        for level, word in zip(self.levels, words[1:], strict=True):
            key = number * self.base + word
            at = np.searchsorted(level, key)
            number = np.where(level[np.minimum(at, len(level) - 1)] == key, at, len(level))
        return self.columns[number]


class Pool(Record):
    words: dict[Any, int]
    grams: dict[int, Grams]
    width: int


@lru_cache(maxsize=64)
def _pool(
    items: tuple[Any, ...], counts: tuple[int, ...], indexes: tuple[int, ...], shortest: int, longest: int
) -> Pool:
    words = {word: i for i, word in enumerate(dict.fromkeys(items))}
    numbers = np.array([words[w] for w in items], np.int64)
    grams = {}
    first = 0
    for n, (start, end) in enumerate(zip(counts, (*counts[1:], len(items)), strict=True), 1):
        number = (end - start) // n
        if shortest <= n <= longest and number > 0:
            columns = np.array(indexes[first : first + number], np.int64)
            if len(columns) < number:
                raise InvalidArgument(
                    "TfIdfVectorizer: ngram_indexes has no column for some grams",
                    expected=f"at least {first + number}",
                    got=len(indexes),
                )
            grams[n] = _grams([numbers[start + i : end : n] for i in range(n)], len(words) + 1, columns)
        first += number
    return Pool(words, grams, max(indexes, default=-1) + 1)


def _grams(words: list[Array], base: int, columns: Array) -> Grams:
    levels = []
    number, numbers = words[0], base
    for word in words[1:]:
        level, number = np.unique(number * base + word, return_inverse=True)
        levels.append(level)
        numbers = len(level) + 1
    table = np.full(numbers, -1, np.int64)
    table[number] = columns
    return Grams(base, levels, table)


@op("TfIdfVectorizer")
def tf_idf_vectorizer(
    x: Array,
    *,
    mode: str,
    min_gram_length: int,
    max_gram_length: int,
    max_skip_count: int,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Array:
    """Per row, how often each n-gram occurs with 0 .. ``max_skip_count`` words skipped between its words.

    TF is the count, IDF the weight if the count is not 0, TFIDF their product.
    """
    if x.ndim not in (0, 1, 2) or mode not in ("TF", "IDF", "TFIDF"):
        raise InvalidArgument("TfIdfVectorizer needs [C] or [B, C] and mode TF, IDF or TFIDF", got=f"{x.shape}, {mode}")
    pool = _pool(
        tuple(pool_int64s or pool_strings or ()), tuple(ngram_counts), tuple(ngram_indexes),
        min_gram_length, max_gram_length,
    )  # fmt: skip
    rows = x if x.ndim == 2 else x.reshape(1, -1)
    counts = np.zeros((rows.shape[0], pool.width), np.int64)
    unknown = len(pool.words)
    flat = rows.reshape(-1).tolist()
    numbers = np.array([pool.words.get(w, unknown) for w in flat], np.int64).reshape(rows.shape)
    for n, grams in pool.grams.items():
        # A unigram has no gaps, so it is counted once, whatever may be skipped.
        for distance in range(1, 2 if n == 1 else max_skip_count + 2):
            places = rows.shape[1] - distance * (n - 1)
            if places <= 0:
                break
            columns = grams.find([numbers[:, i * distance : i * distance + places].reshape(-1) for i in range(n)])
            hits = np.flatnonzero(columns >= 0)
            np.add.at(counts, (hits // places, columns[hits]), 1)
    shape = (rows.shape[0], pool.width) if x.ndim == 2 else (pool.width,)
    scale = np.ones(pool.width, np.float32) if not weights else _column_weights(weights, ngram_indexes, pool.width)
    values = counts.astype(np.float32) if mode != "IDF" else (counts > 0).astype(np.float32)
    return (values if mode == "TF" else values * scale).reshape(shape)


def _column_weights(weights: Sequence[float], indexes: Sequence[int], width: int) -> Array:
    columns = np.zeros(width, np.float32)
    columns[np.array(indexes)] = np.array(weights, np.float32)
    return columns
