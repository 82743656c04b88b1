"""Determinants."""

from __future__ import annotations

import math

from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, work_type
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.pointwise import as_type
from sardonyx.lower.rules.reduce import apply
from sardonyx.lower.sizes import Refused

MAX_ROWS = 4
"""Larger matrices are not compiled."""


def _determinant(e: Emitter, *elements: Expr) -> Expr:
    """Laplace expansion along the first row."""
    n = math.isqrt(len(elements))
    if n == 1:
        return elements[0]
    total: Expr | None = None
    for column in range(n):
        rest = [x for i, x in enumerate(elements) if i >= n and i % n != column]
        term = elements[column] * _determinant(e, *rest)
        total = term if total is None else total - term if column % 2 else total + term
    assert total is not None
    return total


@rule("Det")
def det(low: Lowering, node: Node) -> None:
    x, out, body = low.view(low.input(0)), low.make(node.output), ExpressionBuilder()
    n = x.shape[-1] if len(x.shape) > 1 else None
    if not isinstance(n, int) or not 0 < n <= MAX_ROWS or x.shape[-2] != n:
        raise Refused(f"Det of more than {MAX_ROWS} rows, or of a matrix that is not square, is not compiled")
    rows = (views.selected(x, len(x.shape) - 2, i) for i in range(n))
    args = [body.operand(views.selected(row, len(row.shape) - 1, i)) for row in rows for i in range(n)]
    work = work_type(out.dtype)
    value = apply(body, _determinant, *args, dtype=work if n > 1 else out.dtype)
    if work is not out.dtype and n > 1:
        value = apply(body, as_type, value, dtype=out.dtype, source=work, to=out.dtype)
    low.loop(out.shape, body, [(value, out)])
