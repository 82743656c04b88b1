"""Convolutions whose outer taps read padding alone, before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.optimize import manager
from sardonyx.optimize.pattern import attribute
from tests.optimize.graphs import parse
from tests.optimize.rewritten import Case, check, unchecked

PAD = "pads = [1, 1, 1, 1]"


def window(case: Case) -> tuple[list[int], list[int]]:
    """The kernel and the pads of the only convolution after the pass."""
    model = unchecked(case)
    manager.run(model.graph, ("InferShapes", "ClipConvWindows"))
    (conv,) = (n for n in model.graph.nodes if "Conv" in n.op_type)
    assert conv.inputs[1] is not None and conv.inputs[1].shape is not None
    kernel = list(conv.inputs[1].shape[2:])
    assert attribute(conv, "kernel_shape") in (None, kernel)
    return kernel, list(attribute(conv, "pads") or [])


CASES: dict[str, tuple[str, Any, Any, list[int], list[int]]] = {
    "one pixel": (f"y = Conv<{PAD}>(x, w, b)", (2, 3, 1, 1), (4, 3, 3, 3), [1, 1], [0, 0, 0, 0]),
    "one row": (f"y = Conv<{PAD}>(x, w, b)", (2, 3, 1, 7), (4, 3, 3, 3), [1, 3], [0, 1, 0, 1]),
    "one pixel, strided": (f"y = Conv<{PAD}, strides = [2, 2]>(x, w)", (1, 3, 1, 1), (4, 3, 3, 3), [1, 1], [0] * 4),
    "dilated": (
        "y = Conv<pads = [3, 3, 3, 3], dilations = [3, 3]>(x, w)", (1, 3, 2, 8), (4, 3, 3, 3), [1, 3], [0, 3, 0, 3]
    ),
    "groups": (f"y = Conv<{PAD}, group = 3>(x, w)", (2, 3, 1, 1), (6, 1, 3, 3), [1, 1], [0] * 4),
    "along a line": ("y = Conv<pads = [4, 4]>(x, w, b)", (2, 3, 3), (4, 3, 9), [5], [2, 2]),
    "in three directions": (
        "y = Conv<pads = [1, 1, 1, 1, 1, 1]>(x, w)", (1, 3, 1, 4, 1), (4, 3, 3, 3, 3), [1, 3, 1], [0, 1, 0, 0, 1, 0]
    ),
    "automatic": ('y = Conv<auto_pad = "SAME_UPPER">(x, w)', (2, 3, 1, 6), (4, 3, 3, 4), [1, 4], [0, 1, 0, 2]),
    "at one end": ("y = Conv<pads = [2, 0, 0, 0]>(x, w)", (2, 3, 1, 3), (4, 3, 3, 3), [1, 3], [0, 0, 0, 0]),
    "fewer outputs than padding": (
        "y = Conv<pads = [1, 1], strides = [5]>(x, w)", (1, 3, 2), (4, 3, 3), [2], [0, 1]
    ),
    "all taps are read": (f"y = Conv<{PAD}>(x, w, b)", (2, 3, 2, 2), (4, 3, 3, 3), [3, 3], [1, 1, 1, 1]),
    "the image begins between taps": (
        "y = Conv<pads = [1, 1], dilations = [2]>(x, w)", (1, 3, 3), (4, 3, 2), [2], [1, 1]
    ),
    "no padding": ("y = Conv(x, w)", (2, 3, 3, 3), (4, 3, 3, 3), [3, 3], []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_taps_that_read_padding_alone_are_dropped(name: str) -> None:
    body, image, weight, kernel, pads = CASES[name]
    case = Case(body, ["Conv"], {"x": image}, {"w": weight, "b": (weight[0],)})
    check(case, "ClipConvWindows")
    assert window(case) == (kernel, pads)


def test_an_axis_that_only_a_run_tells_keeps_its_taps() -> None:
    case = Case(f"y = Conv<{PAD}>(x, w)", ["Conv"], {"x": (2, 3, 1, 6)}, {"w": (4, 3, 3, 3)},
                symbols={"x": "[n, 3, 1, t]"})  # fmt: skip
    check(case, "ClipConvWindows")
    assert window(case) == ([1, 3], [0, 1, 0, 1])


def test_integers_are_padded_with_their_zero_point() -> None:
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (2, 3, 1, 5)).astype(np.uint8)
    weight, zero = rng.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8), np.array(117, np.uint8)
    case = Case(f"y = ConvInteger<{PAD}>(x, w, z)", ["ConvInteger"], {"x": image}, {"w": weight, "z": zero},
                outputs="int32[] y")  # fmt: skip
    check(case, "ClipConvWindows")
    assert window(case) == ([1, 3], [0, 1, 0, 1])


@pytest.mark.parametrize("seed", range(40))
def test_any_window_gives_what_it_gave(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, kernel = rng.integers(1, 6, 2), rng.integers(1, 6, 2)
    attrs = {"pads": rng.integers(0, 5, 4).tolist()}
    attrs |= {name: rng.integers(1, 4, 2).tolist() for name in ("strides", "dilations")}
    reach = (kernel - 1) * attrs["dilations"] + 1
    if (size + attrs["pads"][:2] + attrs["pads"][2:] < reach).any():
        attrs["pads"] = np.maximum(reach - size, 0).tolist() * 2
    text = ", ".join(f"{name} = {given}" for name, given in attrs.items())
    check(Case(f"y = Conv<{text}>(x, w)", ["Conv"], {"x": (1, 2, *size.tolist())}, {"w": (3, 2, *kernel.tolist())}),
          "ClipConvWindows")  # fmt: skip


def test_weights_that_a_run_brings_are_left_alone() -> None:
    model = parse(f"y = Conv<{PAD}>(x, w)", inputs="float[1,3,1,1] x, float[4,3,3,3] w", outputs="float y")
    report = manager.run(model.graph, ("InferShapes", "ClipConvWindows"))
    assert "not constant" in report.declined[0].reason
