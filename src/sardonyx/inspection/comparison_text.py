"""A comparison as text."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.inspection.compare import Comparison, Difference
from sardonyx.inspection.text import duration

LISTED = 10


def comparison_text(found: Comparison) -> str:
    """Outputs, the first divergence, the worst layers and times."""
    return "\n".join(_lines(found))


def _lines(found: Comparison) -> Iterator[str]:
    yield f"a  {found.a}"
    yield f"b  {found.b}"
    yield from found.statements
    yield f"outputs: {'alike' if found.is_alike else 'different'}"
    yield from (f"  {line(d)}" for d in found.outputs)
    if found.layers:
        wrong = [d for d in found.layers if d.reason is not None]
        yield f"values inside: {len(found.layers)} compared by name, {len(wrong)} different"
        if found.first is not None:
            yield f"  first divergence: {line(found.first)}"
        measured = sorted((d for d in found.layers if d.error is not None), key=lambda d: -(d.error or 0.0))
        yield from (f"  {line(d)}" for d in measured[:LISTED])
    if found.seconds is not None:
        a, b = found.seconds
        faster, ratio = ("b", a / b) if b < a else ("a", b / a)
        yield f"time of a run: a {duration(a)}, b {duration(b)}; {faster} is {ratio:.2f} times as fast"


def line(d: Difference) -> str:
    """One value."""
    operator = f" ({d.operator})" if d.operator else ""
    numbers = "" if d.error is None else f": relative error {d.error:.2g}, largest difference {d.largest:.2g}"
    unlike = f": {d.reason}" if d.reason is not None else ": alike"
    reason = unlike if d.error is None else ""
    verdict = "" if d.reason is None else "  DIFFERENT"
    return f"{d.name}{operator}{numbers}{reason}{verdict}"
