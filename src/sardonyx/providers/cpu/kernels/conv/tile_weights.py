"""The weights of convolutions on tiles, packed in the order in which steps read them (``conv.bf16_split``)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution, View
from sardonyx.providers.cpu.codegen.launch import Launch, code_for_one_call
from sardonyx.providers.cpu.kernels.conv.tile_geometry import Geometry
from sardonyx.providers.cpu.kernels.split.bf16 import (
    CHUNK,
    HALF,
    LARGEST,
    PAIRS,
    PANEL,
    representable_below,
    split_bf16,
    step_elements,
)
from sardonyx.providers.cpu.language.amx import QUADS, ROW_NBYTES
from sardonyx.providers.cpu.language.values import bf16, i8
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.memory.allocator import allocate
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.steps import Packed, Unrepresentable


def term_weights(group: Convolution, found: Geometry, isa: Isa, second: Convolution | None = None) -> Packed:
    """The weights in bf16 terms, followed by those of the second convolution of a pair."""
    layout, terms, filters = found.layout, found.layout.terms, int(group.w.shape[0])
    both = [(one.w, geometry) for one, geometry in ((group, found), (second, found.second)) if one and geometry]
    panels, chunks = -(-filters // PANEL), -(-found.steps // CHUNK)
    elements = panels * found.steps * step_elements(terms)

    def make() -> Any:
        lined = [_in_step_order(w, geometry) for w, geometry in both]
        source = np.concatenate(lined) if len(lined) > 1 else lined[0]
        tiles, flags = allocate(elements * 2).view(bf16.numpy), np.zeros(panels * chunks, np.int32)
        spec = split_bf16(source=group.w.dtype, terms=terms, layout=PAIRS, is_direct=True, axes=0)
        args = {"x": source, "y": tiles, "flags": flags, "lines": filters, "depth": found.steps * layout.block}
        at = code_for_one_call(spec, isa, source.nbytes)
        numbers = {"x_line": 1, "x_k": filters, "limit": representable_below(LARGEST)}
        Launch(spec, {**args, **numbers}, at=at)()
        if flags.any():
            odd = (w for (w, _), one in zip(both, lined, strict=True) if not np.isfinite(one).all())
            raise Unrepresentable(_weights_key(next(odd, group.w))[0])
        return tiles

    key = ("conv tiles", *(_weights_key(w) for w, _ in both), terms, layout.compact, found.spans[1])
    return Packed("constant", bf16, elements, group.w.storage.value, key=key, make=make)


def byte_weights(group: Convolution, found: Geometry) -> Packed:
    """The weights as bytes, in quads."""
    filters = int(group.w.shape[0])
    panels = -(-filters // PANEL)
    elements = panels * found.steps * step_elements(1) * bf16.itemsize

    def make() -> Any:
        tiles = allocate(elements).view(i8.numpy)
        lined = _in_step_order(group.w, found).reshape(found.steps, QUADS, ROW_NBYTES // QUADS, filters)
        whole = np.zeros((*lined.shape[:3], panels * PANEL), np.int8)
        whole[..., :filters] = lined
        halves = whole.reshape(*lined.shape[:3], panels, 2, HALF)
        tiles[:] = halves.transpose(3, 0, 4, 1, 5, 2).reshape(-1)
        return tiles

    key = ("conv bytes", _weights_key(group.w), found.layout.compact, found.spans[1])
    return Packed("constant", i8, elements, group.w.storage.value, key=key, make=make)


def _weights_key(w: View) -> tuple[object, Known, tuple[Known, ...]]:
    """What the views of equal weights have in common: tensor, offset and shape."""
    assert w.storage.tensor is not None
    return identity(w.storage.tensor), w.offset, w.shape


def _in_step_order(w: View, found: Geometry) -> Any:
    """Weights as [step][number of a tile row][filter], flattened: zero where tiles read no channel."""
    layout, (spans, wide), (filters, channels, *taps) = found.layout, found.spans, (int(d) for d in w.shape)
    assert w.storage.tensor is not None
    count = filters * channels * math.prod(taps)
    content = np.ascontiguousarray(w.storage.tensor.peek()).reshape(-1)[int(w.offset) :][:count]
    seen = content.reshape(filters, channels, -1).transpose(2, 1, 0)  # taps, channels, filters
    lined = np.zeros((len(seen), layout.room, filters), content.dtype)
    lined[:, :channels] = seen
    if layout.compact:  # what each span reads, and zeros to the end of its last tile
        lined = lined.reshape(found.kernel[0] * found.kernel[1] * spans, -1, filters)[:, :wide]
        lined = np.pad(lined, ((0, 0), (0, -wide % layout.block), (0, 0)))
    else:
        lined = lined.reshape(-1, layout.blocks, layout.block, filters).transpose(1, 0, 2, 3)
    return lined.reshape(-1)
