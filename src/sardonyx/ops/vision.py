"""Detection and images: NonMaxSuppression, ImageDecoder."""

from __future__ import annotations

import io

import numpy as np

from sardonyx import errors
from sardonyx.ops.limits import check_elements
from sardonyx.ops.precision import Array, require
from sardonyx.ops.registry import op


def _corners(boxes: Array, center_point_box: int) -> Array:
    """Boxes as (4, count): the smaller and larger coordinate of each side."""
    if center_point_box:
        x, y, half_w, half_h = boxes[:, 0], boxes[:, 1], boxes[:, 2] / 2, boxes[:, 3] / 2
        return np.stack([y - half_h, x - half_w, y + half_h, x + half_w])
    y1, x1, y2, x2 = boxes.T
    return np.stack([np.minimum(y1, y2), np.minimum(x1, x2), np.maximum(y1, y2), np.maximum(x1, x2)])


def _overlaps(box: Array, area: float, others: Array, areas: Array, threshold: float) -> Array:
    """Which of the other boxes have an intersection over union with ``box`` above the threshold."""
    height = np.minimum(box[2], others[2]) - np.maximum(box[0], others[0])
    width = np.minimum(box[3], others[3]) - np.maximum(box[1], others[1])
    both = np.where((height > 0) & (width > 0), height * width, 0)
    union = area + areas - both
    sound = (both > 0) & (area > 0) & (areas > 0) & (union > 0)
    return np.asarray(np.divide(both, union, out=np.zeros_like(both), where=sound) > threshold)


def _suppress(corners: Array, order: Array, limit: int, threshold: float) -> list[int]:
    """Greedily keep the best box and drop those that overlap it; ``order`` is best first."""
    kept: list[int] = []
    areas = (corners[2] - corners[0]) * (corners[3] - corners[1])
    while order.size and len(kept) < limit:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        order = order[~_overlaps(corners[:, best], areas[best], corners[:, order], areas[order], threshold)]
    return kept


@op("NonMaxSuppression")
def non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> Array:
    """Rows (batch, class, box) of the selected boxes; ties by box index."""
    what = "NonMaxSuppression"
    require(boxes.ndim == 3 and boxes.shape[2] == 4, f"{what}: boxes must be (batch, count, 4)", got=boxes.shape)
    fits = scores.ndim == 3 and scores.shape[::2] == boxes.shape[:2]
    require(fits, f"{what}: scores must be (batch, classes, count)", expected=boxes.shape[:2], got=scores.shape)
    require(center_point_box in (0, 1), f"{what}: center_point_box must be 0 or 1", got=center_point_box)
    count, overlap, least = (
        None if v is None or v.size == 0 else v.reshape(-1)[0]
        for v in (max_output_boxes_per_class, iou_threshold, score_threshold)
    )
    limit, threshold = int(count or 0), float(overlap or 0.0)
    require(0 <= threshold <= 1, f"{what}: iou_threshold is out of range", expected="0 to 1", got=threshold)
    rows: list[tuple[int, int, int]] = []
    for batch in range(boxes.shape[0] if limit > 0 else 0):
        corners = _corners(boxes[batch], center_point_box)
        for label, score in enumerate(scores[batch]):
            candidates = np.arange(len(score)) if least is None else np.flatnonzero(score > least)
            order = candidates[np.argsort(-score[candidates], kind="stable")]
            rows += [(batch, label, box) for box in _suppress(corners, order, limit, threshold)]
    return np.array(rows, np.int64).reshape(-1, 3)


FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""The formats that ONNX names. Pillow supports many more, and starts other programs for some of them."""


@op("ImageDecoder")
def image_decoder(encoded_stream: Array, *, pixel_format: str = "RGB") -> Array:
    """An encoded image as (height, width, channels) bytes."""
    try:
        import PIL.Image  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise errors.NotImplemented(
            "ImageDecoder needs Pillow", hint="install it with: pip install sardonyx[image]"
        ) from None
    require(pixel_format in ("RGB", "BGR", "Grayscale"), "ImageDecoder: unknown pixel_format", got=pixel_format)
    try:
        with PIL.Image.open(io.BytesIO(encoded_stream.tobytes()), formats=FORMATS) as image:
            check_elements(3 * image.width * image.height, np.dtype(np.uint8), "the image of ImageDecoder")
            pixels = np.array(image.convert("L" if pixel_format == "Grayscale" else "RGB"))
    except (OSError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise errors.InvalidArgument(f"ImageDecoder: the bytes are no image that can be read: {error}") from None
    if pixel_format == "Grayscale":
        return pixels[:, :, None]
    return pixels[:, :, ::-1] if pixel_format == "BGR" else pixels
