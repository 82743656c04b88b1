"""Parses Einsum equations to axis labels."""

from __future__ import annotations

from collections.abc import Sequence

Labels = tuple[str, ...]
"""One label per axis; an axis of an ellipsis is labelled by its distance from the ellipsis' end."""


def parse(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of operands of these ranks, and those of the result. ValueError if the equation does not fit."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = [_labels(word, rank) for word, rank in zip(left.split(","), ranks, strict=True)]
    dots = max(sum(label.isdigit() for label in term) for term in terms)
    hidden = tuple(map(str, reversed(range(dots))))
    if arrow:
        before, shown, after = right.partition("...")
        result = (*before, *(hidden if shown else ()), *after)
    else:
        result = (*hidden, *sorted({c for c in left if c.isalpha() and left.count(c) == 1}))
    if not set(result) <= {label for term in terms for label in term} or len(set(result)) != len(result):
        raise ValueError("the result has labels that no operand has, or one of them twice")
    return terms, result


def _labels(word: str, rank: int) -> Labels:
    before, dots, after = word.partition("...")
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not dots) or not all(c.isalpha() for c in before + after):
        raise ValueError(f"{word!r} does not fit an operand of {rank} axes")
    return (*before, *map(str, reversed(range(hidden))), *after)
