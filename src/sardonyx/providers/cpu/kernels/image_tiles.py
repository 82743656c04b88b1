"""Images split into bf16 parts, padded and in blocks of channels, so that a tile of pixels is loaded as it lies.

    [batch][channels / 32][z][y][x][part][32 channels]

A pixel of a block is ``parts`` cache lines. Sixteen pixels at even distances are the rows of a tile, whatever the tap:
convolutions read them where they lie, for every stride, dilation and padding. Padding is zeros in front of the rows
and planes and behind them; the padding behind a row is that in front of the next. Blocks are an odd multiple of 32
pixels apart, so that those of one place do not share sets of L1. Channels beyond the last are zero.

**Folding.** Where there are few channels, the taps of a row take the place of channels: x is then that of the result,
and number t * channels + c of a pixel is what tap t sees of channel c.

**Numbers that parts do not carry** (``split``: infinities, NaN, magnitudes near the limits) make NaN of every sum they
touch, which is how a convolution finds them: their first part is NaN, and the others hold their bits. One part is bf16
itself, which has infinities and NaN of its own; denormals count as zero there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Storage, View
from sardonyx.providers.cpu.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.kernels.matrices import number, of_known
from sardonyx.providers.cpu.kernels.split import HALF, LARGEST, SMALLEST, heads_of
from sardonyx.providers.cpu.kernels.transpose import transposed
from sardonyx.providers.cpu.steps import Ref, Step
from sardonyx.providers.cpu.values import Buf, Val, bf16, f32, i64, u16, u32

BLOCK = 32
"""Channels of a block."""
OVER = HALF
"""Pixels, times the stride, by which tiles may reach over the end."""
_ABS, _SIGN, _HIGH_HALF, _NAN = 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_0000, 0x7FC0_0000
PIXELS, PLANES, ANY = "pixels", "planes", "any"
"""What follows each other in the source: channels of a pixel, pixels of a row, or neither."""


@dataclass(frozen=True)
class Fold:
    """The taps of a row that take the place of channels."""

    kernel: int
    stride: int
    dilation: int
    pad: int
    channels: int
    width: Known
    """Of the image."""


@dataclass(frozen=True)
class Padded:
    """Where pixels lie. Distances are in pixels."""

    parts: int
    batch: Known
    channels: int
    size: tuple[Known, ...]
    """z, y, x."""
    front: tuple[int, ...]
    behind: tuple[Known, ...]
    """Padding along each."""
    fold: Fold | None = None

    @property
    def blocks(self) -> int:
        return -(-self.channels // BLOCK)

    @property
    def unit(self) -> int:
        """Elements of a pixel."""
        return self.parts * BLOCK

    @property
    def row(self) -> Known:
        return of_known(dims.add(self.size[2], dims.maximum(self.front[2], self.behind[2])))

    @property
    def deep(self) -> Known:
        high = dims.total((self.front[1], self.size[1], self.behind[1]))
        return of_known(dims.mul(high, self.row))

    @property
    def plane(self) -> Known:
        high = dims.total((self.front[0], self.size[0], self.behind[0]))
        used = dims.add(dims.mul(high, self.deep), self.front[2])
        return of_known(dims.add(dims.mul(dims.ceildiv(dims.sub(used, 32), 64), 64), 32))

    @property
    def elements(self) -> Known:
        pixels = dims.product((self.batch, self.blocks, self.plane))
        return of_known(dims.mul(dims.add(pixels, self.over), self.unit))

    @property
    def over(self) -> int:
        return OVER * 4

    @property
    def is_bare(self) -> bool:
        """Whether there is no padding: rows follow each other."""
        return not any((*self.front, *self.behind))

    def at(self, *place: int) -> Known:
        """The element at which a pixel begins; (0, 0, 0) is the image's first, padding is before it."""
        z, y, x = (f + p for f, p in zip(self.front, place, strict=True))
        return of_known(dims.mul(dims.total((dims.mul(z, self.deep), dims.mul(y, self.row), x)), self.unit))

    def strides(self) -> dict[str, Known]:
        """In elements: of the batch, of blocks, and along z and y."""
        block = of_known(dims.mul(self.plane, self.unit))
        return {
            "b": of_known(dims.mul(block, self.blocks)), "block": block,
            "z": of_known(dims.mul(self.deep, self.unit)), "y": of_known(dims.mul(self.row, self.unit)),
        }  # fmt: skip

    def frame_args(self, name: str) -> dict[str, Known]:
        """The arguments of ``frame_params``, but for the memory."""
        sizes = dict(zip("zyx", self.size, strict=True))
        fronts = dict(zip("zyx", self.front, strict=True))
        return {
            **{f"{name}_{s}": v for s, v in self.strides().items()},
            **{f"{name}_size_{a}": v for a, v in sizes.items()}, **{f"{name}_front_{a}": v for a, v in fronts.items()},
        }  # fmt: skip


