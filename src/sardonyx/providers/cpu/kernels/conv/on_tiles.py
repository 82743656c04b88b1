"""Selects AMX convolutions and prepares their steps: packed image and weights, epilogue (``conv.implicit_gemm``)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from sardonyx.errors import NotImplemented
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Apply, Convolution, IntegerConvolution, Pool, Storage, View, Window
from sardonyx.providers.cpu.kernels.common.epilogue import STRIDED, Access, Epilogue, operands_of
from sardonyx.providers.cpu.kernels.common.matrices import Matrix
from sardonyx.providers.cpu.kernels.common.window import WindowGeometry, nbytes_of, nhwc_matrix
from sardonyx.providers.cpu.kernels.conv.bf16_split import RowFlagsArgs, TileProductArgs, conv_amx
from sardonyx.providers.cpu.kernels.conv.image_epilogue import NCHW, PACKED, ImageEpilogueArgs, writes_of
from sardonyx.providers.cpu.kernels.conv.implicit_gemm import scratch_nbytes
from sardonyx.providers.cpu.kernels.conv.pack_image import packing_step
from sardonyx.providers.cpu.kernels.conv.pack_image_bytes import byte_packing_step
from sardonyx.providers.cpu.kernels.conv.packed_image import (
    BLOCK,
    ImageFormat,
    PackedImageLayout,
    PackedImageMatrix,
)
from sardonyx.providers.cpu.kernels.conv.pipelined_epilogue import (
    MAX_PACE,
    Places,
    is_one_for_images,
    pace_of,
    table_nbytes,
)
from sardonyx.providers.cpu.kernels.conv.stride_phases import StridePhases
from sardonyx.providers.cpu.kernels.conv.tile_geometry import MAX_RESIDENT_STEPS, Geometry, geometry
from sardonyx.providers.cpu.kernels.conv.tile_weights import byte_weights, term_weights
from sardonyx.providers.cpu.kernels.gemm.amx import term_count
from sardonyx.providers.cpu.kernels.split import int8_slices
from sardonyx.providers.cpu.kernels.split.bf16 import (
    HALF,
    PANEL,
)
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import PRODUCTS
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.values import bf16, f16, f32
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import replace

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


def format_of(group: Convolution, analysis: Analysis) -> ImageFormat:
    """How the packed image of a convolution stores numbers: in bf16 terms, or as the bytes that they are."""
    if isinstance(group, IntegerConvolution):
        return ImageFormat(group.x.dtype, 1)
    return ImageFormat.of_terms(terms(group, analysis))


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
    """Why tiles cannot carry out a convolution in bf16 terms, or of bytes."""
    w, window, is_quantized = group.w, group.window, isinstance(group, IntegerConvolution)
    if not analysis.isa.amx:
        return Refusal(f"no tiles on {analysis.isa.name}")
    if group.groups != 1:
        return Refusal("grouped")
    if not is_quantized and any(v.dtype not in (f32, bf16, f16) for v in (group.x, w)):
        return Refusal("of other types than f32, f16 and bf16")
    tensor = w.storage.tensor
    if tensor is None or not all(isinstance(d, int) for d in (*w.shape, w.offset)):
        return Refusal("the weights are not constant")
    if not is_quantized and identity(tensor) in analysis.unrepresentable:
        return Refusal("bf16 terms cannot represent a weight")
    if not all(isinstance(step, Apply) for step in group.epilogue.steps):
        return Refusal("a reduction follows the sums")
    if not all(isinstance(p, int) and p >= 0 for p in window.pads):
        return Refusal("a padding is negative, or known at run time only")
    if 0 in w.shape:
        return Refusal("there are no weights")
    try:
        _ = geometry(group, WindowGeometry.of(group, collapse=False), format_of(group, analysis)).layout.elements
    except NotImplemented as why:  # sizes that are too long expressions
        return Refusal(str(why))
    return None


@_layout_independent
def pays(group: Convolution, analysis: Analysis) -> Refusal | None:
    """Why vectors are quicker for a convolution that tiles support."""
    if isinstance(group, IntegerConvolution):
        return None
    window, count = without_pointwise_strides(group).window, terms(group, analysis)
    if _used_rows(group, window) < LEAST_ROWS[count]:
        return Refusal("too few rows of the tiles would be outputs")
    filters, channels, *taps = (int(d) for d in group.w.shape)
    products = filters * channels * float(np.prod(taps))
    found = geometry(group, WindowGeometry.of(group, collapse=False), ImageFormat.of_terms(count))
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
    if isinstance(group, IntegerConvolution):
        return Refusal("of bytes")
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


def steps(group: Convolution, analysis: Analysis, second: Convolution | None = None) -> list[Step]:
    """The steps of a convolution on tiles, with the sums of a ``second`` one added (``conv.summed_pair``)."""
    fmt = format_of(group, analysis)
    filters, depth = int(group.w.shape[0]), math.prod(int(d) for d in group.w.shape[1:])
    before, other = list[Step](), None
    second_image: Ref | None = None
    moved: Known = 0
    if second is not None:
        before, other, image, frame = _image(second, fmt, analysis, allow_collapse=False, more=depth // BLOCK)
        second_image, depth = Ref(image, other.start), depth + int(second.w.shape[1])
        moved = expressible(nbytes_of(frame.x, fmt.nbytes))
    allow_collapse, second_steps = (True, 0) if other is None else (other.is_dense, other.own_steps)
    made, found, image, frame = _image(group, fmt, analysis, allow_collapse=allow_collapse, more=second_steps)
    found = replace(found, second=other)
    weights = byte_weights(group, found) if fmt.is_quantized else term_weights(group, found, analysis.isa, second)
    epilogue, operands = epilogue_of(group, frame, analysis)
    flags = None
    if found.flags is not None and found.spans[1] % BLOCK != 0:
        flags = RowFlagsArgs[Ref, Known](Ref(found.flags), found.flags.elements)
    is_flagged = flags is not None
    of_second = None if other is None else other.second_operand
    conv = found.operand(filters, found.k_block, operands, of_second)
    args = TileProductArgs(Ref(image, found.start), Ref(weights), second_image, flags, conv)
    is_whole = is_flagged or fmt.is_quantized or found.spans[1] % BLOCK == 0
    is_full = fmt.terms == 1 and filters % PANEL == 0 and is_whole
    is_pipelined = fmt.terms == 1 and filters > HALF and is_one_for_images(epilogue, operands.operands)
    if fmt.is_quantized and found.last_k_block * MAX_PACE[epilogue.is_expensive] < HALF:
        is_pipelined = False  # most pixels would be finished one by one, and not side by side
    pace = pace_of(epilogue, found.last_k_block, is_full=is_full) if is_pipelined else 0
    places = Places.of(epilogue, conv, is_full=is_full) if pace else None
    known = {"is_single": pace > 0 and found.steps <= found.k_block, "is_full": pace > 0 and is_full}
    resident = found.steps if pace and is_full and found.steps <= MAX_RESIDENT_STEPS and second is None else 0
    known |= {"is_non_temporal": found.is_non_temporal, "has_second": second is not None, "is_flagged": is_flagged}
    spec = conv_amx(fmt=fmt, epilogue=epilogue, pace=pace, places=places, resident=resident, **known)
    flops = dims.known(dims.product((2, depth, *group.box))) or 0
    nbytes = (
        dims.known(
            dims.total((moved, _moved(frame, fmt, analysis), dims.mul(weights.elements, weights.dtype.itemsize)))
        )
        or 0
    )
    why = f"{analysis.precision}: {len(PRODUCTS[fmt.terms])} products of {fmt.terms} bf16 terms on tiles"
    if fmt.is_quantized:
        why = f"products of {fmt.dtype} on tiles"
    scratch = scratch_nbytes(found.steps, epilogue) + (table_nbytes(places) if places else 0)
    return [*before, *made, Step(spec, flat(args=args), writes_of(epilogue), group.nodes, scratch, flops, nbytes, why)]


def _image(
    group: Convolution, fmt: ImageFormat, analysis: Analysis, *, allow_collapse: bool = True, more: int = 0
) -> tuple[list[Step], Geometry, Storage, WindowGeometry]:
    """The steps that make the packed image, the geometry over it, its storage, and the window.

    There is no step if the producer packs the image, unless decomposing it into stride phases pays. ``allow_collapse``:
    all pixels may become one row. ``more``: steps of a second convolution, which also gain from unit strides.
    """
    given = analysis.images.get(group.x.storage)
    given = None if given is None or not given.is_of(group.x) or given.layout.format != fmt else given
    layouts = [i.layout for v in group.outputs if (i := analysis.images.get(v.storage)) is not None]
    layouts += [
        i.layout for v in group.extra if (i := analysis.images.get(v.storage)) is not None and not i.has_unpacked
    ]
    if given is None:
        group = without_pointwise_strides(group)
    else:
        layouts.append(given.layout)
    frame = WindowGeometry.of(group, collapse=allow_collapse and all(one.has_no_padding for one in layouts))
    found = geometry(group, frame, fmt)
    if given is None:
        x, zero = frame.x, group.zero if isinstance(group, IntegerConvolution) else None
        key = ("image", x.storage.number, x.offset, x.shape, x.strides, found.layout, zero)
        before: list[Step] = []
        if key not in analysis.splits:
            step, *analysis.splits[key] = (
                packing_step(x, found.layout, group.nodes)
                if zero is None
                else byte_packing_step(x, zero, found.layout, group.nodes)
            )
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


def _moved(frame: WindowGeometry, fmt: ImageFormat, analysis: Analysis) -> Known:
    """Bytes of image, operands and outputs, each counted once and as it is stored; 0 if that is not expressible."""
    images = {v: analysis.images.get(v.storage) for v in (*frame.extra, *frame.outputs)}
    numbers = [v for v, image in images.items() if image is None or image.has_unpacked]
    packed_inputs = [
        v for v, image in images.items() if image is not None and (v in frame.outputs or not image.has_unpacked)
    ]
    sizes = [nbytes_of(v, v.dtype.itemsize) for v in numbers] + [
        nbytes_of(v, fmt.nbytes) for v in (frame.x, *packed_inputs)
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
        if image is None or image.has_unpacked:
            extra.append(_operand(v, group.box[1]))
        else:
            extra.append(_packed(image.layout, image.storage))
    for v, result in zip(frame.outputs, group.epilogue.results, strict=True):
        image = analysis.images.get(v.storage)
        if image is None or image.has_unpacked:
            outputs.append(_numbers(v, group.box[1]))
            results.append(result)
        if image is not None:
            outputs.append(_packed(image.layout, image.storage))
            results.append(result)
            packed, layout = Ref(image.storage), image.layout.operand(image.fill)
    expression = replace(group.epilogue, results=tuple(results))
    made = Epilogue(expression, tuple(access for _, access in extra), tuple(access for _, access in outputs), 3)
    operands = operands_of([m for m, _ in extra], [m for m, _ in outputs])
    terms = tuple(m.term if isinstance(m, PackedImageMatrix) else None for m, _ in (*extra, *outputs))
    return made, ImageEpilogueArgs(packed, layout, operands, terms)


def _packed(layout: PackedImageLayout, storage: Storage) -> tuple[Matrix, Access]:
    return PackedImageMatrix.of_image(storage, layout), Access(layout.format.dtype, PACKED)


def _operand(view: View, channels: Known) -> tuple[Matrix, Access]:
    matrix, found = _numbers(view, channels)
    return matrix, found if found.columns == NCHW else Access.of_operand(matrix, channels)


def _numbers(view: View, channels: Known) -> tuple[Matrix, Access]:
    matrix = nhwc_matrix(view)
    found = Access.of(matrix, channels)
    if found.columns == STRIDED and matrix.row == 1 and matrix.dtype in (f32, f16, bf16):
        found = Access(matrix.dtype, NCHW)
    return matrix, found
