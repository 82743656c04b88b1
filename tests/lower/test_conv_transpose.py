"""Transposed convolutions as plain ones, against the operator's own meaning."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lower.agree import compare, kinds, parse

SIZES = ({"n": 2, "h": 5, "w": 4}, {"n": 1, "h": 1, "w": 2})

CASES = {
    "2x2, stride 2": ((4, 3, 2, 2), "strides = [2, 2]", 4),
    "3x3": ((4, 3, 3, 3), "", 1),
    "3x3, stride 2, padded": ((4, 3, 3, 3), "strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]", 4),
    "4x4, stride 2": ((4, 3, 4, 4), "strides = [2, 2], pads = [1, 1, 1, 1]", 4),
    "uneven": ((4, 3, 3, 5), "strides = [1, 3], pads = [0, 1, 1, 2]", 3),
    "strides beyond the kernel": ((4, 3, 2, 1), "strides = [3, 2]", 6),
    "dilation": ((4, 3, 3, 2), "dilations = [2, 3]", 1),
    "stride and dilation": ((4, 3, 3, 3), "strides = [2, 2], dilations = [2, 3]", 4),
    "groups": ((4, 3, 3, 3), "group = 2, strides = [2, 1]", 2),
    "one filter of each channel": ((4, 1, 3, 3), "group = 4, strides = [2, 2]", 4),
}


def text(name: str) -> tuple[str, str, str]:
    shape, attributes, _ = CASES[name]
    rng = np.random.default_rng(0)
    numbers = ", ".join(f"{v:.3f}" for v in rng.standard_normal(int(np.prod(shape))))
    weights = f"k = Constant<value = float[{','.join(map(str, shape))}] {{{numbers}}}>()"
    filters = shape[1] * (4 if "group = 4" in attributes else 2 if "group" in attributes else 1)
    body = f"{weights} y = ConvTranspose<{attributes}>(x, k, b)".replace("<>", "")
    return body, f"float[n,4,h,w] x, float[{filters}] b", f"float[n,{filters},p,q] y"


@pytest.mark.parametrize("name", CASES)
def test_one_convolution_for_each_phase(name: str) -> None:
    found = compare(parse(*text(name)), *SIZES)
    assert kinds(found) == ["Convolution(ConvTranspose)"] * CASES[name][2]


@pytest.mark.parametrize("name", CASES)
def test_weights_of_the_run(name: str) -> None:
    body, inputs, outputs = text(name)
    fed = f"{inputs}, float[{','.join(map(str, CASES[name][0]))}] k"
    compare(parse(body[body.index("y = ") :], fed, outputs), *SIZES)


@pytest.mark.parametrize(
    "attributes",
    ["output_shape = [10, 8]", 'auto_pad = "SAME_UPPER"', 'auto_pad = "SAME_LOWER"', "output_shape = [9, 9]"],
)
def test_a_given_size(attributes: str) -> None:
    numbers = ", ".join(f"{v:.3f}" for v in np.random.default_rng(0).standard_normal(27))
    body = (
        f"k = Constant<value = float[1,3,3,3] {{{numbers}}}>() y = ConvTranspose<strides = [2, 2], {attributes}>(x, k)"
    )
    sizes = "9,9" if "9, 9" in attributes else "10,8"
    compare(parse(body, "float[2,1,5,4] x", f"float[2,3,{sizes}] y"))


@pytest.mark.parametrize(
    ("attributes", "sizes"),
    [('auto_pad = "SAME_UPPER"', "25,16"), ('auto_pad = "SAME_LOWER"', "25,16"), ("output_shape = [30, 24]", "30,24")],
)
def test_gaps_between_windows(attributes: str, sizes: str) -> None:
    numbers = ", ".join(f"{v:.3f}" for v in np.random.default_rng(0).standard_normal(12))
    weights = f"k = Constant<value = float[1,3,2,2] {{{numbers}}}>()"
    body = f"{weights} y = ConvTranspose<strides = [5, 4], {attributes}>(x, k, b)"
    compare(parse(body, "float[2,1,5,4] x, float[3] b", f"float[2,3,{sizes}] y"))
