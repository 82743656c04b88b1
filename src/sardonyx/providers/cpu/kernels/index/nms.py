"""Non-maximum suppression: for each class, the best box left is taken from a heap and compared with those kept.

Threads share the classes of all batches. Each class writes the boxes it keeps to its own row; a second kernel
concatenates the rows.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import NonMaxSuppression, Storage
from sardonyx.providers.cpu.kernels.index.heap import Heap
from sardonyx.providers.cpu.kernels.index.top_k import key_of, worse
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat, named
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.polling import is_stopped
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i32, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible, product
from sardonyx.providers.cpu.program.steps import Ref, Step

BOX_VALUES = 5
"""Values stored for a box: its lower and upper corner, and its area."""


def steps(group: NonMaxSuppression, analysis: Analysis) -> list[Step]:
    batch, classes, count = group.scores.shape
    units = product((batch, classes))
    kept, counts = (Ref(Storage("temporary", dtypes.i64, n)) for n in (product((units, group.max_per_class)), units))
    args = SuppressionArgs[Ref, Known](
        Ref.of(group.boxes), Ref.of(group.scores), Ref.of(group.iou_threshold), kept, counts,
        None if group.score_threshold is None else Ref.of(group.score_threshold), units, classes, count,
        group.max_per_class, group.boxes.strides, group.scores.strides,
    )  # fmt: skip
    room = expressible(dims.mul(group.max_per_class, BOX_VALUES * 4))
    scratch = expressible(dims.add(expressible(dims.mul(count, 16)), room))
    spec = non_max_suppression(is_centered=group.is_centered, has_score_threshold=group.score_threshold is not None)
    writes = frozenset(("kept", "counts"))
    found = Step(
        spec, flat(args=args), writes, group.nodes, scratch_nbytes=scratch, nbytes=product((16, *group.scores.shape))
    )
    concatenated: dict[str, Any] = {
        "kept": kept,
        "counts": counts,
        "out": Ref.of(group.out),
        "total": Ref.of(group.count),
    }
    concatenated |= {"units": units, "classes": classes, "max_per_class": group.max_per_class}
    return [found, Step(concat_boxes(), concatenated, frozenset(("out", "total")), group.nodes)]


class SuppressionArgs(Arguments[M, N]):
    """The parameters of ``non_max_suppression``."""

    is_inline: ClassVar[bool] = True
    boxes: M
    scores: M
    iou_threshold: M
    kept: M
    counts: M
    score_threshold: M | None
    units: N
    """Classes of all batches."""
    classes: N
    size: N
    max_per_class: N
    box_strides: tuple[N, ...] = field(metadata=named("b"))
    score_strides: tuple[N, ...] = field(metadata=named("s"))


def _params(is_centered: bool, has_score_threshold: bool) -> Params:
    threshold, strides = Memory(f32) if has_score_threshold else None, (i64, i64, i64)
    memory = Memory(f32), Memory(f32), Memory(f32), Memory(i64), Memory(i64)
    return {"args": SuppressionArgs[Memory, DType](*memory, threshold, i64, i64, i64, i64, strides, strides)}


@kernel(_params)
def non_max_suppression(
    k: Kernel, args: SuppressionArgs[Buf, Val], *, is_centered: bool, has_score_threshold: bool
) -> None:
    """The boxes kept for each class of each batch."""
    threshold, classes, size, max_per_class = args.iou_threshold.load(), args.classes, args.size, args.max_per_class
    heap = Heap(k, (k.scratch(i32), k.scratch(i64, size * 8)), lambda a, b: worse(b, a))
    corners = [k.scratch(f32, size * 16 + max_per_class * (4 * i)) for i in range(BOX_VALUES)]
    with k.share(args.units) as unit:
        boxes = args.boxes.at(unit // classes * args.box_strides[0])
        scores = args.scores.at(unit // classes * args.score_strides[0] + unit % classes * args.score_strides[1])
        candidates = k.var(0)
        with k.loop(0, size) as i:
            score = scores.load(i * args.score_strides[2])
            least = args.score_threshold
            passes = score.eq(score) | score.ne(score) if least is None else score > least.load()
            with k.when(passes):
                heap.store(candidates.get(), (key_of(k, -score, f32, descending=False), i))
                candidates += 1
        heap.heapify(candidates.get())
        number = k.var(0)
        with k.loop_while(lambda: (candidates.get() > 0) & (number.get() < max_per_class) & ~is_stopped(k)):
            _, box = heap.load(0)
            candidates.set(candidates.get() - 1)
            heap.sift_down(0, candidates.get(), heap.load(candidates.get()))
            own = _corners(k, boxes.at(box * args.box_strides[1]), args.box_strides[2], is_centered=is_centered)
            with k.when(~_overlaps(k, own, corners, number.get(), threshold)):
                for buffer, side in zip(corners, own, strict=True):
                    buffer.store(number.get(), side)
                args.kept.store(unit * max_per_class + number.get(), box)
                number += 1
        args.counts.store(unit, number.get())


def _corners(k: Kernel, box: Buf, stride: Val, *, is_centered: bool) -> list[Val]:
    a, b, c, d = (box.load(stride * i) for i in range(4))
    if is_centered:
        half_w, half_h = c * 0.5, d * 0.5
        low_y, low_x, high_y, high_x = b - half_h, a - half_w, b + half_h, a + half_w
    else:
        low_y, low_x, high_y, high_x = k.min(a, c), k.min(b, d), k.max(a, c), k.max(b, d)
    return [low_y, low_x, high_y, high_x, (high_y - low_y) * (high_x - low_x)]


def _overlaps(k: Kernel, own: list[Val], corners: list[Buf], count: Val, threshold: Val) -> Val:
    """Whether the intersection over union with one of the boxes kept exceeds the threshold."""
    overlaps = k.var(False, dtypes.bool_)
    with k.loop(0, count, k.lanes) as first:
        mask = k.mask(count - first)
        low_y, low_x, high_y, high_x, area = (b.load(first, k.lanes, mask) for b in corners)
        wide = [k.splat(v, k.lanes) for v in own]
        height = k.min(wide[2], high_y) - k.max(wide[0], low_y)
        width = k.min(wide[3], high_x) - k.max(wide[1], low_x)
        intersection = k.select((height > 0) & (width > 0), height * width, k.zeros(f32, k.lanes))
        union = wide[4] + area - intersection
        is_valid = (intersection > 0) & (wide[4] > 0) & (area > 0) & (union > 0) & mask
        overlaps.set(overlaps.get() | (is_valid & (intersection / union > threshold)).any())
    return overlaps.get()


@kernel(
    kept=(i64,), counts=(i64,), out=(i64,), total=(i64,), **dict.fromkeys(("units", "classes", "max_per_class"), i64)
)  # fmt: skip
def concat_boxes(
    k: Kernel, kept: Buf, counts: Buf, out: Buf, total: Buf, units: Val, classes: Val, max_per_class: Val
) -> None:
    """Rows (batch, class, box) of all boxes kept."""
    with k.when(k.thread.eq(0)):
        row = k.var(0)
        with k.loop(0, units) as unit, k.loop(0, counts.load(unit)) as i:
            for column, v in enumerate((unit // classes, unit % classes, kept.load(unit * max_per_class + i))):
                out.store(row.get() * 3 + column, v)
            row += 1
        total.store(0, row.get())
