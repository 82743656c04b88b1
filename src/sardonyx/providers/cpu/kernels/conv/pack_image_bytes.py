"""Packs a quantized image for AMX convolutions: bytes, padded with the zero point, row by row (``conv.packed_image``).

NHWC sources are copied a channel block at a time. Of others, four channels of sixteen pixels at a time become words,
which are the pixels of an image of few channels, or are transposed.
"""

from __future__ import annotations

from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.lower.groups import Storage, View
from sardonyx.providers.cpu.kernels.common.window import ImageStrides
from sardonyx.providers.cpu.kernels.conv.pack_image import ANY, NCHW, NHWC, RowsArgs, shared_rows
from sardonyx.providers.cpu.kernels.conv.packed_image import PackedImageLayout
from sardonyx.providers.cpu.kernels.math.transpose import transposed
from sardonyx.providers.cpu.kernels.split.bf16 import HALF
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, u8, u32
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES
from sardonyx.providers.cpu.program.steps import Ref, Step

QUAD = 4
"""Channels of a word."""


def _params(dtype: DType, order: str, is_word: bool) -> Params:
    return {"args": RowsArgs.declared(dtype, dtype)}


@kernel(_params)
def pack_image_bytes(k: Kernel, args: RowsArgs[Buf, Val], *, dtype: DType, order: str, is_word: bool) -> None:
    """y = x. ``is_word``: a pixel of the compact layout has four channels."""
    with shared_rows(k, args) as (_, row, to, block):
        made = _Row(k, args, row, to.as_type(u8), block * LINE_NBYTES, order)
        if order == NHWC:
            made.copy()
        else:
            made.words(is_word=is_word)


class _Row:
    """One row of 64 channels."""

    def __init__(self, k: Kernel, args: RowsArgs[Buf, Val], x: Buf, y: Buf, first: Val, order: str) -> None:
        self.k, self.x, self.y, self.first, self.order = k, x.as_type(u8), y, first, order
        self.channels, self.width, self.strides = args.channels, args.layout.size.x, args.strides
        self.pixel, self.room = args.layout.strides.x, args.layout.room - first

    def copy(self) -> None:
        """Copy adjacent channels."""
        k, source, left = self.k, self.x.at(self.first), self.channels - self.first
        with k.either(left >= LINE_NBYTES) as (full, edge):
            for branch, mask in ((full, None), (edge, k.mask(left, LINE_NBYTES))):
                with branch, k.loop(0, self.width) as i:
                    self.y.store(i * self.pixel, source.at(i * self.strides.x).load(0, LINE_NBYTES, mask), mask)

    def words(self, *, is_word: bool) -> None:
        """Sixteen pixels at a time: words of four channels, transposed if a pixel has several."""
        k, words = self.k, self.y.as_type(u32)
        local, there = k.local(u32, HALF * HALF), k.mask(self.room // QUAD, HALF)
        with k.loop(0, self.width, HALF) as at:
            count = k.min(self.width - at, HALF)
            if is_word:
                words.store(at, self._word(self.first, at, count), k.mask(count, HALF))
            else:
                with k.loop(0, HALF) as quad:
                    local.store(quad * HALF, self._word(self.first + quad * QUAD, at, count))
                rows = transposed([local.load(i * HALF, HALF) for i in range(HALF)])
                for n, found in enumerate(rows):
                    local.store(n * HALF, found)
                with k.loop(0, count) as i:
                    words.store((at + i) * self.pixel // QUAD, local.load(i * HALF, HALF), there)

    def _word(self, first: Val, at: Val, count: Val) -> Val:
        """Channels ``first`` to ``first + 3`` of ``count`` pixels, at most sixteen, from ``at`` on."""
        k, found = self.k, self.k.zeros(u32, HALF)
        for i in range(QUAD):
            channel = first + i
            existing = k.select(channel < self.channels, count, 0)
            found = found | (k.cast(self._bytes(self.x.at(channel * self.strides.c), at, existing), u32) << (8 * i))
        return found

    def _bytes(self, here: Buf, at: Val, existing: Val) -> Val:
        k = self.k
        if self.order == NCHW:
            return here.load(at, HALF, k.mask(existing, HALF))
        local = k.local(u8, HALF)
        local.store(0, k.zeros(u8, HALF))
        with k.loop(0, existing) as j:
            local.store(j, here.load((at + j) * self.strides.x))
        return local.load(0, HALF)


# -- what convolutions ask for


def byte_packing_step(
    source: View, zero: View, layout: PackedImageLayout, nodes: Any
) -> tuple[Step, Storage, Storage | None]:
    """The step that packs an image, over (batch, channels, z, y, x), its result, and None: bytes need no flags.

    ``zero`` is the zero point, one element.
    """
    dtype = layout.format.dtype
    made, strides = Storage("temporary", dtype, layout.elements), ImageStrides[Ref, dims.Known](*source.strides)
    is_row = strides.x == 1 or source.shape[4] == 1
    order = NHWC if strides.c == 1 else NCHW if is_row else ANY
    rows = RowsArgs(
        Ref.of(source), Ref(made), layout.operand(Ref.of(zero)), strides, batch=layout.batch, channels=layout.channels,
        blocks=-(-layout.room // LINE_NBYTES),
    )  # fmt: skip
    spec = pack_image_bytes(dtype=dtype, order=order, is_word=layout.compact == QUAD)
    nbytes = dims.known(dims.mul(layout.elements, 2)) or 0
    why = f"padded with the zero point{', compact' if layout.compact else ''}"
    return Step(spec, flat(args=rows), frozenset(("y",)), nodes, 0, 0, nbytes, why), made, None
