"""Convolutions on AMX from int8 slices of image and weights (``conv.pack_image_int8``, ``split.int8_slices``).

The loops over pixels, steps and filters are those of ``conv.implicit_gemm``; a step covers 64 channels instead of 32.
As in matrix products (``gemm.int8_slices``), the sums of a K-block are exact integers; they are combined and
multiplied by the scales of image and filters when it ends. The image is read as f32 in NHWC; results are written as in
``conv.implicit_gemm``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.window import PerAxis, WindowGeometry
from sardonyx.providers.cpu.kernels.conv import on_tiles
from sardonyx.providers.cpu.kernels.conv.image_epilogue import writes_of
from sardonyx.providers.cpu.kernels.conv.implicit_gemm import (
    GROUP,
    PixelTiles,
    TileConv,
    TileConvArgs,
    TileFormat,
    convolve,
    scratch_nbytes,
)
from sardonyx.providers.cpu.kernels.conv.pack_image_int8 import NhwcImageArgs, packing_steps
from sardonyx.providers.cpu.kernels.gemm.f32_fallback import DEPTH, decoded_rows, multiply_rows
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL
from sardonyx.providers.cpu.kernels.split.deferred_accumulation import rows_per_step
from sardonyx.providers.cpu.kernels.split.int8_micro_kernel import (
    LEVELS,
    MICRO_TILE,
    PRODUCTS,
    ROUNDS,
    SIDES,
    SliceAccumulator,
    level_sums,
    multiply,
    multiply_fourth,
)
from sardonyx.providers.cpu.kernels.split.int8_slices import (
    SLICES,
    STEP,
    TILE,
    block_steps,
    decode_panel,
    make_slices,
    packed_nbytes,
    packing_of,
    scales_of,
    slices_key,
)
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, Var, f32, i8, i32, i64, u8
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES, Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal

TERMS = 3
"""bf16 terms of results that are packed for other convolutions."""
SPARE = LEVELS // SIDES
"""Micro-tiles of scratch memory for the sums of a K-block."""


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    found = on_tiles.supports(group, analysis) or on_tiles.slices_refusal(group, analysis)
    return found or (None if group.x.strides[1] == 1 else Refusal("the image is not NHWC"))


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    """The steps of a convolution in int8 slices: slicing the image, and the kernel."""
    made = [image.layout for v in group.outputs if (image := analysis.images.get(v.storage)) is not None]
    group = on_tiles.without_pointwise_strides(group)
    frame = WindowGeometry.of(group, collapse=all(one.has_no_padding for one in made))
    found = on_tiles.geometry(group, frame, SLICES, STEP)
    x = frame.x
    key = ("slices", x.storage.number, x.offset, x.shape, x.strides, found.layout)
    before: list[Step] = []
    if key not in analysis.splits:
        before, analysis.splits[key] = packing_steps(
            x, found.layout, group.nodes, u8 if x.storage in analysis.unsigned else i8
        )
    image, weights = analysis.splits[key], _packed(group, found, analysis.isa)
    epilogue, operands = on_tiles.epilogue_of(group, frame, analysis)
    more = dims.add(dims.sub(found.layout.elements, found.start), dims.floordiv(found.start, SLICES))
    args = SlicesConvArgs[Ref, Known](
        Ref(image.tiles, found.start), Ref(weights), Ref(image.scales), Ref(image.fourth), Ref(image.flags), Ref.of(x),
        expressible(more), NhwcImageArgs.of(x), PerAxis(*frame.window.pads),
        found.operand(int(group.w.shape[0]), _k_block(found), operands),
    )  # fmt: skip
    spec = conv_int8_slices(first=image.first, epilogue=epilogue)
    flops = dims.known(dims.product((2, *group.w.shape[1:], *group.box))) or 0
    nbytes = dims.known(dims.add(frame.nbytes, weights.elements)) or 0
    why = f"{analysis.precision}: {PRODUCTS} products of {SLICES} slices on tiles"
    scratch = scratch_nbytes(found.steps, epilogue, SPARE)
    return [*before, Step(spec, flat(args=args), writes_of(epilogue), group.nodes, scratch, flops, nbytes, why)]


def _k_block(found: on_tiles.Geometry) -> int:
    return block_steps(found.steps * STEP)


def _packed(group: Convolution, found: on_tiles.Geometry, isa: Isa) -> Packed:
    """The weights in int8 slices, in the order of steps."""
    w, layout, k_block = group.w, found.layout, _k_block(found)
    tensor = w.storage.tensor
    assert tensor is not None
    filters, channels, *taps = (int(d) for d in w.shape)
    depth, count = found.steps * STEP, int(np.prod(taps))

    def make() -> Any:
        content = np.ascontiguousarray(tensor.peek()).reshape(-1)[int(w.offset) :][: filters * channels * count]
        lined = np.zeros((count, layout.room, filters), np.float32)
        lined[:, :channels] = content.reshape(filters, channels, count).transpose(2, 1, 0)
        lined = lined.reshape(count, layout.blocks, STEP, filters).transpose(1, 0, 2, 3)
        return make_slices(packing_of(Tensor.of(lined), 0, filters, 1, depth, filters, isa, refused=slices_key(tensor)))

    key = ("conv slices", identity(tensor), w.offset, (filters, channels, *taps))
    return Packed("constant", i8, packed_nbytes(depth, filters, k_block), w.storage.value, key=key, make=make)


# -- the kernel


class SlicesConvArgs(Arguments[M, N]):
    """The parameters of ``conv_int8_slices``."""

    is_inline: ClassVar[bool] = True
    x: M
    w: M
    scales: M
    fourth: M
    flags: M
    """For each image: its scale, whether it has fourth slices, and whether it is convolved in f32."""
    unsplit: M
    """The image in f32."""
    more: N
    """Elements of the image before the fourth slices."""
    source: NhwcImageArgs[M, N]
    """The unsliced f32 image."""
    pad: PerAxis[M, N]
    conv: TileConvArgs[M, N]


def _params(first: DType, epilogue: Epilogue) -> Params:
    args = SlicesConvArgs[Memory, DType](
        Memory(i8), Memory(i8), Memory(f32), Memory(i32), Memory(i32), Memory(f32), i64, NhwcImageArgs.declared(),
        PerAxis.declared(), TileConvArgs.declared(epilogue),
    )  # fmt: skip
    return {"args": args}


@kernel(_params)
def conv_int8_slices(k: Kernel, args: SlicesConvArgs[Buf, Val], *, first: DType, epilogue: Epilogue) -> None:
    """``first`` is the type of an image's first slices."""

    def work(
        k: Kernel,
        tiles: Tiles,
        conv: TileConvArgs[Buf, Val],
        distances: Buf,
        grid: PixelTiles,
        steps: Val,
        epilogue: Epilogue,
        fmt: TileFormat,
    ) -> TileConv:
        scales = scales_of(args.w, ceil_div(conv.filters, PANEL), steps)
        levels = grid.sums.at(GROUP * MICRO_TILE).as_type(i32)
        accumulator = SliceAccumulator(k, levels, grid.sums, lambda image, _: args.scales.load(image), scales)
        return _Int8Conv(k, tiles, conv, distances, grid, steps, epilogue, fmt, args, first, accumulator, k.var(-1))

    convolve(k, args.conv, epilogue, TileFormat(STEP, TERMS, SLICES, SLICES * 2 * TILE, SPARE), work)


