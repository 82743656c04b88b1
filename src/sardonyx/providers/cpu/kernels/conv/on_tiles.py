"""Selects AMX convolutions and prepares their steps: packed image and weights, epilogue (``conv.implicit_gemm``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.errors import NotImplemented
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Apply, Convolution, Pool, Storage, View, Window
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.kernels.common.epilogue import STRIDED, Access, Epilogue, operands_of
from sardonyx.providers.cpu.kernels.common.matrices import Matrix
from sardonyx.providers.cpu.kernels.common.window import PerAxis, TapsArgs, WindowGeometry, nbytes_of, nhwc_matrix
from sardonyx.providers.cpu.kernels.conv.bf16_split import Bf16ConvArgs, RowFlagsArgs, conv_amx
from sardonyx.providers.cpu.kernels.conv.image_epilogue import NCHW, PACKED, ImageEpilogueArgs, writes_of
from sardonyx.providers.cpu.kernels.conv.implicit_gemm import SecondImageArgs, TileConvArgs, scratch_nbytes
from sardonyx.providers.cpu.kernels.conv.pack_image import packing_step
from sardonyx.providers.cpu.kernels.conv.packed_image import (
    BLOCK,
    OVERRUN,
    PackedImageLayout,
    PackedImageMatrix,
    PackedStrides,
    most_compact,
    window_tiles,
)
from sardonyx.providers.cpu.kernels.conv.pipelined_epilogue import Places, is_one_for_images, pace_of, table_nbytes
from sardonyx.providers.cpu.kernels.conv.stride_phases import NO_PHASES, StridePhases
from sardonyx.providers.cpu.kernels.gemm.amx import term_count
from sardonyx.providers.cpu.kernels.split import int8_slices
from sardonyx.providers.cpu.kernels.split.bf16 import (
    CHUNK,
    HALF,
    PAIRS,
    PANEL,
    k_block_steps,
    split_bf16,
    step_elements,
)
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import PRODUCTS
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.values import bf16, f16, f32
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.memory.allocator import allocate
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step, Unrepresentable
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record

KC_STEPS = {1: 12, 2: 6, 3: 4}
"""Most steps of a K-block, by terms: 24 KiB of weights."""
STREAMING_KC_STEPS = 16
"""Most steps of a K-block of one term whose pixels bypass L1 (``Geometry.is_non_temporal``)."""
MAX_RESIDENT_STEPS = 2
"""Most steps whose weights stay in tile registers, two tiles for each."""
LEAST_SHARE = {1: 0.12, 2: 0.3, 3: 0.6}
"""By terms: share of the numbers in tiles that must be channels and filters, below which multiply-adds are faster."""
LEAST_GAIN = {1: 10, 2: 24, 3: 110}
"""By terms: least number of products for each number that is split or stored, below which multiply-adds are faster."""
FEW = {1: 0, 2: 0, 3: 64}
"""By terms: outputs of a filter for which there must be twice as many products."""
NARROW = 0.25
"""Factor on ``LEAST_SHARE`` and ``LEAST_GAIN`` for images of narrow floats, which are slow without AMX."""
LEAST_ROWS = {1: 0.05, 2: 0.15, 3: 0.35}
"""By terms: share of the rows of tiles that must be outputs."""
SLICES_EASE = 0.4
"""Factor on ``LEAST_GAIN`` for int8 slices, whose products take less time."""
Asked = Callable[[Convolution, Analysis], Refusal | None]
VARIANTS = ("conv.int8_slices", "conv.on_tiles")
"""The kernel variants on tiles."""
LEAST_DEPTH, LEAST_CHANNELS = 2 * int8_slices.STEP, 0.7
"""Numbers of a sum from which those of slices, four for each, are put together in little time; and share of the
channels in tiles that there must be."""


class Geometry(Record):
    """A convolution's window over a packed image."""

    layout: PackedImageLayout
    start: Known
    """The element of the first pixel that the first window sees."""
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    size: tuple[Known, ...]
    """The spatial sizes of the result."""
    phases: StridePhases | None = None
    """The phases of the image, if they are what is read."""
    second: Geometry | None = None
    """Single pixels of a second image."""
    flags: Storage | None = None
    """One for each row of the image, which is up where a number is not finite."""

    @property
    def steps(self) -> int:
        return self.own_steps + (self.second.own_steps if self.second else 0)

    @property
    def own_steps(self) -> int:
        return window_tiles(self.layout, self.kernel, self.dilations)

    @property
    def image(self) -> PackedImageLayout:
        """The layout that tiles read: that of the image, or of its stride phases."""
        return self.phases.image if self.phases else self.layout

    @property
    def moves(self) -> tuple[int, ...]:
        """The distance from window to window along each axis, in pixels of ``image``."""
        return (1, 1, 1) if self.phases else self.strides

    @property
    def is_dense(self) -> bool:
        """Whether the first pixels of successive windows are successive pixels of ``image``, also from row to row."""
        return self.moves == (1, 1, 1) and self.image.has_no_padding

    @property
    def k_block(self) -> int:
        """Steps of each K-block except the last."""
        return k_block_steps(self.steps, STREAMING_KC_STEPS if self.is_non_temporal else KC_STEPS[self.layout.terms])

    @property
    def is_non_temporal(self) -> bool:
        """Whether tile loads of pixels bypass L1: with one term, if a single tap reads each pixel."""
        is_once = self.kernel[:2] == (1, 1) and self.spans[0] == 1
        return self.layout.terms == 1 and is_once and self.steps > MAX_RESIDENT_STEPS

    @property
    def last_k_block(self) -> int:
        return self.steps - (-(-self.steps // self.k_block) - 1) * self.k_block

    @property
    def spans(self) -> tuple[int, int]:
        """How many contiguous spans of a channel block a row of taps reads, and the length of each in numbers."""
        return self.layout.spans(self.kernel[2], self.dilations[2])

    def operand(
        self, filters: int, k_block: int, epilogue: ImageEpilogueArgs[Ref, Known],
        second: SecondImageArgs[Ref, Known] | None = None,
    ) -> TileConvArgs[Ref, Known]:  # fmt: skip
        z, y, x = self.size
        phase_strides, strides = self.strides if self.phases else (1, 1, 1), self.moves
        deep, row, (spans, wide) = self.image.deep, self.image.row, self.spans
        if strides == (1, 1, 1) and (self.second is None or (self.is_dense and self.second.is_dense)):
            length = dims.total((dims.mul(dims.sub(z, 1), deep), dims.mul(dims.sub(y, 1), row), x))
            lines: Known = 1
        else:
            length, lines, row, deep = x, expressible(dims.mul(z, y)), x, expressible(dims.mul(y, x))
        taps = TapsArgs[Ref, Known](
            PerAxis(self.kernel[0], self.kernel[1], spans), PerAxis(*self.dilations), PerAxis(*strides)
        )
        return TileConvArgs(
            *self._strides, batch=self.layout.batch, blocks=self.layout.blocks, filters=filters, lines=lines,
            length=expressible(dims.maximum(length, 0)), wide=wide, pitch_z=deep, pitch_y=row, k_block=k_block,
            taps=taps, out=PerAxis(*self.size), phase=PerAxis(*phase_strides), second=second, epilogue=epilogue,
        )  # fmt: skip

    @property
    def second_operand(self) -> SecondImageArgs[Ref, Known]:
        """The kernel's parameters of this geometry as that of a second image."""
        strides, _ = self._strides
        along = zip((strides.z, strides.y, strides.x), self.moves, strict=True)
        z, y, x = (expressible(dims.mul(stride, n)) for stride, n in along)
        return SecondImageArgs(strides.b, strides.block, z, y, x, self.own_steps)

    @property
    def _strides(self) -> tuple[PackedStrides[Ref, Known], PerAxis[Ref, Known]]:
        return self.phases.strides_of() if self.phases else (self.layout.strides, NO_PHASES)


def terms(group: Convolution, analysis: Analysis) -> int:
    """The bf16 terms that image and weights are split into."""
    return term_count(analysis.precision, group.x.dtype, group.w.dtype)


def takes(group: Convolution, analysis: Analysis) -> bool:
    """Whether a convolution is carried out on tiles, whatever the layout of its image, unless its outputs are few."""
    return refusal(group, analysis) is None


def refusal(group: Convolution, analysis: Analysis) -> Refusal | None:
    """Why a convolution is not carried out on tiles: they cannot, they do not pay, or the policy forbids it."""
    policy = analysis.target.policy
    found = supports(group, analysis) or (None if policy.forces(*VARIANTS) else pays(group, analysis))
    if found is None and not policy.allows(*VARIANTS):
        return Refusal("the variants on tiles are left out")
    return found


def _layout_independent(ask: Asked) -> Asked:
    """Cache the answer of ``ask`` in the analysis, under a key without the image's strides and offset.

    Layout passes change these and ask again; the answer does not depend on them.
    """

    def asked(group: Convolution, analysis: Analysis) -> Refusal | None:
        x, w = group.x, group.w
        is_pointwise = all(isinstance(step, Apply) for step in group.epilogue.steps)
        key = (
            x.dtype, x.shape, group.box, group.window, group.groups, w.storage.number, w.dtype, w.shape, w.offset,
            is_pointwise,
        )  # fmt: skip
        return analysis.once(f"conv.on_tiles.{ask.__name__}", group, lambda given: ask(given, analysis), key=key)

    return asked


@_layout_independent
def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    """Why tiles cannot carry out a convolution in bf16 terms."""
    w, window = group.w, group.window
    if not analysis.isa.amx:
        return Refusal(f"no tiles on {analysis.isa.name}")
    if group.groups != 1 or any(v.dtype not in (f32, bf16, f16) for v in (group.x, w)):
        return Refusal("grouped, or of other types than f32, f16 and bf16")
    tensor = w.storage.tensor
    if tensor is None or not all(isinstance(d, int) for d in (*w.shape, w.offset)):
        return Refusal("the weights are not constant")
    if identity(tensor) in analysis.unrepresentable:
        return Refusal("bf16 terms cannot represent a weight")
    if not all(isinstance(step, Apply) for step in group.epilogue.steps):
        return Refusal("a reduction follows the sums")
    if not all(isinstance(p, int) and p >= 0 for p in window.pads):
        return Refusal("a padding is negative, or known at run time only")
    if 0 in w.shape:
        return Refusal("there are no weights")
    try:
        _ = geometry(group, WindowGeometry.of(group, collapse=False), terms(group, analysis)).layout.elements
    except NotImplemented as why:  # sizes that are too long expressions
        return Refusal(str(why))
    return None


@_layout_independent
def pays(group: Convolution, analysis: Analysis) -> Refusal | None:
    """Why vectors are quicker for a convolution that tiles support."""
    window, count = without_pointwise_strides(group).window, terms(group, analysis)
    if _used_rows(group, window) < LEAST_ROWS[count]:
        return Refusal("too few rows of the tiles would be outputs")
    filters, channels, *taps = (int(d) for d in group.w.shape)
    products = filters * channels * float(np.prod(taps))
    found = geometry(group, WindowGeometry.of(group, collapse=False), count)
    share = products / (found.steps * BLOCK * -(-filters // HALF) * HALF)
    gain = products / (channels * float(np.prod(window.strides)) + filters)
    ease, outputs = (1 if group.x.dtype is f32 else NARROW), dims.product((group.box[0], *group.box[2:]))
    few = 1 + FEW[count] / max(outputs, 1) if isinstance(outputs, int) else 1
    if slices_refusal(group, analysis) is None:
        few *= SLICES_EASE
    if share < ease * LEAST_SHARE[count]:
        return Refusal("channels and filters fill too little of the tiles")
    return None if gain >= ease * few * LEAST_GAIN[count] else Refusal("too few products for each number that is split")


def slices_refusal(group: Convolution, analysis: Analysis) -> Refusal | None:
    """Why a convolution that tiles support does not use int8 slices, if its image is NHWC."""
    if term_count(analysis.precision, group.x.dtype, group.w.dtype) != int8_slices.SLICES:
        return Refusal(f"the precision {analysis.precision} takes fewer terms")
    tensor, (_, channels, *taps) = group.w.storage.tensor, (int(d) for d in group.w.shape)
    room = -(-channels // int8_slices.STEP) * int8_slices.STEP
    if any(v.dtype is not f32 for v in (group.x, group.w)):
        return Refusal("of other types than f32")
    if channels < LEAST_CHANNELS * room or channels * int(np.prod(taps)) < LEAST_DEPTH:
        return Refusal("channels fill too little of the tiles, or sums are short")
    if int8_slices.slices_key(tensor) in analysis.unrepresentable:
        return Refusal("slices cannot represent a weight")
    return None


def _used_rows(group: Convolution, window: Window) -> float:
    """The share of tile rows that are outputs: short lines leave rows empty (strides) or full of padding."""
    wide = group.box[-1]
    if not isinstance(wide, int):
        return 1
    if any(s != 1 for s in window.strides):
        return wide / max(-(-wide // HALF) * HALF, 1)
    return wide / max(wide + (window.kernel[-1] - 1) * window.dilations[-1], 1)


def without_pointwise_strides(group: Convolution) -> Convolution:
    """The convolution with stride 1 along axes where its kernel has one element: the view of the image then leaves out
    the elements that no window reads.
    """
    x, window = group.x, group.window
    strides = list(window.strides)
    for i, (n, s, p) in enumerate(zip(window.kernel, window.strides, window.pads, strict=True)):
        size, out = x.shape[2 + i], group.box[2 + i]
        if n == 1 < s and p == 0 and isinstance(size, int) and isinstance(out, int) and (out - 1) * s < size:
            x, strides[i] = views.sliced(x, 2 + i, 0, out, s), 1
    return replace(group, x=x, window=replace(window, strides=tuple(strides)))


def geometry(group: Convolution, frame: WindowGeometry, terms: int, block: int = BLOCK) -> Geometry:
    """The window over a packed image in a layout for this convolution alone.

    The layout is channel-blocked, or compact if ``block`` is 32 and windows then read fewer tiles.
    """
    window, size = frame.window, frame.size
    reach = [(n - 1) * d for n, d in zip(window.kernel, window.dilations, strict=True)]
    pads = [p for p in window.pads if isinstance(p, int)]
    back: list[Known] = []
    for i in range(3):
        last = dims.add(dims.mul(dims.sub(size[i], 1), window.strides[i]), reach[i] + 1)
        back.append(expressible(dims.maximum(dims.sub(last, dims.add(frame.x.shape[2 + i], pads[i])), 0)))
    back[2] = expressible(dims.maximum(back[2], dims.sub(size[2], frame.x.shape[4])))  # a line holds its results
    channels, image = int(group.w.shape[1]), tuple(frame.x.shape[2:])
    overrun = max(HALF * window.strides[2], OVERRUN)
    layout = PackedImageLayout(
        terms, frame.x.shape[0], channels, image, tuple(pads), tuple(back), overrun=overrun, block=block
    )
    if block == BLOCK:
        layout = most_compact(layout, [(window.kernel, window.dilations)])
    return Geometry(layout, layout.at(*(-p for p in pads)), window.kernel, window.strides, window.dilations, size)


def steps(group: Convolution, analysis: Analysis, second: Convolution | None = None) -> list[Step]:
    """The steps of a convolution on tiles, with the sums of a ``second`` one added (``conv.summed_pair``)."""
    terms = term_count(analysis.precision, group.x.dtype, group.w.dtype)
    filters, depth = int(group.w.shape[0]), math.prod(int(d) for d in group.w.shape[1:])
    before, other = list[Step](), None
    second_image: Ref | None = None
    moved: Known = 0
    if second is not None:
        before, other, image, frame = _image(second, terms, analysis, allow_collapse=False, more=depth // BLOCK)
        second_image, depth = Ref(image, other.start), depth + int(second.w.shape[1])
        moved = expressible(nbytes_of(frame.x, terms * 2))
    allow_collapse, second_steps = (True, 0) if other is None else (other.is_dense, other.own_steps)
    made, found, image, frame = _image(group, terms, analysis, allow_collapse=allow_collapse, more=second_steps)
    found = replace(found, second=other)
    weights = packed(group, found, analysis.isa, second)
    epilogue, operands = epilogue_of(group, frame, analysis)
    flags = None
    if found.flags is not None and found.spans[1] % BLOCK != 0:
        flags = RowFlagsArgs[Ref, Known](Ref(found.flags), found.flags.elements)
    is_flagged = flags is not None
    of_second = None if other is None else other.second_operand
    conv = found.operand(filters, found.k_block, operands, of_second)
    args = Bf16ConvArgs(Ref(image, found.start), Ref(weights), second_image, flags, conv)
    is_full = terms == 1 and filters % PANEL == 0 and (is_flagged or found.spans[1] % BLOCK == 0)
    is_pipelined = terms == 1 and filters > HALF and is_one_for_images(epilogue, operands.operands)
    pace = pace_of(epilogue, found.last_k_block, is_full=is_full) if is_pipelined else 0
    places = Places.of(epilogue, conv, is_full=is_full) if pace else None
    known = {"is_single": pace > 0 and found.steps <= found.k_block, "is_full": pace > 0 and is_full}
    resident = found.steps if pace and is_full and found.steps <= MAX_RESIDENT_STEPS and second is None else 0
    known |= {"is_non_temporal": found.is_non_temporal, "has_second": second is not None, "is_flagged": is_flagged}
    spec = conv_amx(terms=terms, epilogue=epilogue, pace=pace, places=places, resident=resident, **known)
    flops = dims.known(dims.product((2, depth, *group.box))) or 0
    nbytes = dims.known(dims.total((moved, _moved(frame, terms, analysis), dims.mul(weights.elements, 2)))) or 0
    why = f"{analysis.precision}: {len(PRODUCTS[terms])} products of {terms} bf16 terms on tiles"
    scratch = scratch_nbytes(found.steps, epilogue) + (table_nbytes(places) if places else 0)
    return [*before, *made, Step(spec, flat(args=args), writes_of(epilogue), group.nodes, scratch, flops, nbytes, why)]


def _image(
    group: Convolution, terms: int, analysis: Analysis, *, allow_collapse: bool = True, more: int = 0
) -> tuple[list[Step], Geometry, Storage, WindowGeometry]:
    """The steps that make the packed image, the geometry over it, its storage, and the window.

    There is no step if the producer packs the image, unless decomposing it into stride phases pays. ``allow_collapse``:
    all pixels may become one row. ``more``: steps of a second convolution, which also gain from unit strides.
    """
    given = analysis.images.get(group.x.storage)
    given = None if given is None or not given.is_of(group.x) else given
    layouts = [i.layout for v in group.outputs if (i := analysis.images.get(v.storage)) is not None]
    layouts += [
        i.layout for v in group.extra if (i := analysis.images.get(v.storage)) is not None and not i.has_unpacked
    ]
    if given is None:
        group = without_pointwise_strides(group)
    else:
        layouts.append(given.layout)
    frame = WindowGeometry.of(group, collapse=allow_collapse and all(one.has_no_padding for one in layouts))
    found = geometry(group, frame, terms)
    if given is None:
        x = frame.x
        key = ("image", x.storage.number, x.offset, x.shape, x.strides, found.layout)
        before: list[Step] = []
        if key not in analysis.splits:
            step, *analysis.splits[key] = packing_step(x, found.layout, group.nodes)
            before.append(step)
        storage, flags = analysis.splits[key]
        return before, replace(found, flags=flags), storage, frame
    layout = replace(found.layout, compact=given.layout.compact) if given.layout.has_no_padding else given.layout
    start = layout.at(*(-int(p) for p in frame.window.pads))
    found = replace(found, layout=layout, start=start)
    phases = StridePhases.of(layout, found.kernel, found.strides, found.dilations, found.size)
    if phases is None or not phases.pays(found.steps + more, int(group.w.shape[0]), found.size):
        return [], found, given.storage, frame
    step, made = phases.step(Ref(given.storage, start), layout, group.nodes)
    return [step], replace(found, start=0, phases=phases), made, frame


def _moved(frame: WindowGeometry, terms: int, analysis: Analysis) -> Known:
    """Bytes of image, operands and outputs, each counted once and as it is stored; 0 if that is not expressible."""
    images = {v: analysis.images.get(v.storage) for v in (*frame.extra, *frame.outputs)}
    numbers = [v for v, image in images.items() if image is None or image.has_unpacked]
    packed_inputs = [
        v for v, image in images.items() if image is not None and (v in frame.outputs or not image.has_unpacked)
    ]
    sizes = [nbytes_of(v, v.dtype.itemsize) for v in numbers] + [
        nbytes_of(v, terms * 2) for v in (frame.x, *packed_inputs)
    ]
    return dims.known(dims.total(sizes)) or 0


def epilogue_of(
    group: Convolution | Pool, frame: WindowGeometry, analysis: Analysis
) -> tuple[Epilogue, ImageEpilogueArgs[Ref, Known]]:
    """The epilogue over a matrix whose rows are pixels and whose columns are filters; and its operands."""
    extra, outputs, results = list[tuple[Matrix, Access]](), list[tuple[Matrix, Access]](), list[int]()
    packed, layout = None, None
    for v in frame.extra:
        image = analysis.images.get(v.storage)
        extra.append(
            _numbers(v, group.box[1]) if image is None or image.has_unpacked else _packed(image.layout, image.storage)
        )
    for v, result in zip(frame.outputs, group.epilogue.results, strict=True):
        image = analysis.images.get(v.storage)
        if image is None or image.has_unpacked:
            outputs.append(_numbers(v, group.box[1]))
            results.append(result)
        if image is not None:
            outputs.append(_packed(image.layout, image.storage))
            results.append(result)
            packed, layout = Ref(image.storage), image.layout.operand
    expression = replace(group.epilogue, results=tuple(results))
    made = Epilogue(expression, tuple(access for _, access in extra), tuple(access for _, access in outputs), 3)
    operands = operands_of([m for m, _ in extra], [m for m, _ in outputs])
    terms = tuple(m.term if isinstance(m, PackedImageMatrix) else None for m, _ in (*extra, *outputs))
    return made, ImageEpilogueArgs(packed, layout, operands, terms)


def _packed(layout: PackedImageLayout, storage: Storage) -> tuple[Matrix, Access]:
    return PackedImageMatrix.of_image(storage, layout), Access(bf16, PACKED)


def _numbers(view: View, channels: Known) -> tuple[Matrix, Access]:
    matrix = nhwc_matrix(view)
    found = Access.of(matrix, channels)
    if found.columns == STRIDED and matrix.row == 1 and matrix.dtype in (f32, f16, bf16):
        found = Access(matrix.dtype, NCHW)
    return matrix, found


def packed(group: Convolution, found: Geometry, isa: Isa, second: Convolution | None = None) -> Packed:
    """The packed weights, followed by those of the second convolution of a pair."""
    layout, terms, filters = found.layout, found.layout.terms, int(group.w.shape[0])
    both = [(one.w, geometry) for one, geometry in ((group, found), (second, found.second)) if one and geometry]
    panels, chunks = -(-filters // PANEL), -(-found.steps // CHUNK)
    elements = panels * found.steps * step_elements(terms)

    def make() -> Any:
        lined = [_in_step_order(w, geometry) for w, geometry in both]
        source = np.concatenate(lined) if len(lined) > 1 else lined[0]
        tiles, flags = allocate(elements * 2).view(bf16.numpy), np.zeros(panels * chunks, np.int32)
        spec = split_bf16(source=group.w.dtype, terms=terms, layout=PAIRS, is_direct=True, axes=0)
        args = {"x": source, "y": tiles, "flags": flags, "lines": filters, "depth": found.steps * BLOCK}
        Launch(spec, {**args, "x_line": 1, "x_k": filters}, isa=isa)()
        if flags.any():
            odd = (w for (w, _), one in zip(both, lined, strict=True) if not np.isfinite(one).all())
            raise Unrepresentable(_weights_key(next(odd, group.w))[0])
        return tiles

    key = ("conv tiles", *(_weights_key(w) for w, _ in both), terms, layout.compact, found.spans[1])
    return Packed("constant", bf16, elements, group.w.storage.value, key=key, make=make)


def _weights_key(w: View) -> tuple[object, Known, tuple[Known, ...]]:
    """What the views of equal weights have in common: tensor, offset and shape."""
    assert w.storage.tensor is not None
    return identity(w.storage.tensor), w.offset, w.shape


def _in_step_order(w: View, found: Geometry) -> Any:
    """Weights as [step][32 numbers][filter], flattened: numbers as tiles read them, zero where they read no channel."""
    layout, (spans, wide), (filters, channels, *taps) = found.layout, found.spans, (int(d) for d in w.shape)
    assert w.storage.tensor is not None
    count = filters * channels * math.prod(taps)
    content = np.ascontiguousarray(w.storage.tensor.peek()).reshape(-1)[int(w.offset) :][:count]
    seen = content.reshape(filters, channels, -1).transpose(2, 1, 0)  # taps, channels, filters
    lined = np.zeros((len(seen), layout.room, filters), content.dtype)
    lined[:, :channels] = seen
    if layout.compact:  # what each span reads, and zeros to the end of its last tile
        lined = lined.reshape(found.kernel[0] * found.kernel[1] * spans, -1, filters)[:, :wide]
        lined = np.pad(lined, ((0, 0), (0, -wide % BLOCK), (0, 0)))
    else:
        lined = lined.reshape(-1, layout.blocks, BLOCK, filters).transpose(1, 0, 2, 3)
    return lined.reshape(-1)
