"""Images in digits, padded for convolutions on tiles: three bytes a number, and one scale for all of an image.

    [layer][batch][channels / 64][z][y][x][digit][64 channels]

A sum of products goes over many pixels, so they have one scale, that of the largest number of their image: ``measure``
finds it row by row, and ``spread_digits`` makes digits. As for rows of matrices (``digits``), what stands out from an
image lies in a second layer; and an image that no scale carries raises its flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Storage, View
from sardonyx.providers.cpu.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.kernels.digits import DIGITS, LAYERS, STEP, Scale, is_odd, keep_largest
from sardonyx.providers.cpu.kernels.image_tiles import Padded, frame_params, zero_frame
from sardonyx.providers.cpu.kernels.matrices import number, of_known
from sardonyx.providers.cpu.kernels.split import HALF
from sardonyx.providers.cpu.steps import Ref, Step
from sardonyx.providers.cpu.values import Buf, Val, f32, i8, i32, i64, u8, u32

CREST = 16.0
"""Times the root mean square of an image that its numbers may be."""

SOURCE = ("x_b", "x_z", "x_y", "x_x", "channels", "size_z", "size_y", "size_x", "batch")


class _Source:
    """An image of f32 numbers; the channels of a pixel follow each other."""

    def __init__(self, k: Kernel, x: Buf, memory: Any) -> None:
        self.k, self.x = k, x
        self.b, self.z, self.y, self.pixel, self.channels, self.size_z, self.size_y, self.width, self.batch = (
            number(memory, name) for name in SOURCE
        )
        self.lines = self.size_z * self.size_y

    def row(self, image: Val, line: Val) -> Buf:
        return self.x.at(image * self.b + line // self.size_y * self.z + line % self.size_y * self.y)

    def vectors(self, row: Buf, do: Any) -> None:
        """Do something with all numbers of a row, a vector at a time; those that are not there are zero."""
        k = self.k
        with k.either(self.pixel.eq(self.channels)) as (close, apart):
            with close:
                for t in k.tiles(self.width * self.channels, HALF):
                    do(t.keep(row.load(t), 0.0))
            with apart, k.loop(0, self.width) as i:
                for t in k.tiles(self.channels, HALF):
                    do(t.keep(row.at(i * self.pixel).load(t), 0.0))


def _measure_params() -> Params:
    return {"x": (f32,), "largest": (u32,), "squares": (f32,), **dict.fromkeys(SOURCE, i64)}


@kernel(_measure_params)
def measure(k: Kernel, x: Buf, largest: Buf, squares: Buf, **memory: Any) -> None:
    """The largest number of each row, as bits, and the sum of the squares."""
    source = _Source(k, x, memory)
    with k.share(source.batch * source.lines) as at:
        size, total = k.var(k.zeros(u32, HALF)), k.var(k.zeros(f32, HALF))

        def see(v: Val) -> None:
            keep_largest(k, size, v)
            total.set(k.fma(v, v, total.get()))

        source.vectors(source.row(at // source.lines, at % source.lines), see)
        largest.store(at, size.get().max())
        squares.store(at, total.get().sum())


def _params() -> Params:
    memory = {"x": (f32,), "largest": (u32,), "squares": (f32,), "y": (i8,), "scales": (f32,), "wide": (i32,)}
    numbers = dict.fromkeys((*SOURCE, "blocks", "layer"), i64)
    return {**memory, "flags": (i32,), **frame_params("y"), **numbers}


@kernel(_params)
def spread_digits(
    k: Kernel, x: Buf, largest: Buf, squares: Buf, y: Buf, scales: Buf, wide: Buf, flags: Buf, blocks: Val, layer: Val,
    **memory: Any,
) -> None:  # fmt: skip
    """y, scales, wide and flags = the digits of images; layers are ``layer`` elements apart."""
    source = _Source(k, x, memory)
    zero_frame(k, y, memory, "y", source.batch)
    zero_frame(k, y.at(layer), memory, "y", source.batch)
    known, top, limit, is_wide = k.var(-1), k.var(k.zeros(u32)), k.var(k.zeros(f32)), k.var(0)
    upper = k.var(k.zeros(u32))
    with k.share(source.batch * blocks * source.lines) as at:
        block, rest = at % blocks, at // blocks
        line, image = rest % source.lines, rest // source.lines
        with k.when(image.ne(known.get())):
            known.set(image)
            _know(k, source, image, largest, squares, upper, top, limit, is_wide)
        with k.when((line + block).eq(0)):
            wide.store(image, k.cast(is_wide.get(), i32))
            flags.store(image, k.cast(is_odd(upper.get()), i32))
        to = y.at(image * number(memory, "y_b") + block * number(memory, "y_block"))
        to = to.at((line // source.size_y + number(memory, "y_front_z")) * number(memory, "y_z"))
        to = to.at((line % source.size_y + number(memory, "y_front_y")) * number(memory, "y_y"))
        to = to.at(number(memory, "y_front_x") * number(memory, "y_x"))
        row, first = source.row(image, line), block * STEP
        with k.loop(0, is_wide.get() + 1) as which:
            scale = Scale(k, k.select(which.eq(0), top.get(), upper.get()))
            with k.when((line + block).eq(0)):
                scales.store(image * LAYERS + which, scale.value)
            with k.either(is_wide.get().ne(0)) as (some, none):
                for branch, within in ((some, (which, limit.get())), (none, None)):
                    with branch:
                        _put(
                            k, source, row.at(first), to.at(which * layer), number(memory, "y_x"), first, scale, within
                        )


def _know(
    k: Kernel, source: _Source, image: Val, largest: Buf, squares: Buf, upper: Any, top: Any, limit: Any, is_wide: Any
) -> None:
    """What the digits of an image depend on: its largest number, that of its first layer, and the limit of this."""
    size, total = k.var(k.zeros(u32, HALF)), k.var(k.zeros(f32, HALF))
    for t in k.tiles(source.lines, HALF):
        there = image * source.lines + t.index
        size.set(k.max(size.get(), largest.load(there, HALF, t.mask)))
        total.set(total.get() + squares.load(there, HALF, t.mask))
    upper.set(size.get().max())
    count = source.lines * source.width * source.channels
    limit.set(k.sqrt(total.get().sum() / k.cast(k.max(count, 1), f32)) * CREST)
    is_above = (k.bitcast(upper.get(), f32) > limit.get()) & ~is_odd(upper.get())
    is_wide.set(k.cast(is_above, i64))
    top.set(upper.get())
    with k.when(is_above, likely=False):
        within = k.var(k.zeros(u32, HALF))
        with k.loop(0, source.lines) as line:
            source.vectors(
                source.row(image, line),
                lambda v: keep_largest(k, within, k.select(k.abs(v) <= k.splat(limit.get(), HALF), v, 0.0)),
            )
        top.set(within.get().max())


def _put(
    k: Kernel, source: _Source, row: Buf, to: Buf, pixel: Val, first: Val, scale: Scale, within: tuple[Val, Val] | None
) -> None:
    """The digits of 64 channels of a row's pixels."""
    left = source.channels - first
    masks = [k.mask(left - j, HALF) for j in range(0, STEP, HALF)]

    def pixels(masks: Sequence[Val | None]) -> None:
        with k.loop(0, source.width) as i:
            for j, mask in enumerate(masks):
                v = row.load(i * source.pixel + j * HALF, HALF, mask)
                for digit, bits in enumerate(scale.digits(v if within is None else scale.layer(v, *within))):
                    to.as_type(u8).store(i * pixel + (digit * STEP + j * HALF), k.cast(bits, u8))

    with k.either(left >= STEP) as (whole, part):
        with whole:
            pixels([None] * len(masks))
        with part:
            pixels(masks)


