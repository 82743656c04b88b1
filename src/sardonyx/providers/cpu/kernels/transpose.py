"""A square of vectors turned on its diagonal, in registers."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.providers.cpu.values import Val


def transposed(rows: Sequence[Val]) -> list[Val]:
    """``lanes`` vectors of ``lanes`` elements: element j of vector i becomes element i of vector j.

    Blocks off the diagonal change places, for blocks of 1, 2, 4 ... elements: log2(lanes) rounds of two-vector
    shuffles.
    """
    out, lanes = list(rows), len(rows)
    width = 1
    while width < lanes:
        for i in range(lanes):
            if i & width:
                continue
            a, b = out[i], out[i | width]
            first = [lane if not lane & width else lanes + lane - width for lane in range(lanes)]
            second = [lane + width if not lane & width else lanes + lane for lane in range(lanes)]
            out[i], out[i | width] = a.shuffle(first, b), a.shuffle(second, b)
        width *= 2
    return out
