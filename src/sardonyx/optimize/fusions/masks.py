"""Masks of attention scores: terms that are added, and conditions under which a score is replaced by a very low one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.ops.infer import infer_node
from sardonyx.optimize.fusion import require
from sardonyx.optimize.fusions.checks import number

Dim: TypeAlias = "int | str | None"

LOW = -1e4
"""A score at most this low has no weight beside an ordinary one: exp(-1e4) is 0 in f32."""

LOWEST = -1e9
"""A number this low swallows any ordinary score added to it, so that adding it and putting it in place are the same.

An f32 near 1e9 has neighbours 64 away. f16 ends before it; the lowest f16 does the same among its kind."""


@dataclass(frozen=True)
class Term:
    """One step that masks scores: ``mask`` is added, or scores that ``condition`` does not keep become ``fill``."""

    mask: Value | None = None
    condition: Value | None = None
    fill: Value | None = None
    keeps: bool = True
    """Does a true condition keep a score, or drop it?"""


def combine(op: Builder, terms: list[Term], scores: tuple[Dim, ...]) -> Any:
    """One mask for the operator, boolean or additive, from the steps in the order in which they were applied."""
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
    """A value that was just written, its type known."""
    assert isinstance(x, Value) and x.producer is not None
    infer_node(x.producer)
    return x


def _is_nothing(term: Term) -> bool:
    """Zero added to all scores: what is left of a position bias in layers that have none."""
    return term.mask is not None and term.mask.is_scalar_const and term.mask.item() == 0


def _require_broadcast(mask: Value | None, scores: tuple[Dim, ...]) -> None:
    """The operator takes a mask that broadcasts to the scores, never scores that broadcast to the mask.

    It fills a last axis that is shorter than the keys with -inf, so one of size 1 does not stand for all keys.
    Two sizes that are only known by name are taken to be the same.
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
    """Is this a constant mask, or the left part of some of its rows, in which every row keeps the first key?"""
    assert condition is not None
    node = condition.producer
    while node is not None and node.op_type in ("Slice", "Cast"):
        if node.op_type == "Slice" and not _keeps_left(node):
            return False
        source = node.inputs[0]
        assert source is not None
        condition, node = source, source.producer
    return condition.is_const and bool(condition.rank) and bool(np.asarray(condition.numpy())[..., 0].all())


def _keeps_left(node: Node) -> bool:
    """Does this Slice keep the first column?"""
    x, starts, axes, steps = (node.input(i) for i in (0, 1, 3, 4))
    assert x is not None and starts is not None
    if axes is None or not axes.is_const or not x.rank:
        return False
    if steps is not None and not (steps.is_const and bool((steps.numpy() == 1).all())):
        return False
    last = [i for i, axis in enumerate(axes.numpy().tolist()) if axis % x.rank == x.rank - 1]
    return not last or (starts.is_const and int(starts.numpy()[last[0]]) == 0)
