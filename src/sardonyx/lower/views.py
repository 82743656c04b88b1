"""Changes of a view that move no elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Storage, View
from sardonyx.lower.sizes import add, maximum, minimum, mul, product, sub
from sardonyx.records import replace

Shape = tuple[Known, ...]


def dense_strides(shape: Sequence[Known]) -> Shape:
    strides: list[Known] = []
    step: Known = 1
    for d in reversed(shape):
        strides.append(step)
        step = mul(step, d)
    return tuple(reversed(strides))


def dense(storage: Storage, shape: Sequence[Known], offset: Known = 0) -> View:
    """A contiguous row-major view."""
    return View(storage, tuple(shape), dense_strides(shape), offset)


def is_dense(view: View) -> bool:
    wanted = dense_strides(view.shape)
    return all(d == 1 or s == w for d, s, w in zip(view.shape, view.strides, wanted, strict=True))


def is_whole(view: View) -> bool:
    """Whether a view is all of its storage, in row-major order."""
    return view.offset == 0 and is_dense(view) and product(view.shape) == view.storage.elements


def slack(view: View) -> tuple[Known, Known]:
    """The number of elements of the storage before the first and after the last element of a view that is not empty.

    Neither is negative if the view lies inside its storage.
    """
    first, last = view.offset, view.offset
    for size, stride in zip(view.shape, view.strides, strict=True):
        reach = mul(sub(size, 1), stride)
        if dims.at_least(stride, 0):
            last = add(last, reach)
        elif dims.at_least(dims.neg(stride), 0):
            first = add(first, reach)
        else:
            first, last = add(first, minimum(reach, 0)), add(last, maximum(reach, 0))
    return first, sub(sub(view.storage.elements, 1), last)


def scalar(view: View) -> View:
    """A view of one element, without its axes."""
    return View(view.storage, (), (), view.offset)


def permuted(view: View, perm: Sequence[int]) -> View:
    return replace(view, shape=tuple(view.shape[p] for p in perm), strides=tuple(view.strides[p] for p in perm))


def inserted(view: View, axis: int, size: Known = 1) -> View:
    """With a new axis along which the elements are broadcast."""
    shape, strides = view.shape, view.strides
    return View(
        view.storage, (*shape[:axis], size, *shape[axis:]), (*strides[:axis], 0, *strides[axis:]), view.offset
    )  # fmt: skip


def selected(view: View, axis: int, index: Known = 0) -> View:
    """At one index of an axis."""
    return View(
        view.storage,
        (*view.shape[:axis], *view.shape[axis + 1 :]),
        (*view.strides[:axis], *view.strides[axis + 1 :]),
        add(view.offset, mul(index, view.strides[axis])),
    )


def sliced(view: View, axis: int, start: Known, length: Known, step: int = 1) -> View:
    """Every ``step``-th element of an axis from ``start`` on, ``length`` of them."""
    shape, strides = list(view.shape), list(view.strides)
    shape[axis] = length
    strides[axis] = mul(step, view.strides[axis])
    return View(view.storage, tuple(shape), tuple(strides), add(view.offset, mul(start, view.strides[axis])))


def split(view: View, axis: int, sizes: Sequence[Known]) -> View:
    """One axis as several, whose sizes must multiply to its own."""
    strides = tuple(mul(s, view.strides[axis]) for s in dense_strides(sizes))
    return replace(
        view,
        shape=(*view.shape[:axis], *sizes, *view.shape[axis + 1 :]),
        strides=(*view.strides[:axis], *strides, *view.strides[axis + 1 :]),
    )


def is_mergeable(view: View, axis: int) -> bool:
    """Whether an axis and the next can be one: no gap lies between two rows."""
    return view.strides[axis] == mul(view.strides[axis + 1], view.shape[axis + 1])


def merged(view: View, axis: int) -> View:
    """An axis and the next as one."""
    return replace(
        view,
        shape=(*view.shape[:axis], mul(view.shape[axis], view.shape[axis + 1]), *view.shape[axis + 2 :]),
        strides=(*view.strides[:axis], *view.strides[axis + 1 :]),
    )


def collapsed(view: View) -> View:
    """Without axes of one element, and with mergeable axes merged."""
    for axis in reversed(range(len(view.shape))):
        if view.shape[axis] == 1:
            view = selected(view, axis)
    for axis in reversed(range(len(view.shape) - 1)):
        if is_mergeable(view, axis):
            view = merged(view, axis)
    return view


def reshaped(view: View, shape: Sequence[Known]) -> View | None:
    """The same elements in the same order under another shape; None if that needs a copy."""
    if is_dense(view):
        return replace(view, shape=tuple(shape), strides=dense_strides(shape))
    old, strides = collapsed(view), list[Known]()
    left = list(shape)
    for size, stride in zip(reversed(old.shape), reversed(old.strides), strict=True):
        rest: Known = size
        while rest != 1:
            if not left:
                return None
            d = left.pop()
            quotient = dims.exact_div(rest, d)
            if quotient is None:
                return None
            strides.append(stride)
            stride, rest = mul(stride, d), quotient
    if any(d != 1 for d in left):
        return None
    strides += [0] * len(left)
    return replace(view, shape=tuple(shape), strides=tuple(reversed(strides)))


def same_elements(a: View, b: View) -> bool:
    """Whether two views of equal shape have the same element at every index."""
    return (
        a.storage is b.storage
        and a.offset == b.offset
        and all(d == 1 or s == t for d, s, t in zip(a.shape, a.strides, b.strides, strict=True))
    )


def memory_order(view: View) -> list[int]:
    """The axes by descending strides, as far as symbolic strides can be compared."""

    def compare(i: int, j: int) -> int:
        a, b = view.strides[i], view.strides[j]
        if a == b or view.shape[i] == 1 or view.shape[j] == 1:
            return 0
        if b == 0 or dims.exact_div(a, b) is not None:
            return -1
        return int(a == 0 or dims.exact_div(b, a) is not None)

    return sorted(range(len(view.shape)), key=cmp_to_key(compare))
