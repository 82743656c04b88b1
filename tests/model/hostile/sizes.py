"""Operators asked for more than any machine has, or for sizes that are none: at load, when folding, when running."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

from tests.model.hostile.cases import Case, const, model, node, untyped

HUGE = 1 << 40
VAST = 1 << 62
LAST = (1 << 63) - 1


def one(op_type: str, *arguments: Any, fed: bool = False, outputs: str = "y", **attrs: Any) -> onnx.ModelProto:
    """One node over constants, so that folding would compute it, or, when ``fed``, with a data-dependent detour."""
    names = [f"c{i}" if a is not None else "_" for i, a in enumerate(arguments)]
    constants = [const(n, a) for n, a in zip(names, arguments, strict=True) if a is not None]
    nodes = []
    if fed:
        nodes = [node("ReduceSum", "x", "sum", keepdims=0), node("Sub", "sum sum", "zero")]
        for i, a in enumerate(arguments):
            if a is not None and np.asarray(a).dtype.kind == "i":
                nodes += [node("Cast", "zero", f"z{i}", to=7), node("Add", f"c{i} z{i}", f"d{i}")]
                names[i] = f"d{i}"
    return model([*nodes, node(op_type, " ".join(names), outputs, **attrs)], *constants, outputs=[untyped("y")])


F1 = np.ones(1, np.float32)
F2 = np.ones((2, 3), np.float32)
NOTHING = np.ones((0, 1), np.float32)
IMAGE = np.ones((1, 1, 4, 4), np.float32)
SEQUENCE = np.ones((3, 2, 4), np.float32)

TOO_LARGE: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "ConstantOfShape 2^40": ("ConstantOfShape", ([HUGE],), {}),
    "ConstantOfShape 2^62": ("ConstantOfShape", ([VAST],), {}),
    "ConstantOfShape 2^64": ("ConstantOfShape", ([1 << 32, 1 << 32],), {}),
    "ConstantOfShape 10^9": ("ConstantOfShape", ([10**9],), {}),
    "Expand 2^40": ("Expand", (F1, [HUGE]), {}),
    "Expand 10^9": ("Expand", (F1, [1000, 1000, 1000]), {}),
    "Expand 2^80": ("Expand", (F1, [HUGE, HUGE]), {}),
    "Tile 2^40": ("Tile", (F1, [HUGE]), {}),
    "Tile 2^80": ("Tile", (F2, [HUGE, HUGE]), {}),
    "Tile 10^9": ("Tile", (F2, [10**5, 10**4]), {}),
    "Range 2^62": ("Range", (0, VAST, 1), {}),
    "Range 10^9": ("Range", (0, 10**9, 1), {}),
    "Range tiny steps": ("Range", (np.float32(0), np.float32(1), np.float32(1e-30)), {}),
    "OneHot 2^40": ("OneHot", ([0, 1], HUGE, np.array([0, 1], np.float32)), {}),
    "OneHot 10^9": ("OneHot", ([0, 1], 10**9, np.array([0, 1], np.float32)), {}),
    "Pad 2^40": ("Pad", (F1, [HUGE, HUGE]), {}),
    "Pad 2^62": ("Pad", (F1, [VAST, VAST]), {}),
    "Pad reflect 2^40": ("Pad", (np.ones(3, np.float32), [HUGE, HUGE]), {"mode": "reflect"}),
    "Pad wrap 10^9": ("Pad", (np.ones(3, np.float32), [10**9, 10**9]), {"mode": "wrap"}),
    "CenterCropPad 2^40": ("CenterCropPad", (F2, [HUGE, HUGE]), {}),
    "Resize sizes 2^40": ("Resize", (IMAGE, None, None, [1, 1, HUGE, HUGE]), {}),
    "Resize sizes 10^5": ("Resize", (IMAGE, None, None, [1, 1, 10**5, 10**5]), {"mode": "linear"}),
    "Resize scales 1e30": ("Resize", (IMAGE, None, np.array([1, 1, 1e30, 1e30], np.float32)), {}),
    "Resize scales infinite": ("Resize", (IMAGE, None, np.array([1, 1, np.inf, 1], np.float32)), {}),
    "GridSample 2^40": ("Einsum", (np.ones((200, 200, 200), np.float32),), {"equation": "abc->abc"}),
    "Einsum outer": ("Einsum", (np.ones(1500, np.float32),) * 3, {"equation": "a,b,c->abc"}),
    "Einsum inner": ("Einsum", (np.ones(3000, np.float32),) * 3, {"equation": "a,b,c->"}),
    "MatMul outer": ("MatMul", (np.ones((50_000, 1), np.float32), np.ones((1, 50_000), np.float32)), {}),
    "Gemm outer": ("Gemm", (np.ones((50_000, 1), np.float32), np.ones((1, 50_000), np.float32)), {}),
    "Add outer": ("Add", (np.ones((50_000, 1), np.float32), np.ones((1, 50_000), np.float32)), {}),
    "Where outer": ("Where", (np.ones((50_000, 1), bool), np.ones((1, 50_000), np.float32), F1), {}),
    "Conv pads 2^30": ("Conv", (IMAGE, IMAGE), {"pads": [1 << 30] * 4}),
    "Conv pads 2^62": ("Conv", (IMAGE, IMAGE), {"pads": [VAST] * 4}),
    "Conv dilation 2^40": ("Conv", (IMAGE, IMAGE), {"dilations": [HUGE, HUGE], "auto_pad": "SAME_UPPER"}),
    "ConvTranspose stride 2^40": ("ConvTranspose", (IMAGE, IMAGE), {"strides": [HUGE, HUGE]}),
    "ConvTranspose shape 2^40": ("ConvTranspose", (IMAGE, IMAGE), {"output_shape": [HUGE, HUGE]}),
    "MaxPool pads 2^40": ("MaxPool", (IMAGE,), {"kernel_shape": [HUGE, HUGE], "pads": [HUGE - 1] * 4}),
    "AveragePool kernel 2^40": ("AveragePool", (IMAGE,), {"kernel_shape": [HUGE, HUGE], "auto_pad": "SAME_UPPER"}),
    "MaxUnpool 2^40": (
        "MaxUnpool",
        (IMAGE, np.zeros((1, 1, 4, 4), np.int64), [1, 1, HUGE, HUGE]),
        {"kernel_shape": [2, 2]},
    ),
    "AffineGrid 2^40": ("AffineGrid", (np.ones((1, 2, 3), np.float32), [1, 1, HUGE, HUGE]), {}),
    "RoiAlign 2^40": (
        "RoiAlign",
        (IMAGE, np.ones((1, 4), np.float32), [0]),
        {"output_height": HUGE, "output_width": HUGE},
    ),
    "RoiAlign sampling 2^40": ("RoiAlign", (IMAGE, np.ones((1, 4), np.float32), [0]), {"sampling_ratio": HUGE}),
    "DFT 2^40": ("DFT", (np.ones((1, 4, 1), np.float32), HUGE, 1), {}),
    "HannWindow 2^40": ("HannWindow", (HUGE,), {}),
    "HammingWindow 2^62": ("HammingWindow", (VAST,), {}),
    "BlackmanWindow 10^9": ("BlackmanWindow", (10**9,), {}),
    "MelWeightMatrix 2^40": ("MelWeightMatrix", (HUGE, 8, 16000, np.float32(0), np.float32(8000)), {}),
    "MelWeightMatrix 10^5": ("MelWeightMatrix", (10**5, 10**5, 16000, np.float32(0), np.float32(8000)), {}),
    "RandomNormal 2^40": ("RandomNormal", (), {"shape": [HUGE]}),
    "RandomUniform 10^9": ("RandomUniform", (), {"shape": [10**9]}),
    "Multinomial 2^40": ("Multinomial", (F2,), {"sample_size": HUGE}),
    "SpaceToDepth inverted": ("DepthToSpace", (IMAGE,), {"blocksize": HUGE}),
    "Upsampled by Tile": ("Tile", (np.ones((1000, 1000), np.float32), [300, 300]), {}),
    "Split 2^40": ("Split", (np.ones(4, np.float32), [HUGE, -HUGE + 4]), {"outputs": "y z"}),
    "Unsqueeze 2^40": ("Unsqueeze", (F1, [HUGE]), {}),
    "Trilu 2^62": ("Trilu", (F2, VAST), {}),
    "EyeLike k": ("EyeLike", (np.ones((30_000, 1), np.float32),), {"k": VAST}),
    "GatherND depth": ("GatherND", (F2, np.zeros((1, 9), np.int64)), {}),
    "ReverseSequence 2^62": ("ReverseSequence", (F2, [VAST, VAST, VAST]), {}),
    "Col2Im 2^40": ("Col2Im", (np.ones((1, 4, 4), np.float32), [HUGE, HUGE], [2, 2]), {}),
    "ImageDecoder junk": ("ImageDecoder", (np.frombuffer(b"BM" + bytes(60), np.uint8),), {}),
    "Loop-free cumsum axis": ("CumSum", (F2, HUGE), {}),
    "SplitToSequence 2^40": ("SplitToSequence", (F2, HUGE), {}),
    "SplitToSequence 0": ("SplitToSequence", (F2, 0), {}),
    "STFT hop": ("STFT", (np.ones((1, 100, 1), np.float32), 1, None, HUGE), {}),
    "STFT frame": ("STFT", (np.ones((1, 100, 1), np.float32), HUGE, None, 4), {}),
    "LSTM hidden 2^40": (
        "LSTM",
        (SEQUENCE, np.ones((1, 8, 4), np.float32), np.ones((1, 8, 2), np.float32)),
        {"hidden_size": HUGE},
    ),
    "Reshape nothing to 2^63": ("Reshape", (NOTHING, [0, 0, LAST]), {"allowzero": 1}),
    "Expand nothing to 2^63": ("Expand", (NOTHING, [0, 2, LAST]), {}),
    "ConstantOfShape of nothing times 2^63": ("ConstantOfShape", ([0, 0, LAST],), {}),
    "Tile nothing 2^63 times": ("Tile", (NOTHING, [0, LAST]), {}),
    "BitShift by 10^9": ("BitShift", (np.ones(2, np.uint8), np.full(2, 255, np.uint8)), {"direction": "LEFT"}),
}

MAY_RUN = {
    "Trilu 2^62",
    "EyeLike k",
    "BitShift by 10^9",
    "GridSample 2^40",
    "Einsum inner",
    "SplitToSequence 2^40",
    "STFT hop",
    "STFT frame",
    "AveragePool kernel 2^40",
    "MaxPool pads 2^40",
    "Conv dilation 2^40",
    "RoiAlign sampling 2^40",
    "ReverseSequence 2^62",
}
"""Absurd requests that have an answer."""


def cases() -> Iterator[Case]:
    for name, (op_type, arguments, attrs) in TOO_LARGE.items():
        error = "runs?" if name in MAY_RUN else "SardonyxError"
        yield Case(name, one(op_type, *arguments, **attrs), error)
        if any(np.asarray(a).dtype.kind == "i" for a in arguments if a is not None):
            yield Case(f"{name}, known only when run", one(op_type, *arguments, fed=True, **attrs), error)
    steps = [node("Mul", "x x", "v0")] + [node("Concat", f"v{i} v{i}", f"v{i + 1}", axis=0) for i in range(50)]
    yield Case("doubling by Concat", model(steps, outputs=[untyped("v50")]), "OutOfBudget")
    text = [node("StringConcat", f"s{i} s{i}", f"s{i + 1}") for i in range(50)]
    yield Case(
        "doubling strings",
        model(text, const("s0", np.array(["text"], object)), outputs=[untyped("s50")]),
        "OutOfBudget",
    )
    chain = [node("SequenceConstruct", "x x", "q0")] + [
        n
        for i in range(40)
        for n in (
            node("ConcatFromSequence", f"q{i}", f"t{i}", axis=0),
            node("SequenceConstruct", f"t{i} t{i}", f"q{i + 1}"),
        )
    ]
    yield Case("doubling sequences", model([*chain, node("ConcatFromSequence", "q40", axis=0)]), "OutOfBudget")
    old = {"Upsample 2^40": ("Upsample", 9, (IMAGE, np.array([1, 1, 1e12, 1e12], np.float32)), {})}
    for name, (op_type, opset, arguments, attrs) in old.items():
        made = one(op_type, *arguments, **attrs)
        made.opset_import[0].version = opset
        yield Case(name, made)
