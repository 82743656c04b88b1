"""Narrow windows one or two elements apart: rows of outputs made in registers, vector by vector.

The rows of the image are combined a vector at a time; vectors of every ``stride``-th element, and the same of the step
before, hold all that the outputs of a step see. Nothing goes through memory, so reading, computing and writing go on
side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from sardonyx.providers.cpu.kernels.common.window import Taps
from sardonyx.providers.cpu.kernels.math.unaligned_rows import tiles_of, unrolled_row
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Tile, Val, Var, i32

ROWS, COLUMNS = 9, 8
"""Taps of a window, over the other axes and along a row, up to which it is narrow."""
SHORTEST = 8
"""Lanes from which on a vector saves more than the masked ones at both ends of a row cost."""

Combined = Callable[[Val, Val | None], list[Val]]
"""What each row of outputs sees of the rows of the image from an element on, under a mask."""


def is_narrow(taps: Taps, lanes: int) -> bool:
    """Whether a vector holds what outputs see of the step before."""
    behind = (taps.kernel[2] - 1) * taps.dilations[2] + 1 - taps.strides[2]
    is_small = taps.kernel[0] * taps.kernel[1] <= ROWS and taps.kernel[2] <= COLUMNS
    return lanes >= SHORTEST and is_small and taps.strides[2] <= 2 and 0 <= behind <= lanes


class Stream:
    """The code of rows of outputs, which go along side by side. Beside the image, which is ``width`` wide, lies
    ``neutral``.
    """

    def __init__(
        self, k: Kernel, taps: Taps, lanes: int, width: Val, neutral: float, combine: Callable[[Val, Val], Val]
    ) -> None:
        self.k, self.lanes, self.width, self.neutral, self.combine = k, lanes, width, neutral, combine
        self.step = taps.strides[2]
        self.behind = (taps.kernel[2] - 1) * taps.dilations[2] + 1 - self.step
        self.taps = [tap * taps.dilations[2] for tap in range(taps.kernel[2])]
        self.offsets = [tap - self.behind for tap in self.taps]

    def run(self, combined: Combined, left: Val, columns: Val, put: Callable[[int, Tile, Val], None]) -> None:
        """``combined`` gives for each row of outputs the vector that it sees from an element of the image on, which may
        be masked; ``left`` is the first element that the first output sees.
        """
        k, span = self.k, self.lanes * self.step
        base = left + self.behind
        start = self._phases(combined, base - span, False, self.step - 1) if self.behind else []
        before = [[k.var(v) for v in phases] for phases in start]
        first = k.min((k.max(-base, 0) + (span - 1)) // span * self.lanes, columns)
        last = k.max(k.min(k.max(self.width - base, 0) // self.step, columns) & -self.lanes, first)

        def make(tile: Tile, *, is_whole: bool) -> None:
            found = self._phases(combined, base + tile.index * self.step, is_whole)
            for row, now in enumerate(found):
                put(row, tile, self._outputs(now, before[row] if before else []))

        with k.loop(0, 2) as side:
            is_left = side.eq(0)
            with k.loop(k.select(is_left, 0, last), k.select(is_left, first, columns), self.lanes) as t:
                make(Tile(t, self.lanes, k.mask(columns - t, self.lanes)), is_whole=False)
            with k.loop(first, k.select(is_left, last, first), self.lanes) as t:
                make(Tile(t, self.lanes, None), is_whole=True)

    def write(self, combined: Combined, vectors: int, front: int, put: Callable[[int, Tile, Val], None]) -> None:
        """The same for an image and outputs of as many whole vectors; ``front`` is the padding in front of a row."""

        def beside(v: Val) -> Val:
            return self.k.const(self.neutral, v.dtype, v.lanes)

        tiles = tiles_of(self.k, vectors, self.lanes)
        for tile, windows in unrolled_row(tiles, lambda t: combined(t.index, None), beside, beside):
            for row, window in enumerate(windows):
                put(row, tile, reduce(self.combine, [window(tap - front) for tap in self.taps]))

    def _outputs(self, now: list[Val], before: Sequence[Var]) -> Val:
        lanes, seen = self.lanes, list[Val]()
        for offset in self.offsets:
            back, phase = divmod(offset, self.step)
            v = now[phase]
            seen.append(v if back == 0 else before[phase].shuffle(range(lanes + back, 2 * lanes + back), v))
        for variable, v in zip(before, now, strict=False):
            variable.set(v)
        return reduce(self.combine, seen)

    def _phases(self, combined: Combined, at: Val, is_whole: bool, unseen: int = 0) -> list[list[Val]]:
        """For each row, every ``step``-th element from ``at`` on, for each place to begin.

        Nobody sees what comes of the first ``unseen`` vectors.
        """
        k, lanes = self.k, self.lanes
        vectors: list[list[Val]] = []
        for i in range(unseen, self.step):
            place = at + i * lanes
            if is_whole:
                vectors.append(combined(place, None))
            else:
                lane, first = k.iota(i32, lanes), k.cast(place, i32)
                mask = (lane + first >= 0) & (lane + first < k.cast(self.width, i32))
                vectors.append([k.select(mask, v, self.neutral) for v in combined(place, mask)])
        rows = [list(row) for row in zip(*(vectors[:1] * unseen + vectors), strict=True)]
        if self.step == 1:
            return rows
        return [[row[0].shuffle(range(phase, 2 * lanes, 2), row[1]) for phase in range(2)] for row in rows]
