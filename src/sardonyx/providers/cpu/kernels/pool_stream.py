"""Narrow windows one or two elements apart: a row of outputs made in registers, vector by vector.

The rows of the image are combined a vector at a time; vectors of every ``stride``-th element, and the same of the step
before, hold all that the outputs of a step see. Nothing goes through memory, so reading, computing and writing go on
side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from sardonyx.providers.cpu.dsl import Kernel
from sardonyx.providers.cpu.kernels.frame import Taps
from sardonyx.providers.cpu.values import Tile, Val, Var, i32

ROWS, COLUMNS = 9, 8
"""Taps of a window, over the other axes and along a row, up to which it is narrow."""
SHORTEST = 8
"""Lanes from which on a vector saves more than the masked ones at both ends of a row cost."""


def is_narrow(taps: Taps, lanes: int) -> bool:
    """Whether a vector holds what outputs see of the step before."""
    behind = (taps.kernel[2] - 1) * taps.dilations[2] + 1 - taps.strides[2]
    is_small = taps.kernel[0] * taps.kernel[1] <= ROWS and taps.kernel[2] <= COLUMNS
    return lanes >= SHORTEST and is_small and taps.strides[2] <= 2 and 0 <= behind <= lanes


class Stream:
    """The code of a row of outputs. Beside the image, which is ``width`` wide, lies ``neutral``."""

    def __init__(
        self, k: Kernel, taps: Taps, lanes: int, width: Val, neutral: float, combine: Callable[[Val, Val], Val]
    ) -> None:
        self.k, self.lanes, self.width, self.neutral, self.combine = k, lanes, width, neutral, combine
        self.step = taps.strides[2]
        self.behind = (taps.kernel[2] - 1) * taps.dilations[2] + 1 - self.step
        self.offsets = [tap * taps.dilations[2] - self.behind for tap in range(taps.kernel[2])]

    def run(
        self, combined: Callable[[Val, Val | None], Val], left: Val, columns: Val, put: Callable[[Tile, Val], None]
    ) -> None:
        """``combined`` gives the vector of the row from an element on, which may be masked; ``left`` is the first
        element that the first output sees."""
        k, span = self.k, self.lanes * self.step
        base = left + self.behind
        before = [k.var(v) for v in self._phases(combined, base - span, False, self.step - 1)] if self.behind else []
        first = k.min((k.max(-base, 0) + (span - 1)) // span * self.lanes, columns)
        last = k.max(k.min(k.max(self.width - base, 0) // self.step, columns) & -self.lanes, first)
        with k.loop(0, 2) as side:
            is_left = side.eq(0)
            with k.loop(k.select(is_left, 0, last), k.select(is_left, first, columns), self.lanes) as t:
                tile = Tile(t, self.lanes, k.mask(columns - t, self.lanes))
                put(tile, self._outputs(combined, base + t * self.step, before, is_whole=False))
            with k.loop(first, k.select(is_left, last, first), self.lanes) as t:
                put(Tile(t, self.lanes, None), self._outputs(combined, base + t * self.step, before, is_whole=True))

    def _outputs(
        self, combined: Callable[[Val, Val | None], Val], at: Val, before: Sequence[Var], *, is_whole: bool
    ) -> Val:
        now, lanes = self._phases(combined, at, is_whole), self.lanes
        seen = []
        for offset in self.offsets:
            back, phase = divmod(offset, self.step)
            v = now[phase]
            seen.append(v if back == 0 else before[phase].shuffle(range(lanes + back, 2 * lanes + back), v))
        for variable, v in zip(before, now, strict=False):
            variable.set(v)
        return reduce(self.combine, seen)

    def _phases(
        self, combined: Callable[[Val, Val | None], Val], at: Val, is_whole: bool, unseen: int = 0
    ) -> list[Val]:
        """Every ``step``-th element of the row from ``at`` on, for each place to begin.

        Nobody sees what comes of the first ``unseen`` vectors.
        """
        k, lanes = self.k, self.lanes
        vectors = []
        for i in range(unseen, self.step):
            place = at + i * lanes
            if is_whole:
                vectors.append(combined(place, None))
            else:
                lane, first = k.iota(i32, lanes), k.cast(place, i32)
                mask = (lane + first >= 0) & (lane + first < k.cast(self.width, i32))
                vectors.append(k.select(mask, combined(place, mask), self.neutral))
        vectors = vectors[:1] * unseen + vectors
        if self.step == 1:
            return vectors
        return [vectors[0].shuffle(range(phase, 2 * lanes, 2), vectors[1]) for phase in range(2)]
