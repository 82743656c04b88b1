"""Merges convolutions of the same image whose outputs are adjacent channels into one convolution with all filters.

The stride phases of a transposed convolution are such convolutions: if its windows do not overlap, each phase reads
single pixels, and in an NHWC result the phases of a row interleave, so that output f of phase p is channel
p * filters + f. Merged, they read the image once, and their filters fill lanes and tiles that would stay empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.groups import Convolution, Group, Storage, View
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.records import replace

Array = np.ndarray[Any, Any]


def merged(groups: Sequence[Group]) -> list[Group]:
    """The groups, with successive convolutions merged where possible."""
    made: list[Group] = []
    for group in groups:
        last = made[-1] if made else None
        both = _merged(last, group) if isinstance(last, Convolution) and isinstance(group, Convolution) else None
        if both is None:
            made.append(group)
        else:
            made[-1] = both
    return made


def _merged(a: Convolution, b: Convolution) -> Convolution | None:
    """Two convolutions as one; None if their outputs are not adjacent or if they differ in more than filters."""
    is_alike = (a.x, a.window, a.groups, a.epilogue) == (b.x, b.window, 1, b.epilogue)
    is_alike &= type(a) is type(b) and a.operands[2:] == b.operands[2:]
    if not is_alike or a.w.shape[1:] != b.w.shape[1:] or not isinstance(a.w.shape[0], int):
        return None
    read = {v.storage for v in (*a.reads, *b.reads)}
    if any(v.storage in read for v in (*a.writes, *b.writes)):
        return None
    filters = a.w.shape[0]
    outputs = [_joined(v, u, filters) for v, u in zip(a.outputs, b.outputs, strict=True)]
    if None in outputs:
        return None
    w, extra = _concatenated((a.w, b.w)), [_operand(v, u, filters) for v, u in zip(a.extra, b.extra, strict=True)]
    if w is None or None in extra:
        return None
    return replace(
        a, nodes=tuple(dict.fromkeys(a.nodes + b.nodes)), w=w, extra=tuple(v for v in extra if v is not None),
        outputs=tuple(v for v in outputs if v is not None),
    )  # fmt: skip


def _operand(a: View, b: View, filters: int) -> View | None:
    """An epilogue operand of both as one: the same scalar, adjacent channels, or constants to be concatenated."""
    if a == b and a.strides[1] == 0:
        return _with_both_channels(a, b, 0)
    found = _joined(a, b, filters)
    if found is None and not any(s for i, s in enumerate(a.strides) if i != 1) and a.strides == b.strides:
        flat = _concatenated([View(v.storage, v.shape[1:2], v.strides[1:2], v.offset) for v in (a, b)])
        if flat is not None:
            found = replace(_with_both_channels(a, b, 1), storage=flat.storage, offset=0)
    return found


def _joined(a: View, b: View, filters: int) -> View | None:
    """Both views as one if the channels of the second follow those of the first in memory; else None."""
    is_same_image = a.storage is b.storage and (a.shape[0], a.shape[2:]) == (b.shape[0], b.shape[2:])
    is_alike = (a.strides[0], a.strides[2:]) == (b.strides[0], b.strides[2:])
    if not is_same_image or not is_alike or dims.sub(b.offset, a.offset) != filters:
        return None
    return _with_both_channels(a, b, 1) if all(v.shape[1] == 1 or v.strides[1] == 1 for v in (a, b)) else None


def _with_both_channels(a: View, b: View, step: Known) -> View:
    shape = (a.shape[0], int(a.shape[1]) + int(b.shape[1]), *a.shape[2:])
    return replace(a, shape=shape, strides=(a.strides[0], step, *a.strides[2:]))


def _concatenated(constants: Sequence[View]) -> View | None:
    """Constants concatenated along the first axis. Equal results have equal ``constants.identity``.

    None if a view is no constant, not contiguous, or of symbolic size.
    """
    sizes = [(*view.shape, view.offset) for view in constants]
    if not all(views.is_dense(v) and v.storage.tensor is not None for v in constants):
        return None
    if not all(isinstance(d, int) for known in sizes for d in known):
        return None

    def fetch() -> Array:
        return np.concatenate([_elements(view) for view in constants])

    tensors = [v.storage.tensor for v in constants if v.storage.tensor is not None]
    origin = ("concatenated", *((identity(t), *known) for t, known in zip(tensors, sizes, strict=True)))
    shape = (sum(int(v.shape[0]) for v in constants), *(int(d) for d in constants[0].shape[1:]))
    made = Tensor(constants[0].dtype, shape, fetch, view=fetch, origin=origin)
    return views.dense(Storage("constant", made.dtype, made.size, constants[0].storage.value, made), shape)


def _elements(view: View) -> Array:
    assert view.storage.tensor is not None
    shape, first = tuple(int(d) for d in view.shape), int(view.offset)
    flat = np.ascontiguousarray(view.storage.tensor.peek()).reshape(-1)
    return flat[first : first + math.prod(shape)].reshape(shape)
