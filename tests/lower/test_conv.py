"""Convolutions and poolings as groups: their sizes, and what becomes part of them."""

from __future__ import annotations

import pytest

from sardonyx.lower.claims import refusals
from sardonyx.lower.groups import Convolution, Pool
from tests.lower.agree import compare, kinds, lowered, parse

SIZES = ({"n": 2, "h": 9, "w": 8}, {"n": 1, "h": 4, "w": 5}, {"n": 0, "h": 4, "w": 4})

IMAGE = "float[n,4,h,w] x, float[6,4,3,3] k, float[6] b"
CASES = {
    "plain": ("y = Conv(x, k)", IMAGE, "float[n,6,p,q] y", ["Convolution(Conv)"]),
    "bias and activation": (
        "a = Conv<pads = [1, 1, 1, 1]>(x, k, b) y = Relu(a)", IMAGE, "float[n,6,h,w] y", ["Convolution(Conv Relu)"]
    ),
    "gate": (
        "a = Conv<strides = [2, 2]>(x, k, b) s = Sigmoid(a) y = Mul(a, s)", IMAGE, "float[n,6,p,q] y",
        ["Convolution(Conv Sigmoid Mul)"],
    ),
    "residual": (
        "a = Conv<pads = [1, 1, 1, 1]>(x, k, b) c = Add(a, r) y = Relu(c)",
        f"{IMAGE}, float[n,6,h,w] r", "float[n,6,h,w] y", ["Convolution(Conv Add Relu)"],
    ),
    "scale of each channel": (
        "a = Conv<pads = [1, 1, 1, 1]>(x, k, b) y = Mul(a, s)",
        f"{IMAGE}, float[n,6,1,1] s", "float[n,6,h,w] y", ["Convolution(Conv Mul)"],
    ),
    "both are asked for": (
        "a = Conv(x, k, b) y = Tanh(a)", IMAGE, "float[n,6,p,q] a, float[n,6,p,q] y", ["Convolution(Conv Tanh)"]
    ),
    "in channels last order": (
        "a = Conv(x, k) y = Transpose<perm = [0, 2, 3, 1]>(a)", IMAGE, "float[n,p,q,6] y",
        ["Convolution(Conv Transpose)"],
    ),
    "a reduction stays apart": (
        "a = Conv(x, k) y = GlobalAveragePool(a)", IMAGE, "float[n,6,1,1] y",
        ["Convolution(Conv)", "Loop(GlobalAveragePool)"],
    ),
    "same upper": (
        'y = Conv<auto_pad = "SAME_UPPER", strides = [2, 3]>(x, k, b)', IMAGE, "float[n,6,p,q] y", ["Convolution(Conv)"]
    ),
    "same lower": (
        'y = Conv<auto_pad = "SAME_LOWER", strides = [2, 3]>(x, k, b)', IMAGE, "float[n,6,p,q] y", ["Convolution(Conv)"]
    ),
    "groups": (
        "y = Conv<group = 2, dilations = [2, 1], pads = [2, 0, 2, 1]>(x, k)",
        "float[n,4,h,w] x, float[6,2,3,3] k", "float[n,6,p,q] y", ["Convolution(Conv)"],
    ),
    "halves": ("y = Conv(x, k)", "float16[n,4,h,w] x, float16[6,4,3,3] k", "float16[n,6,p,q] y", ["Convolution(Conv)"]),
    "one axis": (
        "y = Conv<pads = [1, 1]>(x, k)", "float[n,4,w] x, float[6,4,3] k", "float[n,6,w] y", ["Convolution(Conv)"]
    ),
    "one window": (
        "y = AveragePool<kernel_shape = [3, 5]>(x)", "float[n,4,3,5] x", "float[n,4,1,1] y", ["Loop(AveragePool)"]
    ),
    "largest": (
        "a = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x) y = Relu(a)",
        "float[n,4,h,w] x", "float[n,4,p,q] y", ["Pool(MaxPool Relu)"],
    ),
    "means": (
        "y = AveragePool<kernel_shape = [2, 3], pads = [0, 1, 1, 1]>(x)", "float[n,4,h,w] x", "float[n,4,p,q] y",
        ["Pool(AveragePool)"],
    ),
    "means that count padding": (
        "y = AveragePool<kernel_shape = [2, 3], pads = [0, 1, 1, 1], count_include_pad = 1>(x)",
        "float[n,4,h,w] x", "float[n,4,p,q] y", ["Pool(AveragePool)"],
    ),
    "rounded up": (
        "y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x)",
        "float[n,4,h,w] x", "float[n,4,p,q] y", ["Pool(MaxPool)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_groups(name: str) -> None:
    *text, expected = CASES[name]
    sizes = SIZES[:1] if name == "rounded up" else SIZES
    assert kinds(compare(parse(*text), *sizes)) == expected


def test_automatic_pads_are_numbers_of_the_sizes() -> None:
    (group,) = lowered(parse('y = Conv<auto_pad = "SAME_UPPER">(x, k)', IMAGE, "float[n,6,h,w] y")).groups
    assert isinstance(group, Convolution) and group.window.pads == (1, 1)


def test_end_padding_counts_if_count_include_pad_is_set() -> None:
    text = "y = AveragePool<kernel_shape = [2, 2], pads = [0, 0, 1, 1]{}>(x)"
    for attribute, ends in (("", None), (", count_include_pad = 1", (1, 1))):
        (group,) = lowered(parse(text.format(attribute), "float[n,4,h,w] x", "float[n,4,h,w] y")).groups
        assert isinstance(group, Pool) and group.ends == ends


def test_memory_blocks_keep_the_length_of_their_input() -> None:
    """Windows that look back and ahead, as feed-forward sequential memory networks have them: padded on both sides, cut
    off, and padded again where the cut took too much. The length stays one name, however many blocks there are.
    """
    text = [
        f"b{i} = Conv<group = 4, pads = [2, 2]>(x{i}, k) c{i} = Slice(b{i}, zero, back, two) d{i} = Add(x{i}, c{i}) "
        f"e{i} = Conv<group = 4, pads = [2, 2]>(x{i}, k) f{i} = Slice(e{i}, three, far, two) g{i} = Pad(f{i}, pads) "
        f"h{i} = Add(d{i}, g{i}) r{i} = Relu(h{i}) x{i + 1} = Add(r{i}, x{i})"
        for i in range(6)
    ]
    given = "x0 = Identity(x) "
    numbers = {"zero": 0, "two": 2, "three": 3, "back": -2, "far": 2**63 - 1}
    given += " ".join(f"{name} = Constant<value_ints = [{n}]>()" for name, n in numbers.items())
    given += " pads = Constant<value_ints = [0, 0, 0, 0, 0, 1]>() "
    graph = parse(given + " ".join(text), "float[n,4,t] x, float[4,1,3] k", "float[n,4,t] x6")
    assert {value.shape for node in graph.nodes if node.op_type == "Relu" for value in node.outputs} == {("n", 4, "t")}
    compare(graph, {"n": 2, "t": 9}, {"n": 1, "t": 2}, {"n": 3, "t": 1})


REFUSED = {
    "kernel": ("y = Conv(x, k)", "float[1,4,9,9] x, float[6,4,r,3] k", "float[1,6,p,7] y", "size of the kernel"),
    "channels": ("y = Conv(x, k)", "float[1,5,9,9] x, float[6,4,3,3] k", "float[1,6,7,7] y", "channels"),
    "bias": ("y = Conv(x, k, b)", "float[1,4,9,9] x, float[6,4,3,3] k, float[5] b", "float[1,6,7,7] y", "bias"),
    "window": ("y = MaxPool<kernel_shape = [9, 9]>(x)", "float[1,4,5,5] x", "float[1,4,p,q] y", "is less than 0"),
    "places": (
        "y, i = MaxPool<kernel_shape = [6, 6]>(x)", "float[1,4,9,9] x", "float[1,4,4,4] y, int64[1,4,4,4] i",
        "more than 32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_a_reason(name: str) -> None:
    *text, reason = REFUSED[name]
    (why,) = refusals(parse(*text)).values()
    assert why is not None and reason in why