def frame_params(name: str) -> Params:
    """Declares the strides, sizes and padding of a padded image."""
    numbers = ["b", "block", "z", "y", *(f"{what}_{a}" for what in ("size", "front") for a in "zyx")]
    return {f"{name}_{n}": i64 for n in numbers}


# -- inside kernels


def parts_of(k: Kernel, v: Val, parts: int) -> list[Val]:
    """The bits of f32 numbers whose upper halves are the parts, as the layout keeps them."""
    bits = k.bitcast(v, u32)
    if parts == 1:
        (head,) = heads_of(k, v, 1)
        return [k.select(v.ne(v), _NAN, head)]
    low, high = (k.bitcast(k.const(x, f32), u32) for x in (SMALLEST, LARGEST))
    size = bits & _ABS
    is_odd = (size - low >= high - low) & size.ne(0)
    heads = heads_of(k, v, parts)
    kept = [bits & _HIGH_HALF, bits << 16]
    first = _NAN if parts == 3 else ((bits << 6) & 0x3F_0000) | _NAN
    return [k.select(is_odd, odd, head) for odd, head in zip((first, *kept), heads, strict=False)]


def whole_of(k: Kernel, pixel: Buf, parts: int, lanes: int) -> Val:
    """The numbers whose parts begin at ``pixel``."""
    heads = [k.cast(pixel.as_type(u16).load(part * BLOCK, lanes), u32) << 16 for part in range(parts)]
    value = k.bitcast(heads[-1], f32)
    for bits in reversed(heads[:-1]):  # the smallest first: exact
        value = k.bitcast(bits, f32) + value
    if parts == 1:
        return value
    signed = k.bitcast(k.bitcast(value, u32) | (heads[0] & _SIGN), f32)  # a sum that is zero has the sign of its first
    rest = heads[2] >> 16 if parts == 3 else (heads[0] >> 6) & 0xFC00
    return k.select(value.ne(value), k.bitcast(heads[1] | rest, f32), signed)


