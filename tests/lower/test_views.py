"""Views against numpy's own."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.lower import views
from sardonyx.lower.fusion.nest import common_split
from sardonyx.lower.groups import Storage, View

N, M = dims.symbol("n"), dims.symbol("m")


def _view(shape: tuple[int, ...]) -> View:
    return views.dense(Storage("input", dtypes.f32, math.prod(shape)), shape)


def _elements(view: View) -> np.ndarray:
    flat = np.arange(view.storage.elements)
    index = np.full(view.shape, view.offset)
    for axis, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        index = index + (np.arange(size) * stride).reshape([-1 if i == axis else 1 for i in range(len(view.shape))])
    return flat[index] if index.size else np.empty(view.shape)


@given(st.data())
def test_a_chain_of_movements(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=4)))
    view, array = _view(shape), np.arange(math.prod(shape)).reshape(shape)
    for _ in range(data.draw(st.integers(1, 4))):
        move = data.draw(st.sampled_from(("permute", "window", "reshape", "insert", "remove")))
        rank = array.ndim
        if move == "permute":
            perm = data.draw(st.permutations(range(rank)))
            view, array = views.permuted(view, perm), array.transpose(perm)
        elif move == "insert":
            view, array = views.inserted(view, rank, 2), np.broadcast_to(array[..., None], (*array.shape, 2))
        elif not rank:
            continue
        elif move == "remove":
            view, array = views.selected(view, 0, array.shape[0] - 1), array[-1]
        elif move == "window":
            axis = data.draw(st.integers(0, rank - 1))
            start = data.draw(st.integers(0, array.shape[axis] - 1))
            part = array[(slice(None),) * axis + (slice(start, None),)]
            view, array = views.sliced(view, axis, start, part.shape[axis]), part
        else:
            wanted = data.draw(st.sampled_from(_factorings(array.size)))
            found = views.reshaped(view, wanted)
            assert (found is not None) == _is_view(array, wanted)
            if found is not None:
                view, array = found, array.reshape(wanted)
    np.testing.assert_array_equal(_elements(view), array)


def _is_view(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether numpy can reshape without a copy."""
    return np.shares_memory(array, array.reshape(shape))


def _factorings(size: int) -> list[tuple[int, ...]]:
    found = [(size,), (1, size)]
    for d in (2, 3, 4, 6):
        if size % d == 0:
            found += [(d, size // d), (size // d, d), (d, 1, size // d)]
    return found


def test_a_reshape_that_only_splits_is_a_view() -> None:
    view = views.permuted(_view((2, 6, 4)), (0, 2, 1))
    found = views.reshaped(view, (2, 4, 2, 3))
    assert found is not None and found.strides == (24, 1, 12, 4)
    assert views.reshaped(view, (2, 24)) is None


def test_symbolic_sizes_are_tiled_equally() -> None:
    cut = common_split((dims.mul(N, M), 12), (N, M, 3, 4))
    assert cut == ([(0, N), (0, M), (1, 3), (1, 4)], [(0, N), (1, M), (2, 3), (3, 4)])
    assert common_split((N, 6), (N, 4)) is None
    assert common_split((N, 1, M), (1, N, M)) == ([(0, N), (2, M)], [(1, N), (2, M)])
