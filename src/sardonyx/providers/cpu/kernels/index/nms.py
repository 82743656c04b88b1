"""Non-maximum suppression: for each class, the best box left is taken from a heap and compared with those kept.

Threads share the classes of all batches. Each class writes the boxes it keeps to its own row; a second kernel
concatenates the rows.
"""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.lower.groups import NonMaxSuppression, Storage
from sardonyx.providers.cpu.kernels.index.heap import Heap
from sardonyx.providers.cpu.kernels.index.top_k import key_of, worse
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
    args: dict[str, Any] = {
        "boxes": Ref.of(group.boxes), "scores": Ref.of(group.scores), "iou_threshold": Ref.of(group.iou_threshold),
        "kept": kept, "counts": counts, "units": units, "classes": classes, "size": count,
        "max_per_class": group.max_per_class,
        **{f"b{i}": s for i, s in enumerate(group.boxes.strides)},
        **{f"s{i}": s for i, s in enumerate(group.scores.strides)},
    }  # fmt: skip
    if group.score_threshold is not None:
        args["score_threshold"] = Ref.of(group.score_threshold)
    room = expressible(dims.mul(group.max_per_class, BOX_VALUES * 4))
    scratch = expressible(dims.add(expressible(dims.mul(count, 16)), room))
    spec = non_max_suppression(is_centered=group.is_centered, has_score_threshold=group.score_threshold is not None)
    writes = frozenset(("kept", "counts"))
    found = Step(spec, args, writes, group.nodes, scratch_nbytes=scratch, nbytes=product((16, *group.scores.shape)))
    concatenated: dict[str, Any] = {
        "kept": kept,
        "counts": counts,
        "out": Ref.of(group.out),
        "total": Ref.of(group.count),
    }
    concatenated |= {"units": units, "classes": classes, "max_per_class": group.max_per_class}
    return [found, Step(concat_boxes(), concatenated, frozenset(("out", "total")), group.nodes)]


def _params(is_centered: bool, has_score_threshold: bool) -> Params:
    numbers = ("units", "classes", "size", "max_per_class", "b0", "b1", "b2", "s0", "s1", "s2")
    given: dict[str, Any] = {
        "boxes": (f32,),
        "scores": (f32,),
        "iou_threshold": (f32,),
        "kept": (i64,),
        "counts": (i64,),
    }
    return {**given, **({"score_threshold": (f32,)} if has_score_threshold else {}), **dict.fromkeys(numbers, i64)}


@kernel(_params)
def non_max_suppression(
    k: Kernel,
    *,
    is_centered: bool,
    has_score_threshold: bool,
    iou_threshold: Buf,
    size: Val,
    max_per_class: Val,
    **given: Any,
) -> None:
    """The boxes kept for each class of each batch."""
    threshold, classes = iou_threshold.load(), given["classes"]
    heap = Heap(k, (k.scratch(i32), k.scratch(i64, size * 8)), lambda a, b: worse(b, a))
    corners = [k.scratch(f32, size * 16 + max_per_class * (4 * i)) for i in range(BOX_VALUES)]
    with k.share(given["units"]) as unit:
        boxes = given["boxes"].at(unit // classes * given["b0"])
        scores = given["scores"].at(unit // classes * given["s0"] + unit % classes * given["s1"])
        candidates = k.var(0)
        with k.loop(0, size) as i:
            score = scores.load(i * given["s2"])
            passes = (
                score > given["score_threshold"].load() if has_score_threshold else score.eq(score) | score.ne(score)
            )
            with k.when(passes):
                heap.store(candidates.get(), (key_of(k, -score, f32, descending=False), i))
                candidates += 1
        heap.heapify(candidates.get())
        number = k.var(0)
        with k.loop_while(lambda: (candidates.get() > 0) & (number.get() < max_per_class) & ~is_stopped(k)):
            _, box = heap.load(0)
            candidates.set(candidates.get() - 1)
            heap.sift_down(0, candidates.get(), heap.load(candidates.get()))
            own = _corners(k, boxes.at(box * given["b1"]), given["b2"], is_centered=is_centered)
            with k.when(~_overlaps(k, own, corners, number.get(), threshold)):
                for buffer, side in zip(corners, own, strict=True):
                    buffer.store(number.get(), side)
                given["kept"].store(unit * max_per_class + number.get(), box)
                number += 1
        given["counts"].store(unit, number.get())


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
