"""Pooling with narrow windows of stride 1 or 2: rows of outputs computed in registers, vector by vector.

Input rows are combined one vector at a time. The combined vectors are deinterleaved by stride phase; a step's phases
and those of the step before hold all elements that its outputs read. Nothing goes through scratch memory, so loads,
arithmetic and stores overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from sardonyx.providers.cpu.kernels.common.window import Taps
from sardonyx.providers.cpu.kernels.math.unaligned_rows import tiles_of, unrolled_row
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Tile, Val, Var, i32

MAX_ROW_TAPS, MAX_COLUMN_TAPS = 9, 8
"""Taps of a narrow window: rows (over z and y) and columns, at most."""
MIN_LANES = 8
"""With fewer lanes, the masked vectors at both ends of a row cost more than registers save."""

Combined = Callable[[Val, Val | None], list[Val]]
"""For each row of outputs, the combined vector of its input rows at an element index, under a mask."""


def is_narrow(taps: Taps, lanes: int) -> bool:
    """Whether a window is narrow: what outputs read of the step before fits in one vector."""
    carried = (taps.kernel[2] - 1) * taps.dilations[2] + 1 - taps.strides[2]
    is_small = taps.kernel[0] * taps.kernel[1] <= MAX_ROW_TAPS and taps.kernel[2] <= MAX_COLUMN_TAPS
    return lanes >= MIN_LANES and is_small and taps.strides[2] <= 2 and 0 <= carried <= lanes


class RegisterRows:
    """Emits one or more rows of outputs together. Columns outside the image's ``width`` read as ``neutral``."""

    def __init__(
        self, k: Kernel, taps: Taps, lanes: int, width: Val, neutral: float, combine: Callable[[Val, Val], Val]
    ) -> None:
        self.k, self.lanes, self.width, self.neutral, self.combine = k, lanes, width, neutral, combine
        self.step = taps.strides[2]
        self.carried = (taps.kernel[2] - 1) * taps.dilations[2] + 1 - self.step
        """Elements before those of a step that its first output reads."""
        self.taps = [tap * taps.dilations[2] for tap in range(taps.kernel[2])]
        self.offsets = [tap - self.carried for tap in self.taps]

    def looped(self, combined: Combined, left: Val, columns: Val, put: Callable[[int, Tile, Val], None]) -> None:
        """Rows of any length. ``left`` is the first input column that the first output reads.

        Vectors inside the image are not masked; those on its left and right edge are.
        """
        k, span = self.k, self.lanes * self.step
        base = left + self.carried
        start = self._phases(combined, base - span, False, self.step - 1) if self.carried else []
        previous = [[k.var(v) for v in phases] for phases in start]
        first = k.min((k.max(-base, 0) + (span - 1)) // span * self.lanes, columns)
        last = k.max(k.min(k.max(self.width - base, 0) // self.step, columns) & -self.lanes, first)

        def emit(tile: Tile, *, is_inside: bool) -> None:
            found = self._phases(combined, base + tile.index * self.step, is_inside)
            for row, now in enumerate(found):
                put(row, tile, self._outputs(now, previous[row] if previous else []))

        with k.loop(0, 2) as side:
            is_left = side.eq(0)
            with k.loop(k.select(is_left, 0, last), k.select(is_left, first, columns), self.lanes) as t:
                emit(Tile(t, self.lanes, k.mask(columns - t, self.lanes)), is_inside=False)
            with k.loop(first, k.select(is_left, last, first), self.lanes) as t:
                emit(Tile(t, self.lanes, None), is_inside=True)

    def unrolled(self, combined: Combined, vectors: int, left_pad: int, put: Callable[[int, Tile, Val], None]) -> None:
        """Rows of ``vectors`` whole vectors, of the image and of outputs, unrolled."""

        def padding(v: Val) -> Val:
            return self.k.const(self.neutral, v.dtype, v.lanes)

        tiles = tiles_of(self.k, vectors, self.lanes)
        for tile, windows in unrolled_row(tiles, lambda t: combined(t.index, None), padding, padding):
            for row, window in enumerate(windows):
                put(row, tile, reduce(self.combine, [window(tap - left_pad) for tap in self.taps]))

    def _outputs(self, now: list[Val], previous: Sequence[Var]) -> Val:
        """The outputs of a step, from its phases and those of the step before, which are then replaced."""
        lanes, seen = self.lanes, list[Val]()
        for offset in self.offsets:
            back, phase = divmod(offset, self.step)
            v = now[phase]
            seen.append(v if back == 0 else previous[phase].shuffle(range(lanes + back, 2 * lanes + back), v))
        for variable, v in zip(previous, now, strict=False):
            variable.set(v)
        return reduce(self.combine, seen)

    def _phases(self, combined: Combined, at: Val, is_inside: bool, skipped: int = 0) -> list[list[Val]]:
        """For each row, the stride phases of the elements from ``at`` on: a vector of every ``step``-th for each.

        The elements of the first ``skipped`` vectors are not needed: they are not loaded.
        """
        k, lanes = self.k, self.lanes
        vectors: list[list[Val]] = []
        for i in range(skipped, self.step):
            place = at + i * lanes
            if is_inside:
                vectors.append(combined(place, None))
            else:
                lane, first = k.iota(i32, lanes), k.cast(place, i32)
                mask = (lane + first >= 0) & (lane + first < k.cast(self.width, i32))
                vectors.append([k.select(mask, v, self.neutral) for v in combined(place, mask)])
        rows = [list(row) for row in zip(*(vectors[:1] * skipped + vectors), strict=True)]
        if self.step == 1:
            return rows
        return [[row[0].shuffle(range(phase, 2 * lanes, 2), row[1]) for phase in range(2)] for row in rows]
