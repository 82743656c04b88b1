"""Constants in the layouts of kernels, packed once per process: tied weights and sessions of one model share them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from sardonyx import forks, limits
from sardonyx.ir.tensor import Tensor
from sardonyx.providers.cpu.machine import parallel

if TYPE_CHECKING:
    from sardonyx.lower.groups import Storage

Array = np.ndarray[Any, Any]

_packed: WeakValueDictionary[tuple[Any, ...], Array] = WeakValueDictionary()
_makers: dict[tuple[Any, ...], threading.Lock] = {}
_lock = forks.lock()


def contents(storages: Sequence[Storage], threads: int) -> list[Array]:
    """The contents of constants, packed by several threads: packing kernels release the GIL."""
    from sardonyx.providers.cpu.program.steps import Packed

    makers = [partial(content, s) for s in storages]
    return made(makers, threads if sum(isinstance(s, Packed) for s in storages) > 1 else 1)


def made(makers: Iterable[Callable[[], Array]], threads: int) -> list[Array]:
    """The results of ``makers``, of which ``threads`` run at a time."""
    if threads == 1:
        return [make() for make in makers]
    return parallel.results(makers, threads)


def content(storage: Storage) -> Array:
    """A constant's elements as one contiguous array."""
    from sardonyx.providers.cpu.program.steps import Packed

    if isinstance(storage, Packed):
        return once(storage.key, storage.make)
    assert storage.tensor is not None
    tensor = storage.tensor
    if tensor.origin is None:
        return np.ascontiguousarray(tensor.peek())
    key = as_stored(tensor.origin, tensor.dtype.name, tensor.shape)
    return once(key, lambda: np.ascontiguousarray(tensor.peek()))


def as_stored(origin: object, dtype: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The key of a constant that is used as the file stores it."""
    return origin, "as stored", dtype, shape


def once(key: tuple[Any, ...], make: Callable[[], Array]) -> Array:
    """A packed constant, made by the first caller that asks for its key."""
    with _lock:
        found = _packed.get(key)
        if found is not None:
            return found
        making = _makers.setdefault(key, forks.lock())
    with making:
        found = _packed.get(key)
        if found is None:
            found = _packed[key] = make()
            budget = limits.current()
            if budget is not None:
                budget.hold(found.nbytes, "the weights as kernels want them take too much memory")
    with _lock:
        _makers.pop(key, None)
    return found


def share(key: tuple[Any, ...], array: Array) -> None:
    """Register a constant under another key."""
    _packed.setdefault(key, array)


def identity(tensor: Tensor) -> object:
    """The identity of a constant: its place in a file, or the tensor object."""
    return tensor if tensor.origin is None else tensor.origin
