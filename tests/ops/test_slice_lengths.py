"""The inferred length of a slice is the number of its elements, for all sizes."""

from __future__ import annotations

from itertools import product

import pytest

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.rules.movement import first
from sardonyx.ops.rules_movement import sliced

N, M = dims.symbol("n"), dims.symbol("m")
NUMBERS: list[Known] = [0, 1, 2, 5, -1, -2, -4, -7, 2**31 - 1, 2**63 - 1, -(2**31), -(2**63)]
BELOW_ZERO = dims.sub(-1, M)
SIZES = [(n, m) for n in range(8) for m in (0, 1, 3, 12)]


def value(d: Known, n: int, m: int) -> int:
    found = dims.evaluate(d, {"n": n, "m": m})
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
def test_all_of_them(step: int) -> None:
    assert BELOW_ZERO is not None
    for start, end in product([*NUMBERS, N, M, BELOW_ZERO], repeat=2):
        length = sliced(N, start, end, step)
        assert length is not None, (start, end)
        length = dims.known(length)
        assert length is not None
        for n, m in SIZES:
            taken = range(n)[value(start, n, m) : value(end, n, m) : step]
            assert value(length, n, m) == len(taken), (start, end, n, m)
            if taken:
                assert value(first(start, N, step), n, m) == taken[0], (start, end, n, m)


def test_a_bound_of_either_sign_is_not_known() -> None:
    difference = dims.sub(N, M)
    assert sliced(N, difference, 5, 1) is None
    assert sliced(N, 0, difference, -1) is None