def zero_frame(k: Kernel, y: Buf, memory: Any, name: str, image: Val, is_last: Val, unit: int, over: int) -> None:
    """Fill what is not image of one block with zeros; of the last one also what tiles reach over its end."""

    def n(what: str) -> Val:
        return number(memory, f"{name}_{what}")

    done = k.var(0)
    size_z, size_y, size_x = (n(f"size_{a}") for a in "zyx")
    front_z, front_y, front_x = (n(f"front_{a}") for a in "zyx")
    words = y.as_type(u32)

    def fill(stop: Val) -> None:
        with k.loop(done.get(), stop, HALF) as at:
            words.store(at, k.zeros(u32, HALF))

    y_z, y_y = n("z") // 2, n("y") // 2
    with k.loop(0, size_z) as z, k.loop(0, size_y) as line:
        to = (z + front_z) * y_z + (line + front_y) * y_y + front_x * (unit // 2)
        fill(to)
        done.set(to + size_x * (unit // 2))
    fill(n("block") // 2 + k.cast(is_last, i64) * (over * unit // 2))


# -- the kernel


def _params(source: DType, parts: int, order: str, step: int | None) -> Params:
    numbers = ["x_b", "x_c", "x_z", "x_y", "x_x", "batch", "channels", "blocks"]
    fold = ["kernel", "stride", "dilation", "pad", "width", "room"] if step is not None else []
    return {"x": (source,), "y": (bf16,), **frame_params("y"), **dict.fromkeys((*numbers, *fold), i64)}


@kernel(_params)
def spread(
    k: Kernel, x: Buf, y: Buf, batch: Val, channels: Val, blocks: Val,
    *, source: DType, parts: int, order: str, step: int | None, **memory: Any,
) -> None:  # fmt: skip
    """y = x in parts. ``step`` is None unless taps are folded: then the stride along x, or 0 for any above 2."""
    unit = parts * BLOCK
    with k.share(batch * blocks) as image:
        is_last = image.eq(batch * blocks - 1)
        at = image // blocks * number(memory, "y_b") + image % blocks * number(memory, "y_block")
        zero_frame(k, y.at(at), memory, "y", image, is_last, unit, OVER * 4)
    size_z, size_y, size_x = (number(memory, f"y_size_{a}") for a in "zyx")
    with k.share(batch * blocks * size_z * size_y) as at:
        line, image = at % size_y, at // size_y
        z, image = image % size_z, image // size_z
        block, image = image % blocks, image // blocks
        row = x.at(image * number(memory, "x_b") + z * number(memory, "x_z") + line * number(memory, "x_y"))
        to = y.at(image * number(memory, "y_b") + block * number(memory, "y_block"))
        to = to.at((z + number(memory, "y_front_z")) * number(memory, "y_z"))
        to = to.at((line + number(memory, "y_front_y")) * number(memory, "y_y") + number(memory, "y_front_x") * unit)
        made = _Row(k, memory, row, to, block * BLOCK, channels, size_x, parts, order)
        if step is not None:
            made.folded(step)
        elif order == PIXELS:
            made.pixels()
        else:
            made.planes()


class _Row:
    """One row of one block."""

    def __init__(
        self, k: Kernel, memory: Any, x: Buf, y: Buf, first: Val, channels: Val, width: Val, parts: int, order: str
    ) -> None:
        self.k, self.memory, self.x, self.y, self.first = k, memory, x, y, first
        self.channels, self.width, self.parts, self.order = channels, width, parts, order
        self.x_c, self.x_x = number(memory, "x_c"), number(memory, "x_x")

    def pixels(self) -> None:
        """Channels follow each other."""
        k, words = self.k, self.y.as_type(u16)
        masks = [k.mask(self.channels - self.first - side * HALF, HALF) for side in range(2)]
        source = self.x.at(self.first * self.x_c)
        with k.loop(0, self.width) as i:
            here = source.at(i * self.x_x)
            sides = [parts_of(k, here.load(j * HALF, HALF, m), self.parts) for j, m in enumerate(masks)]
            for part, (left, right) in enumerate(zip(*sides, strict=True)):
                heads = k.bitcast(left, u16).shuffle(range(1, 4 * HALF, 2), k.bitcast(right, u16))
                words.store((i * self.parts + part) * BLOCK, heads)

    def planes(self) -> None:
        """Pixels follow each other, or nothing does."""
        k = self.k
        with k.loop(0, self.width, HALF) as at:
            many = k.min(self.width - at, HALF)

            def load(i: Val, at: Val = at, many: Val = many) -> Val:
                existing = k.select(i < self.channels, many, 0)
                here = self.x.at(i * self.x_c)
                if self.order == PLANES:
                    return here.load(at, HALF, k.mask(existing, HALF))
                local = k.local(f32, HALF)
                local.store(0, k.zeros(f32, HALF))
                with k.loop(0, existing) as j:
                    local.store(j, here.load((at + j) * self.x_x))
                return local.load(0, HALF)

            self._turned(at, many, load)

    def folded(self, step: int) -> None:
        """The taps of each pixel of the result, from rows that are padded in scratch memory."""
        k, memory = self.k, self.memory
        kernel, stride, dilation, pad, width, room = (
            number(memory, name) for name in ("kernel", "stride", "dilation", "pad", "width", "room")
        )
        rows, images = k.scratch(f32), self.channels // kernel
        with k.loop(0, images) as c:
            row, source = rows.at(c * room), self.x.at(c * self.x_c)
            for t in k.tiles(room, HALF):
                row.store(t, 0.0)
            if self.order == PLANES:
                for t in k.tiles(width, HALF):
                    row.at(pad).store(t, source.load(t))
            else:
                with k.loop(0, width) as i:
                    row.store(pad + i, source.load(i * self.x_x))
        with k.loop(0, self.width, HALF) as at:

            def load(i: Val, at: Val = at) -> Val:
                i = k.min(i, self.channels - 1)
                here = rows.at(i % images * room + i // images * dilation + at * stride)
                if step == 1:
                    return here.load(0, HALF)
                if step == 2:
                    return here.load(0, HALF).shuffle(range(0, 2 * HALF, 2), here.load(HALF, HALF))
                return here.gather(k.iota(i64, HALF) * stride)

            def existing(i: Val, at: Val = at) -> Val:
                return k.select(i < self.channels, load(i, at), 0.0)

            self._turned(at, k.min(self.width - at, HALF), existing)

    def _turned(self, at: Val, many: Val, load: Any) -> None:
        """Sixteen pixels, from vectors of them for each channel."""
        k = self.k
        local, turned = k.local(u32, self.parts * HALF * HALF), k.local(u32, HALF * HALF)
        with k.loop(0, HALF) as pair:
            even, odd = (parts_of(k, load(self.first + pair * 2 + side), self.parts) for side in range(2))
            for part in range(self.parts):
                local.store((part * HALF + pair) * HALF, (even[part] >> 16) | (odd[part] & _HIGH_HALF))
        words = self.y.as_type(u32)
        with k.loop(0, self.parts) as which:
            rows = transposed([local.load((which * HALF + i) * HALF, HALF) for i in range(HALF)])
            for n, row in enumerate(rows):
                turned.store(n * HALF, row)
            with k.loop(0, many) as i:
                words.store(((at + i) * self.parts + which) * HALF, turned.load(i * HALF, HALF))


# -- what convolutions ask for


def spreading(source: View, layout: Padded, nodes: Any) -> tuple[Step, Storage]:
    """The step that splits an image, over (batch, channels, z, y, x), and what it writes."""
    made, fold = Storage("temporary", bf16, layout.elements), layout.fold
    b, c, z, y, x = source.strides
    order = PLANES if x == 1 or source.shape[4] == 1 else PIXELS if c == 1 and fold is None else ANY
    args: dict[str, Ref | Known | float] = {
        "x": Ref.of(source), "x_b": b, "x_c": c, "x_z": z, "x_y": y, "x_x": x,
        "y": Ref(made), **layout.frame_args("y"),
        "batch": layout.batch, "channels": layout.channels, "blocks": layout.blocks,
    }  # fmt: skip
    step, scratch_nbytes = None, of_known(0)
    if fold is not None:
        step = fold.stride if fold.stride <= 2 else 0
        span = dims.add(
            dims.mul(layout.size[2], fold.stride), (fold.kernel - 1) * fold.dilation + OVER * 2 * fold.stride
        )
        room = of_known(dims.add(dims.maximum(span, dims.add(fold.width, fold.pad)), HALF))
        args |= {
            "kernel": fold.kernel, "stride": fold.stride, "dilation": fold.dilation, "pad": fold.pad,
            "width": fold.width, "room": room,
        }  # fmt: skip
        scratch_nbytes = of_known(dims.mul(room, fold.channels * 4))
    spec = spread(source=source.dtype, parts=layout.parts, order=order, step=step)
    why = f"split into {layout.parts} bf16 parts{', taps folded' if fold else ''}"
    nbytes = dims.known(dims.mul(layout.elements, 2)) or 0
    return Step(spec, args, frozenset(("y",)), nodes, scratch_nbytes, 0, nbytes, why), made
