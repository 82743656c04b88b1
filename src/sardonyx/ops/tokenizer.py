"""com.microsoft.Tokenizer: strings split into tokens along a new last axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx import dtypes
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.ir.graph import Node
from sardonyx.ir.types import TensorType
from sardonyx.ops import regex
from sardonyx.ops.axes import Array, strings
from sardonyx.ops.contrib import MICROSOFT
from sardonyx.ops.limits import check_nbytes
from sardonyx.ops.registry import op
from sardonyx.ops.rules import Content, Result, rule

START, END = "\x02", "\x03"
"""Markers of the ends of a text."""

POINTER_NBYTES = 8

Cut = Callable[[str], list[str]]


@op("Tokenizer", domain=MICROSOFT)
def tokenizer(
    x: Array,
    *,
    mark: int,
    mincharnum: int,
    pad_value: str,
    separators: Sequence[str] | None = None,
    tokenexp: str | None = None,
) -> Array:
    """(C) to (C, D) or (N, C) to (N, C, D), D being the largest number of tokens; shorter rows are padded with
    ``pad_value``.

    If the input is empty, the axis of tokens replaces the last one.
    """
    if x.ndim not in (1, 2):
        raise InvalidArgument("Tokenizer takes shapes [C] and [N, C]", got=list(x.shape))
    if not x.size:
        return strings((), (*x.shape[:-1], 0))
    cut = cutter(separators, tokenexp, mincharnum)
    rows = [cut(text) for text in x.reshape(-1).tolist()]
    width = max(map(len, rows))
    if width and mark:
        rows, width = [[START, *row, END] for row in rows], width + 2
    check_nbytes(len(rows) * width * POINTER_NBYTES, "the output of Tokenizer grows too large")
    padded = (word for row in rows for word in (*row, *[pad_value] * (width - len(row))))
    return strings(padded, (*x.shape, width))


def cutter(separators: Sequence[str] | None, tokenexp: str | None, least: int) -> Cut:
    """The function that splits a text into tokens of at least ``least`` characters; InvalidGraph if the attributes are
    contradictory.
    """
    if least <= 0:
        raise InvalidGraph("attribute 'mincharnum' of Tokenizer is not positive", got=least)
    if list(separators or ()) == [""] or (not separators and tokenexp == "."):
        if least > 1:
            raise InvalidGraph("mincharnum is more than the single characters into which Tokenizer cuts", got=least)
        return list
    if separators:
        automata = [_compiled(s, "separators") for s in separators]
        return lambda text: _between(text, automata, least)
    if not tokenexp:
        raise InvalidGraph("Tokenizer needs separators or tokenexp")
    matches = _compiled(tokenexp, "tokenexp")
    return lambda text: [text[a:b] for a, b in matches.spans(text) if b - a >= least]


def _compiled(pattern: str, name: str) -> regex.Automaton:
    try:
        return regex.compile(pattern)
    except InvalidArgument as error:
        raise InvalidGraph(f"attribute {name!r} of Tokenizer: {error}") from None


def _between(text: str, separators: Sequence[regex.Automaton], least: int) -> list[str]:
    """The text split by each separator in turn; where a separator matches the empty string, it removes the next
    character.
    """
    pieces = [text]
    for separator in separators:
        rest: list[str] = []
        for piece in pieces:
            at = 0
            for begin, end in separator.spans(piece):
                rest.append(piece[at:begin])
                at = max(end, begin + 1)
            rest.append(piece[at:])
        pieces = [piece for piece in rest if len(piece) >= least]
    return pieces


@rule("Tokenizer", domain=MICROSOFT)
def _tokens(node: Node, content: Content) -> Result:
    return [TensorType(dtypes.string, None)]
