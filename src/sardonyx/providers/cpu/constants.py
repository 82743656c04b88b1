"""Constants as kernels want them, made once in a process: tied weights and sessions of one model share."""

from __future__ import annotations

import mmap
import threading
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Storage
from sardonyx.providers.cpu.memory import address
from sardonyx.providers.cpu.steps import Packed

Array = np.ndarray[Any, Any]

_packed: WeakValueDictionary[tuple[Any, ...], Array] = WeakValueDictionary()
_lock = threading.Lock()


def content(storage: Storage) -> Array:
    """A constant's elements, in one piece; perhaps where they lie in the model's file."""
    if isinstance(storage, Packed):
        with _lock:
            found = _packed.get(storage.key)
            if found is None:
                found = _packed[storage.key] = storage.make()
            return found
    assert storage.tensor is not None
    return np.ascontiguousarray(storage.tensor.peek())


def identity(tensor: Tensor) -> object:
    """What equal constants have in common: the place in a file, or the object."""
    return tensor if tensor.origin is None else tensor.origin


def give_back(array: Array) -> None:
    """Let the system take the pages of a mapped file that an array was read from."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    mapping = base.obj if isinstance(base, memoryview) else base
    if not isinstance(mapping, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = address(array) - address(np.frombuffer(mapping, np.uint8))
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    nbytes = (start + array.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if nbytes > 0:
        mapping.madvise(mmap.MADV_DONTNEED, first, nbytes)
