"""Operators given indices, axes, patterns and tables that make no sense, and numbers that are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

from tests.model.hostile.cases import ANY, Case, model, node, untyped
from tests.model.hostile.sizes import F2, IMAGE, SEQUENCE, VAST, one

NAN = np.float32(np.nan)
BOXES = np.array([[[0, 0, 1, 1], [0, 0, 2, 2]]], np.float32)
SCORES = np.array([[[0.5, 0.6]]], np.float32)
STRINGS = np.array(["a b", "c"], object)

WRONG: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "Reshape to too many": ("Reshape", (F2, [3, 3]), {}),
    "Reshape with two -1": ("Reshape", (F2, [-1, -1]), {}),
    "Reshape with -2": ("Reshape", (F2, [-2, 3]), {}),
    "Reshape 0 beyond the rank": ("Reshape", (F2, [2, 3, 0]), {}),
    "Reshape to 2^62": ("Reshape", (F2, [VAST, 4]), {}),
    "Reshape to rank 100": ("Reshape", (np.ones(1, np.float32), [1] * 100), {}),
    "Squeeze of 2": ("Squeeze", (F2, [0]), {}),
    "Squeeze axis 9": ("Squeeze", (F2, [9]), {}),
    "Unsqueeze axis twice": ("Unsqueeze", (F2, [0, 0]), {}),
    "Unsqueeze to rank 100": ("Unsqueeze", (F2, list(range(98))), {}),
    "Transpose twice the axis": ("Transpose", (F2,), {"perm": [0, 0]}),
    "Transpose axis 5": ("Transpose", (F2,), {"perm": [0, 5]}),
    "Transpose too short": ("Transpose", (F2,), {"perm": [0]}),
    "Concat of ranks": ("Concat", (F2, np.ones(3, np.float32)), {"axis": 0}),
    "Concat axis 9": ("Concat", (F2, F2), {"axis": 9}),
    "Concat of shapes": ("Concat", (F2, np.ones((3, 4), np.float32)), {"axis": 0}),
    "Split negative": ("Split", (F2, [-1, 3]), {"outputs": "y z"}),
    "Split not enough": ("Split", (F2, [1]), {"outputs": "y"}),
    "Split axis 9": ("Split", (F2, [1, 1]), {"axis": 9, "outputs": "y z"}),
    "Split with two plans": ("Split", (F2, [1, 1]), {"num_outputs": 2, "outputs": "y z"}),
    "Split into 0": ("Split", (F2,), {"num_outputs": 0, "outputs": "y"}),
    "Gather beyond": ("Gather", (F2, [0, 9]), {}),
    "Gather before": ("Gather", (F2, [-3]), {}),
    "Gather 2^62": ("Gather", (F2, [VAST]), {}),
    "Gather axis 9": ("Gather", (F2, [0]), {"axis": 9}),
    "Gather from nothing": ("Gather", (np.ones((0, 3), np.float32), [0]), {}),
    "GatherElements beyond": ("GatherElements", (F2, [[0, 9, 0]]), {}),
    "GatherElements too large": ("GatherElements", (F2, np.zeros((5, 5), np.int64)), {"axis": 0}),
    "GatherND beyond": ("GatherND", (F2, [[9, 9]]), {}),
    "GatherND batch 9": ("GatherND", (F2, [[0]]), {"batch_dims": 9}),
    "ScatterElements beyond": ("ScatterElements", (F2, [[0, 9, 0]], np.ones((1, 3), np.float32)), {}),
    "ScatterElements shapes": ("ScatterElements", (F2, [[0, 1]], np.ones((1, 3), np.float32)), {}),
    "ScatterElements mode": ("ScatterElements", (F2, [[0, 1, 0]], np.ones((1, 3), np.float32)), {"reduction": "bogus"}),
    "ScatterND beyond": ("ScatterND", (F2, [[9]], np.ones((1, 3), np.float32)), {}),
    "ScatterND shapes": ("ScatterND", (F2, [[0]], np.ones((2, 2), np.float32)), {}),
    "TensorScatter beyond": ("TensorScatter", (SEQUENCE, SEQUENCE, [VAST, 0, 0]), {}),
    "Slice step 0": ("Slice", (F2, [0], [1], [0], [0]), {}),
    "Slice axis 9": ("Slice", (F2, [0], [1], [9]), {}),
    "Slice axis twice": ("Slice", (F2, [0, 0], [1, 1], [0, 0]), {}),
    "Slice lengths": ("Slice", (F2, [0, 0], [1]), {}),
    "TopK too many": ("TopK", (F2, [9]), {"outputs": "y z"}),
    "TopK negative": ("TopK", (F2, [-1]), {"outputs": "y z"}),
    "TopK 2^62": ("TopK", (F2, [VAST]), {"outputs": "y z"}),
    "TopK axis 9": ("TopK", (F2, [1]), {"axis": 9, "outputs": "y z"}),
    "ArgMax axis 9": ("ArgMax", (F2,), {"axis": 9}),
    "ArgMax of nothing": ("ArgMax", (np.ones((0, 3), np.float32),), {"axis": 0}),
    "ReduceSum axis 9": ("ReduceSum", (F2, [9]), {}),
    "Softmax axis 9": ("Softmax", (F2,), {"axis": 9}),
    "CumSum axis 9": ("CumSum", (F2, 9), {}),
    "CumSum axis vector": ("CumSum", (F2, [0, 1]), {}),
    "OneHot negative depth": ("OneHot", ([0, 1], -5, np.array([0, 1], np.float32)), {}),
    "OneHot axis 9": ("OneHot", ([0, 1], 3, np.array([0, 1], np.float32)), {"axis": 9}),
    "OneHot three values": ("OneHot", ([0, 1], 3, np.array([0, 1, 2], np.float32)), {}),
    "Range step 0": ("Range", (0, 5, 0), {}),
    "Range NaN": ("Range", (NAN, NAN, NAN), {}),
    "Range infinite": ("Range", (np.float32(0), np.float32(np.inf), np.float32(1)), {}),
    "Expand negative": ("Expand", (F2, [-2, 3]), {}),
    "Expand unfit": ("Expand", (F2, [5, 5]), {}),
    "Tile negative": ("Tile", (F2, [-1, 1]), {}),
    "Tile too few": ("Tile", (F2, [1]), {}),
    "ConstantOfShape negative": ("ConstantOfShape", ([-1],), {}),
    "ConstantOfShape rank 100": ("ConstantOfShape", ([1] * 100,), {}),
    "Pad odd": ("Pad", (F2, [1, 1, 1]), {}),
    "Pad negative beyond": ("Pad", (F2, [-9, 0, 0, 0]), {}),
    "Pad mode": ("Pad", (F2, [0, 1, 0, 1]), {"mode": "bogus"}),
    "Pad reflect of one": ("Pad", (np.ones((0, 3), np.float32), [1, 0, 1, 0]), {"mode": "reflect"}),
    "Resize scales negative": ("Resize", (IMAGE, None, np.array([1, 1, -1, 1], np.float32)), {}),
    "Resize scales NaN": ("Resize", (IMAGE, None, np.array([1, 1, np.nan, 1], np.float32)), {}),
    "Resize sizes negative": ("Resize", (IMAGE, None, None, [1, 1, -4, 4]), {}),
    "Resize both": ("Resize", (IMAGE, None, np.ones(4, np.float32), [1, 1, 4, 4]), {}),
    "Resize neither": ("Resize", (IMAGE,), {}),
    "Resize lengths": ("Resize", (IMAGE, None, np.ones(3, np.float32)), {}),
    "Resize mode": ("Resize", (IMAGE, None, np.ones(4, np.float32)), {"mode": "bogus"}),
    "MatMul shapes": ("MatMul", (F2, F2), {}),
    "MatMul scalar": ("MatMul", (F2, np.float32(1)), {}),
    "Gemm shapes": ("Gemm", (F2, F2), {}),
    "Einsum unknown letters": ("Einsum", (F2,), {"equation": "ij->k"}),
    "Einsum junk": ("Einsum", (F2,), {"equation": "%$#!"}),
    "Einsum counts": ("Einsum", (F2,), {"equation": "ij,jk->ik"}),
    "Einsum a thousand letters": ("Einsum", (F2,), {"equation": "i" * 1000 + "->i"}),
    "Conv channels": ("Conv", (IMAGE, np.ones((1, 3, 2, 2), np.float32)), {}),
    "Conv stride 0": ("Conv", (IMAGE, IMAGE), {"strides": [0, 0]}),
    "Conv stride negative": ("Conv", (IMAGE, IMAGE), {"strides": [-1, -1]}),
    "Conv dilation 0": ("Conv", (IMAGE, IMAGE), {"dilations": [0, 0]}),
    "Conv group 0": ("Conv", (IMAGE, IMAGE), {"group": 0}),
    "Conv group 7": ("Conv", (IMAGE, IMAGE), {"group": 7}),
    "Conv pads negative": ("Conv", (IMAGE, IMAGE), {"pads": [-9] * 4}),
    "Conv pads too few": ("Conv", (IMAGE, IMAGE), {"pads": [1]}),
    "Conv kernel_shape": ("Conv", (IMAGE, IMAGE), {"kernel_shape": [9, 9]}),
    "Conv kernel too large": ("Conv", (IMAGE, np.ones((1, 1, 9, 9), np.float32)), {}),
    "Conv auto_pad": ("Conv", (IMAGE, IMAGE), {"auto_pad": "BOGUS"}),
    "ConvTranspose stride 0": ("ConvTranspose", (IMAGE, IMAGE), {"strides": [0, 0]}),
    "MaxPool kernel 0": ("MaxPool", (IMAGE,), {"kernel_shape": [0, 0]}),
    "MaxPool kernel negative": ("MaxPool", (IMAGE,), {"kernel_shape": [-2, -2]}),
    "MaxPool stride 0": ("MaxPool", (IMAGE,), {"kernel_shape": [2, 2], "strides": [0, 0]}),
    "MaxPool rank": ("MaxPool", (IMAGE,), {"kernel_shape": [2, 2, 2]}),
    "MaxUnpool beyond": ("MaxUnpool", (IMAGE, np.full((1, 1, 4, 4), VAST, np.int64)), {"kernel_shape": [2, 2]}),
    "LpPool p 0": ("LpPool", (IMAGE,), {"kernel_shape": [2, 2], "p": 0}),
    "BatchNormalization sizes": ("BatchNormalization", (IMAGE, *[np.ones(9, np.float32)] * 4), {}),
    "InstanceNormalization sizes": (
        "InstanceNormalization",
        (IMAGE, np.ones(9, np.float32), np.ones(9, np.float32)),
        {},
    ),
    "LayerNormalization axis 9": ("LayerNormalization", (F2, F2), {"axis": 9}),
    "GroupNormalization 0 groups": (
        "GroupNormalization",
        (IMAGE, np.ones(1, np.float32), np.ones(1, np.float32)),
        {"num_groups": 0},
    ),
    "LRN size 0": ("LRN", (IMAGE,), {"size": 0}),
    "LSTM shapes": (
        "LSTM",
        (SEQUENCE, np.ones((1, 7, 4), np.float32), np.ones((1, 8, 2), np.float32)),
        {"hidden_size": 2},
    ),
    "LSTM direction": (
        "LSTM",
        (SEQUENCE, np.ones((1, 8, 4), np.float32), np.ones((1, 8, 2), np.float32)),
        {"hidden_size": 2, "direction": "sideways"},
    ),
    "LSTM activation": (
        "LSTM",
        (SEQUENCE, np.ones((1, 8, 4), np.float32), np.ones((1, 8, 2), np.float32)),
        {"hidden_size": 2, "activations": ["a", "b", "c"]},
    ),
    "GRU hidden negative": (
        "GRU",
        (SEQUENCE, np.ones((1, 6, 4), np.float32), np.ones((1, 6, 2), np.float32)),
        {"hidden_size": -2},
    ),
    "GridSample grid rank": ("GridSample", (IMAGE, np.ones((1, 4, 4, 3), np.float32)), {}),
    "GridSample mode": ("GridSample", (IMAGE, np.ones((1, 4, 4, 2), np.float32)), {"mode": "bogus"}),
    "RoiAlign batch beyond": ("RoiAlign", (IMAGE, np.ones((1, 4), np.float32), [9]), {}),
    "RoiAlign rois shape": ("RoiAlign", (IMAGE, np.ones((1, 3), np.float32), [0]), {}),
    "RoiAlign output negative": ("RoiAlign", (IMAGE, np.ones((1, 4), np.float32), [0]), {"output_height": -1}),
    "NonMaxSuppression shapes": ("NonMaxSuppression", (BOXES, np.ones((1, 1, 9), np.float32), [3]), {}),
    "DepthToSpace 0": ("DepthToSpace", (IMAGE,), {"blocksize": 0}),
    "DepthToSpace unfit": ("DepthToSpace", (IMAGE,), {"blocksize": 3}),
    "SpaceToDepth 0": ("SpaceToDepth", (IMAGE,), {"blocksize": 0}),
    "ReverseSequence lengths": ("ReverseSequence", (F2, [9, 9, 9]), {}),
    "QuantizeLinear axis 9": ("QuantizeLinear", (F2, np.ones(3, np.float32)), {"axis": 9}),
    "QuantizeLinear sizes": ("QuantizeLinear", (F2, np.ones(7, np.float32)), {"axis": 1}),
    "DequantizeLinear block -1": (
        "DequantizeLinear",
        (np.ones((2, 4), np.int8), np.ones((2, 2), np.float32)),
        {"axis": 1, "block_size": -1},
    ),
    "Trilu of a vector": ("Trilu", (np.ones(3, np.float32),), {}),
    "Det of no square": ("Det", (F2,), {}),
    "Compress axis 9": ("Compress", (F2, np.array([True])), {"axis": 9}),
    "Unique axis 9": ("Unique", (F2,), {"axis": 9}),
    "BitShift direction": ("BitShift", (np.ones(2, np.uint8), np.ones(2, np.uint8)), {"direction": "UP"}),
    "Cast text to float": ("Cast", (STRINGS,), {"to": 1}),
    "Cast text to int": ("Cast", (STRINGS,), {"to": 7}),
    "Div int by 0": ("Div", ([1, 2], [0, 0]), {}),
    "Mod int by 0": ("Mod", ([1, 2], [0, 0]), {}),
    "DFT axis 9": ("DFT", (np.ones((1, 4, 1), np.float32), None, 9), {}),
    "DFT of 3 parts": ("DFT", (np.ones((1, 4, 3), np.float32),), {}),
    "STFT step 0": ("STFT", (np.ones((1, 100, 1), np.float32), 0, None, 10), {}),
    "STFT frame 0": ("STFT", (np.ones((1, 100, 1), np.float32), 1, None, 0), {}),
    "HannWindow negative": ("HannWindow", (-5,), {}),
    "MelWeightMatrix negative": ("MelWeightMatrix", (-5, 8, 16000, np.float32(0), np.float32(8000)), {}),
    "SequenceAt of nothing": ("SequenceEmpty", (), {"dtype": 99}),
    "StringSplit count": ("StringSplit", (STRINGS,), {"maxsplit": -(1 << 62), "outputs": "y z"}),
    "StringNormalizer case": ("StringNormalizer", (STRINGS,), {"case_change_action": "BOGUS"}),
    "RegexFullMatch bad pattern": ("RegexFullMatch", (STRINGS,), {"pattern": "(("}),
    "RegexFullMatch deep pattern": ("RegexFullMatch", (STRINGS,), {"pattern": "(" * 5000 + "a" + ")" * 5000}),
    "RegexFullMatch vast repeat": ("RegexFullMatch", (STRINGS,), {"pattern": "(a{1000}){1000}{1000}"}),
    "RandomNormal negative": ("RandomNormal", (), {"shape": [-3]}),
    "RandomNormal type": ("RandomNormal", (), {"shape": [3], "dtype": -(1 << 63)}),
    "RandomUniform type": ("RandomUniform", (), {"shape": [3], "dtype": 1 << 31}),
    "Multinomial of nothing": ("Multinomial", (np.ones((2, 0), np.float32),), {"sample_size": 3}),
    "Attention heads": ("Attention", (SEQUENCE, SEQUENCE, SEQUENCE), {"q_num_heads": 3, "kv_num_heads": 3}),
    "Attention heads 0": ("Attention", (SEQUENCE, SEQUENCE, SEQUENCE), {"q_num_heads": 0, "kv_num_heads": 0}),
    "RotaryEmbedding positions": (
        "RotaryEmbedding",
        (SEQUENCE, np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), [[9, 9], [9, 9], [9, 9]]),
        {"num_heads": 1},
    ),
    "RotaryEmbedding caches of one axis": (
        "RotaryEmbedding",
        (np.ones((1, 1, 2, 2), np.float32), np.ones(2, np.float32), np.ones(2, np.float32), [[0, 1]]),
        {},
    ),
    "NegativeLogLikelihoodLoss beyond": ("NegativeLogLikelihoodLoss", (F2, [0, 9]), {}),
    "Col2Im blocks": ("Col2Im", (np.ones((1, 4, 4), np.float32), [3, 3], [0, 0]), {}),
    "CenterCropPad negative": ("CenterCropPad", (F2, [-1, -1]), {}),
    "Size of the unknown": ("Shape", (F2,), {"start": 1 << 62, "end": -(1 << 62)}),
}

MAY_RUN = {
    "Pad negative beyond",
    "Div int by 0",
    "Mod int by 0",
    "Range NaN",
    "LpPool p 0",
    "Size of the unknown",
    "DFT of 3 parts",
    "StringSplit count",
    "ReverseSequence lengths",
    "RegexFullMatch vast repeat",
    "RegexFullMatch deep pattern",
    "Einsum a thousand letters",
    "CumSum axis vector",
    "Conv pads negative",
    "Unsqueeze to rank 100",
    "Slice axis twice",
    "Attention heads",
    "GatherElements too large",
    "Expand negative",
    "Split with two plans",
    "Split into 0",
    "Resize both",
}

FINE: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "Slice extremes": ("Slice", (F2, [-(1 << 63)], [(1 << 63) - 1], [0], [(1 << 63) - 1]), {}),
    "Slice extremes backwards": ("Slice", (F2, [(1 << 63) - 1], [-(1 << 63)], [0], [-(1 << 63)]), {}),
    "Slice past the end": ("Slice", (F2, [VAST], [VAST], [0]), {}),
    "Clip turned round": ("Clip", (F2, np.float32(5), np.float32(-5)), {}),
    "Clip NaN": ("Clip", (F2, NAN, NAN), {}),
    "QuantizeLinear NaN scale": ("QuantizeLinear", (F2, NAN), {}),
    "QuantizeLinear zero scale": ("QuantizeLinear", (F2, np.float32(0)), {}),
    "QuantizeLinear infinite scale": ("QuantizeLinear", (F2, np.float32(np.inf)), {}),
    "DequantizeLinear NaN scale": ("DequantizeLinear", (np.ones(3, np.int8), NAN), {}),
    "Cast NaN to int": ("Cast", (np.full(3, np.nan, np.float32),), {"to": 6}),
    "Cast infinite to int": ("Cast", (np.full(3, np.inf, np.float32),), {"to": 2}),
    "Sqrt negative": ("Sqrt", (np.full(3, -1, np.float32),), {}),
    "Log zero": ("Log", (np.zeros(3, np.float32),), {}),
    "Div by 0": ("Div", (F2, np.zeros(3, np.float32)), {}),
    "Exp overflow": ("Exp", (np.full(3, 1e30, np.float32),), {}),
    "BitShift far": ("BitShift", (np.ones(2, np.uint8), np.full(2, 200, np.uint8)), {"direction": "RIGHT"}),
    "GridSample NaN": ("GridSample", (IMAGE, np.full((1, 2, 2, 2), np.nan, np.float32)), {}),
    "GridSample infinite": (
        "GridSample",
        (IMAGE, np.full((1, 2, 2, 2), np.inf, np.float32)),
        {"padding_mode": "reflection"},
    ),
    "GridSample far": ("GridSample", (IMAGE, np.full((1, 2, 2, 2), 1e30, np.float32)), {"padding_mode": "border"}),
    "RoiAlign NaN": ("RoiAlign", (IMAGE, np.full((1, 4), np.nan, np.float32), [0]), {}),
    "RoiAlign infinite": ("RoiAlign", (IMAGE, np.array([[0, 0, np.inf, np.inf]], np.float32), [0]), {}),
    "RoiAlign vast": ("RoiAlign", (IMAGE, np.array([[0, 0, 1e9, 1e9]], np.float32), [0]), {}),
    "MaxRoiPool NaN": ("MaxRoiPool", (IMAGE, np.full((1, 5), np.nan, np.float32)), {"pooled_shape": [2, 2]}),
    "NonMaxSuppression NaN": (
        "NonMaxSuppression",
        (BOXES * NAN, SCORES * NAN, [3], np.float32(0.5), np.float32(0)),
        {},
    ),
    "NonMaxSuppression NaN threshold": ("NonMaxSuppression", (BOXES, SCORES, [3], NAN, NAN), {}),
    "NonMaxSuppression 2^62": ("NonMaxSuppression", (BOXES, SCORES, [VAST]), {}),
    "TopK of NaN": ("TopK", (np.full((2, 3), np.nan, np.float32), [2]), {"outputs": "y z"}),
    "Mean of nothing": ("ReduceMean", (np.ones((0, 3), np.float32), [0]), {}),
    "RegexFullMatch evil (a+)+": ("RegexFullMatch", (np.array(["a" * 40 + "!"], object),), {"pattern": "(a+)+"}),
    "RegexFullMatch evil (a|a)*": ("RegexFullMatch", (np.array(["a" * 40 + "!"], object),), {"pattern": "(a|a)*"}),
    "RegexFullMatch evil (a|aa)+": ("RegexFullMatch", (np.array(["a" * 60 + "!"], object),), {"pattern": "(a|aa)+"}),
    "RegexFullMatch evil (.*)*x": ("RegexFullMatch", (np.array(["a" * 40], object),), {"pattern": "(.*)*(.*)*x"}),
    "RegexFullMatch evil a?": ("RegexFullMatch", (np.array(["a" * 30], object),), {"pattern": "a?" * 30 + "a" * 30}),
    "StringSplit to the bone": (
        "StringSplit",
        (np.array([" ".join("a" * 10_000)] + ["b"] * 100, object),),
        {"outputs": "y z"},
    ),
    "STFT of nothing": ("Gather", (F2, np.zeros((0,), np.int64)), {}),
    "Einsum nothing": ("Einsum", (np.ones((0, 3), np.float32),), {"equation": "ij->"}),
}


def cases() -> Iterator[Case]:
    for name, (op_type, arguments, attrs) in WRONG.items():
        yield Case(name, one(op_type, *arguments, **attrs), "runs?" if name in MAY_RUN else ANY)
    for name, (op_type, arguments, attrs) in FINE.items():
        yield Case(name, one(op_type, *arguments, **attrs), "runs?")
    yield from machine_learning()


def machine_learning() -> Iterator[Case]:
    """ai.onnx.ml: tables that contradict themselves."""

    def ml(op_type: str, outputs: str = "y", **attrs: Any) -> onnx.ModelProto:
        attrs = _filled(attrs)
        return model(
            [node("Unsqueeze", "x zero", "x2"), node(op_type, "x2", outputs, domain="ai.onnx.ml", **attrs)],
            onnx.numpy_helper.from_array(np.zeros(1, np.int64), "zero"),
            outputs=[untyped("y")],
            imports={"ai.onnx.ml": 3},
        )

    tree: dict[str, Any] = dict(
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[0.5, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights=[1.0, 2.0],
        n_targets=1,
    )
    yield Case("tree: fine", ml("TreeEnsembleRegressor", **tree), None)
    for name, change in {
        "child that is not there": {"nodes_truenodeids": [77, 0, 0]},
        "node that is its own child": {"nodes_truenodeids": [0, 0, 0]},
        "children in a ring": {
            "nodes_modes": ["BRANCH_LEQ"] * 3,
            "nodes_truenodeids": [1, 2, 0],
            "nodes_falsenodeids": [2, 0, 1],
        },
        "feature beyond": {"nodes_featureids": [99, 0, 0]},
        "feature negative": {"nodes_featureids": [-1, 0, 0]},
        "unknown mode": {"nodes_modes": ["BRANCH_MAYBE", "LEAF", "LEAF"]},
        "lists of different lengths": {"nodes_values": [0.5]},
        "no nodes": {k: [] for k in tree if k.startswith("nodes")},
        "target beyond": {"target_ids": [0, 99]},
        "target negative": {"target_ids": [0, -1]},
        "target of an unknown node": {"target_nodeids": [1, 55]},
        "2^40 targets": {"n_targets": 1 << 40},
        "node given twice": {"nodes_nodeids": [0, 1, 1]},
        "negative ids": {"nodes_treeids": [-1, -1, -1]},
        "aggregate": {"aggregate_function": "BOGUS"},
        "transform": {"post_transform": "BOGUS"},
    }.items():
        yield Case(f"tree: {name}", ml("TreeEnsembleRegressor", **{**tree, **change}), "runs?")
    for name, made in {
        "ArrayFeatureExtractor": model(
            node("ArrayFeatureExtractor", "x c", domain="ai.onnx.ml"),
            onnx.numpy_helper.from_array(np.array([99]), "c"),
            imports={"ai.onnx.ml": 3},
        ),
        "LinearRegressor": ml("LinearRegressor", coefficients=[1.0], targets=99),
        "LinearClassifier": ml("LinearClassifier", "y z", coefficients=[1.0], classlabels_ints=[0, 1, 2]),
        "SVMRegressor": ml("SVMRegressor", n_supports=99, support_vectors=[1.0], coefficients=[1.0], rho=[0.0]),
        "SVMClassifier": ml(
            "SVMClassifier", "y z", vectors_per_class=[5, 5], support_vectors=[1.0], coefficients=[1.0], rho=[0.0]
        ),
        "Normalizer": ml("Normalizer", norm="BOGUS"),
        "Scaler": ml("Scaler", offset=[1.0] * 9, scale=[1.0] * 9),
        "Imputer": ml("Imputer", imputed_value_floats=[1.0] * 9),
        "LabelEncoder": ml("LabelEncoder", keys_floats=[1.0, 2.0], values_floats=[1.0]),
        "OneHotEncoder": ml("OneHotEncoder"),
        "ZipMap": ml("ZipMap", classlabels_int64s=[1]),
        "Binarizer": ml("Binarizer", threshold=float("nan")),
    }.items():
        yield Case(f"{name}: tables unfit", made, "runs?")
    pool: dict[str, Any] = dict(
        mode="TF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=0,
        ngram_counts=[0, 2],
        ngram_indexes=[0, 1, 2],
        pool_int64s=[1, 2, 3, 4],
    )
    for name, change in {
        "fine": {},
        "pool too short": {"pool_int64s": [1]},
        "pool missing": {"pool_int64s": []},
        "counts beyond": {"ngram_counts": [0, 99]},
        "counts negative": {"ngram_counts": [0, -5]},
        "counts falling": {"ngram_counts": [3, 1]},
        "indexes beyond": {"ngram_indexes": [0, 1, 1 << 40]},
        "indexes negative": {"ngram_indexes": [0, 1, -1]},
        "grams 0": {"min_gram_length": 0, "max_gram_length": 0},
        "grams turned round": {"min_gram_length": 5, "max_gram_length": 1},
        "grams 2^40": {"max_gram_length": 1 << 40},
        "skip 2^40": {"max_skip_count": 1 << 40},
        "skip negative": {"max_skip_count": -1},
        "weights unfit": {"weights": [1.0], "mode": "TFIDF"},
        "mode": {"mode": "BOGUS"},
    }.items():
        made = model(
            [node("Cast", "x", "i", to=7), node("TfIdfVectorizer", "i", **_filled({**pool, **change}))],
            outputs=[untyped()],
        )
        yield Case(f"TfIdfVectorizer: {name}", made, "runs?" if name != "fine" else None)


def _filled(attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes that hold something: an empty list has no kind."""
    return {key: content for key, content in attrs.items() if content != []}
