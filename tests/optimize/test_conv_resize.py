"""Convolutions of upsampled images, before and after."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.optimize.rewritten import Case, check

X = {"a": (2, 6, 3, 4), "b": (2, 5, 6, 8)}
TWICE = {"s": np.array([1, 1, 2, 2], np.float32), "w": (6, 11, 1, 1), "c": (6,)}
RESIZE = 'r = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">'
TEXT = RESIZE + "(a, , s) x = Concat<axis=1>(r, b) y = Conv(x, w, c)"
AFTER = ["Conv", "Conv", "Resize", "Add"]
BEFORE = ["Resize", "Concat", "Conv"]

YOLO = Case(TEXT, AFTER, X, TWICE)
CASES = {
    "twice as large": YOLO,
    "without a bias, from the end": replace(YOLO, body=TEXT.replace("axis=1", "axis=-3").replace(", c)", ")")),
    "to a size": replace(
        YOLO,
        body=TEXT.replace("(a, , s)", "(a, , , n)"),
        consts={**TWICE, "n": np.array([2, 6, 6, 8])},
    ),
    "a half more, of any pixels": replace(
        YOLO,
        body=TEXT.replace("asymmetric", "half_pixel").replace("floor", "round_prefer_ceil"),
        feeds={"a": (2, 6, 4, 4), "b": (2, 5, 6, 4)},
        consts={**TWICE, "s": np.array([1, 1, 1.5, 1], np.float32)},
    ),
    "in the middle": Case(
        RESIZE + "(a, , s) x = Concat<axis=1>(b, r, d) y = Conv(x, w, c)",
        ["Concat", *AFTER], {**X, "d": (2, 3, 6, 8)}, {**TWICE, "w": (6, 14, 1, 1)},
    ),
    "two of them": Case(
        RESIZE + "(a, , s) " + RESIZE.replace("r =", "q =") + "(d, , t) x = Concat<axis=1>(r, b, q) y = Conv(x, w, c)",
        ["Conv", "Conv", "Resize", "Add", "Conv", "Resize", "Add"], {**X, "d": (2, 7, 2, 2)},
        {**TWICE, "w": (6, 18, 1, 1), "t": np.array([1, 1, 3, 4], np.float32)},
    ),
    "lengths of the run": replace(YOLO, symbols={"a": "[N, 6, H, W]", "b": '[N, 5, "2*H", "2*W"]'}),
    "one axis": Case(
        RESIZE + "(a, , s) x = Concat<axis=1>(r, b) y = Conv(x, w)",
        AFTER, {"a": (2, 6, 4), "b": (2, 5, 12)}, {"s": np.array([1, 1, 3], np.float32), "w": (4, 11, 1)},
    ),
}  # fmt: skip
KEPT = {
    "smoothed": replace(YOLO, body=TEXT.replace("nearest", "linear", 1), reason="the Resize interpolates (r)"),
    "beyond the image": replace(
        YOLO,
        body=TEXT.replace("asymmetric", "tf_crop_and_resize").replace("(a, , s)", "(a, roi, s)"),
        consts={**TWICE, "roi": np.array([0, 0, -0.5, 0, 1, 1, 1.5, 1], np.float32)},
        reason="the Resize writes an extrapolation value outside of the image (r)",
    ),
    "fewer channels than filters": replace(
        YOLO,
        consts={**TWICE, "w": (7, 11, 1, 1), "c": (7,)},
        reason="the image has 6 channels, fewer than the 7 filters (r)",
    ),
    "read twice": replace(
        YOLO, body=TEXT + " z = Relu(r)", outputs="float[] y, float[] z", reason="the Resize has other readers (r)"
    ),
    "joined for others, too": replace(
        YOLO, body=TEXT + " z = Relu(x)", outputs="float[] y, float[] z", reason="the Concat has other readers (x)"
    ),
    "windows": replace(
        YOLO,
        body=TEXT.replace("Conv(", "Conv<pads=[1,1,1,1]>("),
        consts={**TWICE, "w": (6, 11, 3, 3)},
        reason="the convolution's window is not 1 (w)",
    ),
    "padded": replace(YOLO, body=TEXT.replace("Conv(", "Conv<pads=[1,1,1,1]>("), reason="the convolution is padded"),
    "a stride": replace(
        YOLO, body=TEXT.replace("Conv(", "Conv<strides=[2,2]>("), reason="the convolution has strides or dilations"
    ),
    "lengths that may differ": replace(
        YOLO, symbols={"a": "[N, 6, H, W]", "b": "[N, 5, K, L]"}, reason="the images are not known to have one size (b)"
    ),
    "batches that may differ": replace(
        YOLO, symbols={"a": "[N, 6, 3, 4]", "b": "[M, 5, 6, 8]"}, reason="the images are not known to have one size (b)"
    ),
    "every axis alike": replace(
        YOLO,
        body=TEXT.replace('mode="nearest"', 'mode="nearest", keep_aspect_ratio_policy="not_smaller"').replace(
            "(a, , s)", "(a, , , n)"
        ),
        feeds={**X, "b": (4, 5, 6, 8)},
        consts={**TWICE, "n": np.array([2, 6, 6, 8]), "w": (6, 17, 1, 1)},
        reason="the Resize has axes or keeps the aspect ratio (r)",
    ),
    "nothing else": Case(
        RESIZE + "(a, , s) x = Concat<axis=1>(r, r) y = Conv(x, w)",
        BEFORE,
        X,
        {**TWICE, "w": (6, 12, 1, 1)},
        reason="every input of the Concat is upsampled",
    ),
    "made smaller": replace(
        YOLO,
        feeds={**X, "b": (2, 5, 3, 2)},
        consts={**TWICE, "s": np.array([1, 1, 1, 0.5], np.float32)},
        reason="the Resize does not enlarge the image (r)",
    ),
    "side by side": replace(
        YOLO,
        body=TEXT.replace("axis=1", "axis=2"),
        feeds={**X, "b": (2, 6, 6, 8)},
        consts={**TWICE, "w": (6, 6, 1, 1)},
        reason="the Concat is not along the channels (x)",
    ),
    "grouped": replace(
        YOLO,
        body=TEXT.replace("Conv(", "Conv<group=11>("),
        consts={**TWICE, "w": (11, 1, 1, 1), "c": (11,)},
        reason="the convolution is grouped",
    ),
    "weights are not constant": replace(
        YOLO,
        feeds={**X, "w": (6, 11, 1, 1)},
        consts={k: v for k, v in TWICE.items() if k != "w"},
        reason="the weight is not constant (w)",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_images_are_convolved_before_they_are_upsampled(case: Case) -> None:
    check(case, "ConvolveBeforeResize")


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT.keys())
def test_others_are_left_with_a_reason(case: Case) -> None:
    assert case.reason
    others = ["Relu"] if "z" in case.outputs else []
    report = check(replace(case, after=[*BEFORE, *others]), "ConvolveBeforeResize")
    assert not report.rewrites
