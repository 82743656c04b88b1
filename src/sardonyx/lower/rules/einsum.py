"""Einsum, two operands at a time: transposes and diagonals are views, sums are loops, sums of products contractions."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, work_type
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.matmul import contraction
from sardonyx.lower.rules.reduce import apply, times
from sardonyx.lower.sizes import Refused, add, product
from sardonyx.ops.equation import Labels, parse
from sardonyx.records import Record, replace


class Term(Record):
    view: View
    labels: Labels


@rule("Einsum")
def einsum(low: Lowering, node: Node) -> None:
    given = [low.view(low.input(i)) for i in range(len(node.inputs))]
    try:
        labels, result = parse(node.attrs["equation"], [len(v.shape) for v in given])
    except ValueError as why:
        raise Refused(f"Einsum: {why}") from None
    terms = [_diagonal(low, v, t) for v, t in zip(given, labels, strict=True)]
    sizes: dict[str, Known] = {}
    for term in terms:
        for label, size in zip(term.labels, term.view.shape, strict=True):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
    _Contracting(low, sizes).run(terms, result)


def _diagonal(low: Lowering, view: View, labels: Labels) -> Term:
    """Merge the axes of a repeated label into the diagonal, whose stride is the sum of their strides."""
    for axis in reversed(range(len(labels))):
        first = labels.index(labels[axis])
        if first != axis:
            low.require("Einsum: axes of one label differ", view.shape[axis], view.shape[first])
            step = add(view.strides[first], view.strides[axis])
            strides = (*view.strides[:first], step, *view.strides[first + 1 :])
            view = views.selected(replace(view, strides=strides), axis)
            labels = (*labels[:axis], *labels[axis + 1 :])
    return Term(view, labels)


class _Contracting:
    def __init__(self, low: Lowering, sizes: dict[str, Known]) -> None:
        self.low, self.sizes = low, sizes
        self.out = low.node.output
        self.dtype = low.dtype(self.out)
        self.work = work_type(self.dtype) if self.dtype.is_float else self.dtype

    def run(self, terms: list[Term], result: Labels) -> None:
        """Combine the operands from left to right; the last step writes the result."""
        while len(terms) > 2:
            a, b, *rest = terms
            later = {*result, *(label for t in rest for label in t.labels)}
            kept = tuple(label for label in dict.fromkeys((*a.labels, *b.labels)) if label in later)
            target = self.low.temporary(self.work, self.box(kept))
            self.pair(a, b, Term(target, kept))
            terms = [Term(target, kept), *rest]
        if len(terms) == 1 and set(terms[0].labels) == set(result):
            self.low.alias(self.out, self.broadcast(terms[0], result))
        elif len(terms) == 1:
            self.loop(terms, Term(self.low.make(self.out), result))
        else:
            a, b = terms
            self.pair(a, b, Term(self.low.make(self.out), result))

    def box(self, labels: Sequence[str]) -> tuple[Known, ...]:
        return tuple(self.sizes[label] for label in labels)

    def broadcast(self, term: Term, labels: Sequence[str]) -> View:
        """A term with the axes ``labels``, broadcast along those that it lacks."""
        view = views.permuted(term.view, [term.labels.index(label) for label in labels if label in term.labels])
        for axis, label in enumerate(labels):
            if label not in term.labels:
                view = views.inserted(view, axis)
        return self.low.fit(view, self.box(labels))

    def loop(self, terms: Sequence[Term], target: Term) -> None:
        """Products of elements, summed over the labels that the target lacks."""
        summed = [x for x in dict.fromkeys(x for t in terms for x in t.labels) if x not in target.labels]
        order, body = (*target.labels, *summed), ExpressionBuilder()
        value, *others = (body.operand(self.broadcast(t, order)) for t in terms)
        for other in others:
            value = apply(body, times, value, other, dtype=self.work if summed else target.view.dtype)
        if summed:
            value = body.reduce("sum", value, target.view.dtype)
        self.low.loop(self.box(order), body, [(value, target.view)], reduced=len(summed))

    def without_own_labels(self, term: Term, others: Labels) -> Term:
        """A term summed over the labels that no other term and not the result has."""
        kept = tuple(label for label in term.labels if label in others)
        if kept == term.labels:
            return term
        target = Term(self.low.temporary(self.work, self.box(kept)), kept)
        self.loop([term], target)
        return target

    def pair(self, a: Term, b: Term, target: Term) -> None:
        a, b = (
            self.without_own_labels(a, (*b.labels, *target.labels)),
            self.without_own_labels(b, (*a.labels, *target.labels)),
        )
        both = [label for label in a.labels if label in b.labels]
        summed = [label for label in both if label not in target.labels]
        if not summed or not self.dtype.is_float:
            self.loop([a, b], target)
            return
        if target.labels[-1:] and target.labels[-1] in a.labels:
            a, b = b, a
        batch = [label for label in target.labels if label in both]
        rows = [label for label in target.labels if label in a.labels and label not in both]
        columns = [label for label in target.labels if label in b.labels and label not in both]
        m, n, k = (product(self.box(x)) for x in (rows, columns, summed))
        left = self.low.reshaped(self.broadcast(a, (*batch, *rows, *summed)), (*self.box(batch), m, k))
        right = self.low.reshaped(self.broadcast(b, (*batch, *summed, *columns)), (*self.box(batch), k, n))
        order = [target.labels.index(label) for label in (*batch, *rows, *columns)]
        wanted = views.permuted(target.view, order)
        out = views.reshaped(wanted, (*self.box(batch), m, n))
        body = ExpressionBuilder([work_type(self.dtype)])
        if out is not None:
            contraction(self.low, left, right, body, ~0, out)
            return
        out = self.low.temporary(target.view.dtype, (*self.box(batch), m, n))
        contraction(self.low, left, right, body, ~0, out)
        split = self.low.reshaped(out, self.box((*batch, *rows, *columns)))
        self.low.copy(split, wanted)