# -- what convolutions ask for


@dataclass(frozen=True)
class Digits:
    """An image in digits."""

    tiles: Storage
    scales: Storage
    wide: Storage
    flags: Storage

    def args(self, layout: Padded, start: Known) -> dict[str, Ref | Known | float]:
        memory = {"x_scales": self.scales, "x_wide": self.wide, "x_flags": self.flags}
        given: dict[str, Ref | Known | float] = {name: Ref(storage) for name, storage in memory.items()}
        return {"x": Ref(self.tiles, start), **given, "x_layer": layout.elements}


def source_args(source: View) -> dict[str, Known]:
    b, _, z, y, x = source.strides
    batch, channels, size_z, size_y, size_x = source.shape
    return dict(zip(SOURCE, (b, z, y, x, channels, size_z, size_y, size_x, batch), strict=True))


def spreading(source: View, layout: Padded, nodes: Any) -> tuple[list[Step], Digits]:
    """The steps that make digits of an image, over (batch, channels, z, y, x), and what they write."""
    batch, lines = layout.batch, of_known(dims.product((layout.batch, *layout.size[:2])))
    largest, squares = Storage("temporary", u32, lines), Storage("temporary", f32, lines)
    made = Digits(
        Storage("temporary", i8, of_known(dims.mul(layout.elements, LAYERS))),
        Storage("temporary", f32, of_known(dims.mul(batch, LAYERS))),
        Storage("temporary", i32, batch), Storage("temporary", i32, batch),
    )  # fmt: skip
    found = {"x": Ref.of(source), **source_args(source), "largest": Ref(largest), "squares": Ref(squares)}
    count = dims.known(dims.product((4, *source.shape))) or 0
    first = Step(measure(), found, frozenset(("largest", "squares")), nodes, 0, 0, count, "the scale of an image")
    args: dict[str, Ref | Known | float] = {
        **found, "y": Ref(made.tiles), **layout.frame_args("y"), "scales": Ref(made.scales), "wide": Ref(made.wide),
        "flags": Ref(made.flags), "blocks": layout.blocks, "layer": layout.elements,
    }  # fmt: skip
    nbytes = dims.known(dims.add(count, layout.elements)) or 0
    writes = frozenset(("y", "scales", "wide", "flags"))
    return [first, Step(spread_digits(), args, writes, nodes, 0, 0, nbytes, f"{DIGITS} digits")], made
