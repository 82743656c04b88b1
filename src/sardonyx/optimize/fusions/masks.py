"""Masks of attention scores: additive terms, and conditions under which a score is replaced by a very low one."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.ops.infer import infer_node
from sardonyx.optimize.fusion import require
from sardonyx.optimize.fusions.checks import number
from sardonyx.records import Record

Dim: TypeAlias = "int | str | None"

LOW = -1e4
"""A score this low has no weight next to ordinary ones: exp(-1e4) is 0 in f32."""

LOWEST = -1e9
"""A number so low that adding it to a score equals replacing the score.

Adjacent f32 numbers near 1e9 differ by 64. f16 does not reach it; its lowest number has the same effect there.
"""


class Term(Record):
    """One masking step: ``mask`` is added, or scores that ``condition`` does not keep become ``fill``."""

    mask: Value | None = None
    condition: Value | None = None
    fill: Value | None = None
    keeps: bool = True
    """Whether a true condition keeps a score."""


def combine(op: Builder, terms: list[Term], scores: tuple[Dim, ...]) -> Any:
    """One mask for the operator, boolean or additive, from the steps in the order of their application."""
    mask: Any = None
    terms = [t for t in terms if not _is_nothing(t)]
    for term in terms:
        _require_broadcast(term.mask or term.condition, scores)
        if term.mask is not None:
            mask = term.mask if mask is None else typed(op.Add(mask, term.mask))
            continue
        assert term.condition is not None and term.fill is not None
        fill = number(term.fill, "what hidden scores become")
        kept = term.keeps and len(terms) == 1 and fill <= LOW and keeps_first_key(term.condition)
        if len(terms) == 1 and (kept or fill == -np.inf):
            return term.condition if term.keeps else typed(op.Not(term.condition))
        low = float(np.finfo(np.float16).min) if term.fill.numpy().dtype == np.float16 else LOWEST
        require(fill <= low, f"hidden scores become {fill}, which is not low enough to be a sum", term.fill)
        rest = op.const(np.zeros((), term.fill.numpy().dtype)) if mask is None else mask
        choices = (rest, term.fill) if term.keeps else (term.fill, rest)
        mask = typed(op.Where(term.condition, *choices))
    return mask


def typed(x: Any) -> Value:
    """A value that was just built, with its type inferred."""
    assert isinstance(x, Value) and x.producer is not None
    infer_node(x.producer)
    return x


def _is_nothing(term: Term) -> bool:
    """Whether zero is added to all scores: what is left of a position bias in layers without one."""
    return term.mask is not None and term.mask.is_scalar_const and term.mask.item() == 0


def _require_broadcast(mask: Value | None, scores: tuple[Dim, ...]) -> None:
    """Refuse unless the mask broadcasts to the scores without enlarging them.

    Attention fills a last axis shorter than the keys with -inf, so one of size 1 does not apply to all keys. Equal
    symbolic sizes are taken to be equal.
    """
    assert mask is not None
    shape = mask.shape
    require(shape is not None and 2 <= len(shape) <= len(scores), "the mask's rank is not known to be 2 to 4", mask)
    assert shape is not None
    keys, wanted = shape[-1], scores[-1]
    require(keys == wanted or (keys not in (1, None) and wanted != 1), "the mask is not known to cover all keys", mask)
    for size, whole in zip(shape[:-1], scores[-len(shape) : -1], strict=True):
        fits = size in (1, whole) or (isinstance(size, str) and whole != 1)
        require(fits and size is not None, "the mask is not known to broadcast to the scores", mask)


def keeps_first_key(condition: Value | None) -> bool:
    """Whether this is a constant mask, or the left part of some of its rows, whose rows all keep the first key."""
    assert condition is not None
    node = condition.producer
    while node is not None and node.onnx_op in ("Slice", "Cast"):
        if node.onnx_op == "Slice" and not _keeps_left(node):
            return False
        source = node.inputs[0]
        assert source is not None
        condition, node = source, source.producer
    return condition.is_const and bool(condition.rank) and bool(np.asarray(condition.numpy())[..., 0].all())


def _keeps_left(node: Node) -> bool:
    """Whether this Slice keeps the first column."""
    x, starts, axes, steps = (node.input(i) for i in (0, 1, 3, 4))
    assert x is not None and starts is not None
    if axes is None or not axes.is_const or not x.rank:
        return False
    if steps is not None and not (steps.is_const and bool((steps.numpy() == 1).all())):
        return False
    last = [i for i, axis in enumerate(axes.numpy().tolist()) if axis % x.rank == x.rank - 1]
    return not last or (starts.is_const and int(starts.numpy()[last[0]]) == 0)
