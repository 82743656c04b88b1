"""Operators on strings: concatenate, split, normalize, match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ops import regex
from sardonyx.ops.axes import Array, strings
from sardonyx.ops.limits import check_nbytes
from sardonyx.ops.registry import op


@op("StringConcat")
def string_concat(a: Array, b: Array) -> Array:
    try:
        a, b = np.broadcast_arrays(a, b)
    except ValueError:
        raise InvalidArgument(
            "StringConcat: the inputs do not broadcast together", got=f"{list(a.shape)}, {list(b.shape)}"
        ) from None
    pairs = list(zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True))
    check_nbytes(sum(len(s) + len(t) for s, t in pairs), "the strings of StringConcat grow too long")
    return strings((s + t for s, t in pairs), a.shape)


@op("StringSplit")
def string_split(x: Array, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Array, Array]:
    """Substrings along a new last axis, padded with empty ones, and their numbers."""
    limit = -1 if maxsplit is None else maxsplit
    parts: list[list[str]] = [s.split(delimiter or None, limit) for s in x.reshape(-1).tolist()]
    width = max(map(len, parts), default=0)
    padded = (word for p in parts for word in (*p, *[""] * (width - len(p))))
    return strings(padded, (*x.shape, width)), np.array([len(p) for p in parts], np.int64).reshape(x.shape)


@lru_cache(maxsize=1 << 16)
def _lower_char(c: str) -> str:
    """Unicode's simple mapping: one character to one."""
    return c.lower()[0]


@lru_cache(maxsize=1 << 16)
def _upper_char(c: str) -> str:
    upper, title = c.upper(), c.title()
    return upper if len(upper) == 1 else title if len(title) == 1 else c


def _lower(text: str) -> str:
    return text.lower() if text.isascii() else "".join(map(_lower_char, text))


def _upper(text: str) -> str:
    return text.upper() if text.isascii() else "".join(map(_upper_char, text))


_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": _lower, "UPPER": _upper}


@op("StringNormalizer")
def string_normalizer(
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] | None = None,
) -> Array:
    """Remove stop words and change the case of the others, character by character and independent of the locale."""
    if not (x.ndim == 1 or (x.ndim == 2 and x.shape[0] == 1)) or case_change_action not in _CASES:
        raise InvalidArgument(
            "StringNormalizer needs shape [C] or [1, C] and a case action NONE, LOWER or UPPER",
            got=f"{list(x.shape)}, {case_change_action}",
        )
    change = _CASES[case_change_action]
    fold = str if is_case_sensitive else _lower
    stops = {fold(w) for w in stopwords or ()}
    kept = [change(s) for s in x.reshape(-1).tolist() if fold(s) not in stops] or [""]
    return strings(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


@op("RegexFullMatch")
def regex_full_match(x: Array, *, pattern: str | None = None) -> Array:
    """Whether the pattern matches the whole string."""
    matches = regex.compile(pattern or "").matches
    return np.array([matches(s) for s in x.reshape(-1).tolist()], bool).reshape(x.shape)