class _Int8Conv(TileConv):
    """Products of slices."""

    operands: SlicesConvArgs[Buf, Val]
    first: DType
    accumulator: SliceAccumulator
    held: Var
    """The column and step of the K-block of weights that is in scratch memory in f32; -1: none."""

    def micro_tile(self, r: Val, column: Val, step: Val, count: Val, fetched: Val) -> None:
        k, flagged = self.k, self.operands.flags.load(self.grid.entry(r)[1]).ne(0)
        with k.when(flagged, likely=False):
            self._multiply_f32(r, column, step, count)
        with k.when(~flagged, likely=True):
            self._multiply_slices(r, column, step, count, fetched)

    def _multiply_slices(self, r: Val, column: Val, step: Val, count: Val, fetched: Val) -> None:
        k, operands, k_block, accumulator = self.k, self.operands, self.args.k_block, self.accumulator
        start, image, *_ = self.grid.entry(r)
        weights = operands.w.at((column * self.steps + step) * (SLICES * 2 * TILE))
        share = fetched * (SLICES * LINE_NBYTES)
        following = weights.at(count * (SLICES * 2 * TILE) + r * count * share)
        stride, slice_stride = self.args.taps.stride.x * self.args.strides.x, self.args.strides.term
        pixels, has_fourth = operands.x.at(start), operands.fourth.load(image).ne(0)
        sides = k.min(ceil_div(self.filters - column * PANEL, HALF), SIDES)
        scales, pace = (column * ceil_div(self.steps, k_block) + step // k_block) * PANEL, rows_per_step(k, count)
        with k.loop(0, sides) as side:
            columns = weights.at(side * TILE)
            for level, products in ROUNDS:
                with level_sums(self.tiles, accumulator.levels, level):
                    with k.loop(0, count) as s:
                        here = pixels.at(self.distances.load(step + s))
                        slices = [here.at(slice_stride * i) for i in range(SLICES)]
                        these = columns.at(s * (SLICES * 2 * TILE))
                        multiply(self.tiles, slices, these, products, stride, first=self.first)
                        if level:
                            accumulator.advance(pace)
                        ahead = following.at(s * share + (side * SIDES + level // 2) * (share // 4))
                        with k.loop(0, ceil_div(fetched * SLICES, 4)) as i:
                            ahead.prefetch(i * LINE_NBYTES, locality=2)
                    if level:
                        with k.when(has_fourth), k.loop(0, count) as s:
                            place = (start + self.distances.load(step + s)) // SLICES
                            here = operands.x.at(operands.more + place)
                            multiply_fourth(self.tiles, here, columns.at(s * (SLICES * 2 * TILE)), stride // SLICES)
            accumulator.start(self.slot(r) + side * HALF, image, scales + side * HALF, step.eq(0))

    def complete_sums(self) -> None:
        self.accumulator.drain()

    def _multiply_f32(self, r: Val, column: Val, step: Val, count: Val) -> None:
        """Add a K-block of products in f32, from the unsplit image."""
        k, k_block, which = self.k, self.args.k_block, column * self.steps + step
        columns = k.scratch(f32)
        pixels = columns.at(DEPTH * PANEL)
        self.accumulator.drain()
        with k.when(self.held.get().ne(which)):
            self.held.set(which)
            scales = self.accumulator.right.at((column * ceil_div(self.steps, k_block) + step // k_block) * PANEL)
            decode_panel(k, self.operands.w.at(which * (SLICES * 2 * TILE)), scales, count, columns)
        _, image, z, y, x, high = self.grid.entry(r)
        pitch, deep = self.args.pitch_y, self.args.pitch_z
        with k.loop(0, high) as i:
            place = z * deep + y * pitch + x + i
            at = [place // deep, place % deep // pitch, place % pitch]
            with k.loop(0, count) as s:
                self._copy(image, at, step + s, pixels.at(i * DEPTH + s * STEP))
        sums, length = self.grid.sums.at(self.slot(r)), count * STEP
        multiply_rows(k, high, decoded_rows(k, pixels), columns, length, sums, step.eq(0))

    def _copy(self, image: Val, at: list[Val], step: Val, to: Buf) -> None:
        """Store what a step reads of the image for the output pixel at z, y and x: zeros in the padding."""
        k, args, taps, source, pads = self.k, self.operands, self.args.taps, self.operands.source, self.operands.pad
        kernel = taps.kernel
        block, tap = step // taps.count(), step % taps.count()
        each = [tap // (kernel.y * kernel.x), tap // kernel.x % kernel.y, tap % kernel.x]
        is_there, pixel = k.const(1).eq(1), args.unsplit.at(image * source.b)
        strides = (source.z, source.y, source.x)
        for i, (size, stride, pad) in enumerate(zip(source.size.each, strides, pads.each, strict=True)):
            index = at[i] * taps.stride.each[i] + each[i] * taps.dilation.each[i] - pad
            is_there = is_there & (index >= 0) & (index < size)
            pixel = pixel.at(index * stride)
        channels = k.select(is_there, source.channels - block * STEP, 0)
        for first in range(0, STEP, HALF):
            to.store(first, pixel.load(block * STEP + first, HALF, k.mask(channels - first, HALF)))
