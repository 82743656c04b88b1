"""Every past finding as a few lines that build it, and the files of ``fuzz/corpus``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, parser

from fuzz.cases import Case, Run, load, to_tensor

FOLDER = Path(__file__).resolve().parent / "corpus"
DEMO = Path(__file__).resolve().parent.parent / "demo" / "digits.onnx"
Entry = tuple[str, Callable[[], tuple[bytes, list[dict[str, Any]]]]]
ENTRIES: list[Entry] = []
rng = np.random.default_rng(32)


def f32(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def text(
    name: str,
    graph: str,
    *feeds: Mapping[str, Any],
    edit: Callable[[onnx.ModelProto], None] | None = None,
    opset: int = 21,
) -> None:
    """An entry from ONNX's text; ``edit`` states what the text cannot."""

    def make() -> tuple[bytes, list[dict[str, Any]]]:
        domains = '"ai.onnx.ml" : 5, "com.microsoft" : 1, "ai.onnx.preview" : 1'
        head = f'<ir_version: 10, opset_import: ["" : {opset}, {domains}]>\n'
        model = parser.parse_model(head + graph)
        if edit is not None:
            edit(model)
        return model.SerializeToString(), [dict(f) for f in feeds]

    ENTRIES.append((name, make))


def case(seed: int, index: int, mutation: int | None = None) -> Case:
    """The entries in turn."""
    name, make = every()[index % len(every())]
    made = make()
    if isinstance(made, Case):
        return made
    model, feeds = made
    return Case(f"corpus/{seed}/{index}", model, tuple(Run(f, "plain") for f in feeds), operator=f"corpus {name}")


@functools.cache
def every() -> list[Any]:
    files = [(path.stem, functools.partial(load, path)) for path in sorted(FOLDER.glob("*.zip"))]
    return [*ENTRIES, *files]


# -- empty batches


def _digits() -> tuple[bytes, list[dict[str, Any]]]:
    shape = [d.dim_value or 1 for d in onnx.load(str(DEMO)).graph.input[0].type.tensor_type.shape.dim]
    return DEMO.read_bytes(), [
        {"image": np.zeros([0, *shape[1:]], np.uint8)},
        {"image": np.ones([2, *shape[1:]], np.uint8)},
    ]


ENTRIES.append(("empty batch of the demo", _digits))


def _weights(*tensors: tuple[str, Any]) -> Callable[[onnx.ModelProto], None]:
    return lambda model: model.graph.initializer.extend([to_tensor(a, n) for n, a in tensors])


def _unstated(model: onnx.ModelProto) -> None:
    """Inputs of any rank."""
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")


text(
    "empty batch of pools and convolutions",
    """g (float[n,32,14,14] x) => (y) {
        a = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
        b = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(a, w)
        y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b)
    }""",
    {"x": f32(0, 32, 14, 14)}, {"x": f32(1, 32, 14, 14)},
    edit=_weights(("w", f32(64, 32, 3, 3))),
)  # fmt: skip
text(
    "empty batch of a product",
    "g (float[n,64] x) => (y) { y = MatMul(x, w) }",
    {"x": f32(0, 64)},
    {"x": f32(3, 64)},
    edit=_weights(("w", f32(64, 64))),
)
text("empty batch of a softmax", "g (float[n,k] x) => (y) { y = Softmax(x) }", {"x": f32(0, 5)}, {"x": f32(5, 0)})
text(
    "convolution of nothing by single elements",
    "g (float[2,4,n] x) => (y, s) { y, s = CausalConvWithState(x, w) }",
    {"x": f32(2, 4, 0)},
    {"x": f32(2, 4, 3)},
    edit=_weights(("w", f32(4, 1, 1))),
    opset=27,
)
text(
    "trees of leaves alone, and no feature",
    """g (float[n,f] x) => (y) { y = ai.onnx.ml.TreeEnsembleRegressor<n_targets=2, aggregate_function="MIN",
        nodes_treeids=[0,1], nodes_nodeids=[0,0], nodes_featureids=[0,4], nodes_values=[-0.8,-1.9],
        nodes_modes=["LEAF","LEAF"], nodes_truenodeids=[0,0], nodes_falsenodeids=[0,0], target_treeids=[0,1],
        target_nodeids=[0,0], target_ids=[1,0], target_weights=[0.6,-0.8]>(x) }""",
    *({"x": f32(3, n)} for n in (0, 2)),
    edit=_unstated,
)
text(
    "trees of two billion targets",
    """g (float[n,2] x) => (y) { y = ai.onnx.ml.TreeEnsembleRegressor<n_targets=2147483648, base_values=[1.0],
        nodes_treeids=[0], nodes_nodeids=[0], nodes_featureids=[0], nodes_values=[0.5], nodes_modes=["LEAF"],
        nodes_truenodeids=[0], nodes_falsenodeids=[0], target_treeids=[0], target_nodeids=[0], target_ids=[1],
        target_weights=[0.6]>(x) }""",
    {"x": f32(3, 2)},
)
text(
    "responses of more channels than there are",
    "g (float[n,c,h,w] x) => (y) { y = LRN<size=2147483648, bias=2.0>(x) }",
    {"x": f32(1, 3, 4, 9)},
)
text(
    "a stride past every image",
    "g (float[n,8,h,v] x) => (y) { y = Conv<group=8, strides=[9223372036854775807,2], dilations=[2,3]>(x, w) }",
    {"x": f32(1, 8, 5, 17)},
    edit=_weights(("w", f32(8, 1, 3, 3))),
)
text(
    "integers above a half",
    "g (int64[n,3] x) => (y) { y = ai.onnx.ml.Binarizer<threshold=-0.5>(x) }",
    {"x": rng.integers(-2, 3, (2, 3))},
)
text(
    "caches of one axis",
    "g (float[1,1,2,2] x, float[?] c, int64[1,2] p) => (y) { y = RotaryEmbedding<num_heads=0>(x, c, c, p) }",
    {"x": f32(1, 1, 2, 2), "c": f32(1), "p": np.zeros((1, 2), np.int64)},
    opset=23,
)

# -- stated shapes that are not so

text(
    "Concat stated shorter",
    "g (float[?] a, float[?] b) => (float[4] y) { y = Concat<axis=0>(a, b) }",
    {"a": f32(64), "b": f32(100)},
    {"a": f32(2), "b": f32(1)},
)
text(
    "Concat stated shorter inside",
    "g (float[?] a, float[?] b) => (y) <float[4] c> { c = Concat<axis=0>(a, b)\n y = Relu(c) }",
    {"a": f32(64), "b": f32(100)},
)
text(
    "Slice stated longer",
    "g (float[?] x, int64[1] e) => (float[8] y) { y = Slice(x, s, e) }",
    {"x": f32(8), "e": i64(3)},
    edit=_weights(("s", i64(0))),
)
text(
    "MaxUnpool stated smaller",
    """g (float[n,c,h,w] x, int64[n,c,h,w] i) => (float[1,1,2,2] y) {
        y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i)
    }""",
    {"x": f32(1, 1, 2, 2), "i": np.array([5, 7, 13, 15]).reshape(1, 1, 2, 2)},
)
text(
    "Pad stated smaller",
    "g (float[?] x, int64[2] p) => (float[3] y) { y = Pad(x, p) }",
    {"x": f32(3), "p": i64(50, 50)},
)
text(
    "Tile stated smaller", "g (float[?] x, int64[1] r) => (float[3] y) { y = Tile(x, r) }", {"x": f32(3), "r": i64(40)}
)
text(
    "CenterCropPad stated smaller",
    "g (float[?] x, int64[1] s) => (float[3] y) { y = CenterCropPad(x, s) }",
    {"x": f32(3), "s": i64(90)},
)
text(
    "DepthToSpace stated smaller",
    "g (float[?,?,?,?] x) => (float[1,1,2,2] y) { y = DepthToSpace<blocksize=2>(x) }",
    {"x": f32(1, 8, 4, 4)},
)
text(
    "GridSample stated smaller",
    "g (float[?,?,?,?] x, float[?,?,?,?] p) => (float[1,1,1,1] y) { y = GridSample(x, p) }",
    {"x": f32(1, 2, 4, 4), "p": f32(1, 9, 9, 2)},
)
text(
    "loss stated smaller",
    'g (float[?,?] x, int64[?] t) => (float[1] y) { y = NegativeLogLikelihoodLoss<reduction="none">(x, t) }',
    {"x": f32(50, 3), "t": rng.integers(0, 3, 50)},
)
text(
    "ArrayFeatureExtractor of one index",
    "g (float[n,3] x) => (float[n,5] y) { y = ai.onnx.ml.ArrayFeatureExtractor(x, i) }",
    {"x": f32(4, 3)},
    edit=_weights(("i", np.array(1, np.int64))),
)
text(
    "Conv with a stale size",
    "g (float[1,2,?,?] x) => (float[1,3,4,4] y) { y = Conv(x, w) }",
    {"x": f32(1, 2, 9, 9)},
    edit=_weights(("w", f32(3, 2, 3, 3))),
)
text(
    "Split with stale sizes",
    "g (float[?] x, int64[2] s) => (float[2] a, float[2] b) { a, b = Split(x, s) }",
    {"x": f32(9), "s": i64(4, 5)},
)
text(
    "Expand with a stale size",
    "g (float[1] x, int64[1] s) => (float[2] y) { y = Expand(x, s) }",
    {"x": f32(1), "s": i64(30)},
)
text(
    "Reshape with a stale size",
    "g (float[?] x, int64[2] s) => (float[2,2] y) { y = Reshape(x, s) }",
    {"x": f32(30), "s": i64(5, 6)},
)
text("ConstantOfShape with a stale size", "g (int64[1] s) => (float[2] y) { y = ConstantOfShape(s) }", {"s": i64(30)})
text(
    "Range with a stale size",
    "g (int64 n) => (int64[2] y) { y = Range(z, n, o) }",
    {"n": np.int64(30)},
    edit=_weights(("z", np.int64(0)), ("o", np.int64(1))),
)
text(
    "Resize with a stale size",
    "g (float[1,1,?,?] x, int64[4] s) => (float[1,1,2,2] y) { y = Resize(x, , , s) }",
    {"x": f32(1, 1, 3, 3), "s": i64(1, 1, 9, 9)},
)
text(
    "MaxPool with a stale size",
    "g (float[1,1,?,?] x) => (float[1,1,2,2] y) { y = MaxPool<kernel_shape=[2,2]>(x) }",
    {"x": f32(1, 1, 9, 9)},
)
text(
    "AffineGrid with a stale size",
    "g (float[1,2,3] t, int64[4] s) => (float[1,2,2,2] y) { y = AffineGrid(t, s) }",
    {"t": f32(1, 2, 3), "s": i64(1, 1, 7, 7)},
)
text(
    "GatherND with a stale size",
    "g (float[4] x, int64[?,1] i) => (float[2] y) { y = GatherND(x, i) }",
    {"x": f32(4), "i": rng.integers(0, 4, (40, 1))},
)
text(
    "a stale output goes back to the input", "g (float[n,2] x) => (float[1,2] y) { y = Identity(x) }", {"x": f32(5, 2)}
)
text(
    "ReduceMax of a wrong rank",
    "g (float[?,?] x) => (y) <float[2,3,4] a> { a = Relu(x)\n y = ReduceMax(a, axes) }",
    {"x": f32(3, 4)},
    edit=_weights(("axes", i64(2))),
)
text(
    "Squeeze of a wrong rank",
    "g (float[?,?] x) => (y) <float[3,4,1] a> { a = Relu(x)\n y = Squeeze(a, axes) }",
    {"x": f32(3, 4)},
    edit=_weights(("axes", i64(2))),
)

# -- types


def _casting_loop() -> tuple[bytes, list[dict[str, Any]]]:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Cast", ["s"], ["s2"], to=3), helper.make_node("Identity", ["k"], ["k2"])],
        "body",
        [info("i", 7, []), info("k", 9, []), info("s", 11, [64])],
        [info("k2", 9, []), info("s2", 3, [64])],
    )
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)
    graph = helper.make_graph([loop], "g", [info("trips", 7, []), info("x", 11, [64])], [info("y", 11, [64])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model.SerializeToString(), [{"trips": np.int64(n), "x": np.arange(64.0)} for n in (3, 0)]


ENTRIES.append(("a Loop that casts its state", _casting_loop))
text("Sigmoid of integers", "g (int32[3] x) => (y) { y = Sigmoid(x) }", {"x": np.arange(3, dtype=np.int32)})

# -- operands

text("an operand of a Concat left out", 'g (float[n] x) => (y) { y = Concat<axis=-1>("", x) }', {"x": f32(2)})
text(
    "Reshape of nothing to more than there are addresses",
    "g (float[n] x, int64[3] s) => (y) { y = Reshape<allowzero=1>(x, s) }",
    {"x": f32(0), "s": i64(0, 0, (1 << 63) - 1)},
)
text(
    "FlexAttention of another rank",
    "g (float[4,8,16] q, float[2,4,6,16] k, float[1,2,4,6,16] v) => (y) { y = ai.onnx.preview.FlexAttention(q, k, v) }",
    {"q": f32(4, 8, 16), "k": f32(2, 4, 6, 16), "v": f32(1, 2, 4, 6, 16)},
    opset=26,
)
text(
    "RoiAlign of an empty image",
    "g (float[1,1,?,?] x, float[1,4] r, int64[1] b) => (y) { y = RoiAlign(x, r, b) }",
    {"x": f32(1, 1, 0, 0), "r": f32(1, 4), "b": i64(0)},
)
text(
    "RoiAlign of a huge region",
    "g (float[1,1,4,4] x, float[1,4] r, int64[1] b) => (y) { y = RoiAlign<sampling_ratio=0>(x, r, b) }",
    {"x": f32(1, 1, 4, 4), "r": np.array([[0, 0, 1e9, 1e9]], np.float32), "b": i64(0)},
)
text("CumSum along a vector", "g (float[3] x, int64[2] a) => (y) { y = CumSum(x, a) }", {"x": f32(3), "a": i64(0, 0)})
text(
    "Resize by 1e30",
    "g (float[1,1,2,2] x, float[4] s) => (y) { y = Resize(x, , s) }",
    {"x": f32(1, 1, 2, 2), "s": np.array([1, 1, 1e30, 1e30], np.float32)},
)
text(
    "a zero in reshapes that follow each other",
    "g (float[2,0] x) => (y) { a = Reshape<allowzero=1>(x, s)\n y = Reshape<allowzero=1>(a, t) }",
    {"x": f32(2, 0)},
    edit=_weights(("s", i64(0, 3)), ("t", i64(-1, 3))),
)
text(
    "SVM with large features",
    """g (float[n,2] x) => (y) {
        y = ai.onnx.ml.SVMRegressor<kernel_type="RBF", kernel_params=[0.5,0.0,3.0], n_supports=2, post_transform="NONE",
            coefficients=[1.0,-2.0], rho=[0.1], support_vectors=[1000.0,1001.0,1002.5,999.5]>(x)
    }""",
    {"x": np.array([[1000.5, 1000.5], [1001.7, 999.9]], np.float32)},
)

# -- names and feeds


def _named(*names: str) -> Callable[[onnx.ModelProto], None]:
    def edit(model: onnx.ModelProto) -> None:
        dims = [d for v in model.graph.input for d in v.type.tensor_type.shape.dim]
        for dim, name in zip(dims, names, strict=True):
            dim.dim_param = name

    return edit


CONCAT = "g (float[a] x, float[b] z) => (y, w) { y = Concat<axis=0>(x, z)\n c = Relu(x)\n w = Concat<axis=0>(y, c) }"
text("a size named ?in1", CONCAT, {"x": f32(3), "z": f32(50)}, edit=_named("?in1", "?in0"))
text(
    "integer weights of a run's number of channels",
    "g (uint8[n, c, h, k] x, uint8[f, d, 3, 3] w, uint8 a, uint8 b) => (y) { y = ConvInteger(x, w, a, b) }",
    {
        "x": rng.integers(0, 255, (1, 4, 8, 8)).astype(np.uint8),
        "w": rng.integers(0, 255, (5, 4, 3, 3)).astype(np.uint8),
        "a": np.array(3, np.uint8),
        "b": np.array(7, np.uint8),
    },
)
text(
    "more directions than scan inputs",
    """g (float[2] x0, float[3, 2] x1) => (y0, y1) {
    y0, y1 = Scan <num_scan_inputs = 1, scan_input_directions = [1, 0, 0], body = b (float[2] s, float[2] n)
    => (float[2] t, float[2] r) { t = Add(s, n) r = Identity(t) }> (x0, x1) }""",
    {"x0": f32(2), "x1": f32(3, 2)},
)
text(
    "more directions than the first Scan has scan inputs",
    """g (float[1, 2] x0, float[1, 3, 2] x1) => (y0, y1) {
    y0, y1 = Scan <num_scan_inputs = 1, directions = [1, 0, 0], body = b (float[2] s, float[2] n)
    => (float[2] t, float[2] r) { t = Add(s, n) r = Identity(t) }> ("", x0, x1) }""",
    {"x0": f32(1, 2), "x1": f32(1, 3, 2)},
    opset=8,
)
text(
    "MelWeightMatrix up to no frequency",
    "g (int64 m, int64 n, int64 r, float a, float b) => (y) { y = MelWeightMatrix(m, n, r, a, b) }",
    *(
        {"m": np.int64(8), "n": np.int64(16), "r": np.int64(8192), "a": np.float32(1), "b": np.float32(b)}
        for b in (-3e38, 3e38, np.nan, np.inf, 4000)
    ),
)
text(
    "Pad that cuts off more than there is",
    "g (float[n] x, int64[2] p) => (y) { y = Pad(x, p) }",
    *({"x": f32(4), "p": i64(*p)} for p in ((2, -5), (-5, 2), (3, -5), (-6, 3), (-2, -3), (-2, -2), (1, -2))),
)
text(
    "where the largest of padding alone lies",
    "g (float[2, 3, 4, 6] x) => (y, i) { y, i = MaxPool<kernel_shape=[2, 3], strides=[2, 2], pads=[0, 0, 2, 1]>(x) }",
    {"x": f32(2, 3, 4, 6)},
)
text(
    "a window that is smaller than its stride",
    'g (uint8[1, 2, 28] x) => (y, i) { y, i = MaxPool<kernel_shape=[2], strides=[4], auto_pad="SAME_UPPER">(x) }',
    {"x": rng.integers(0, 255, (1, 2, 28)).astype(np.uint8)},
)
text(
    "a product of integers in a float of 8 bits",
    """g (uint8[5,7] a, int8[7,n] b, float s) => (y) <float u = {0.05}, uint8 p = {3}, int8[1] q = {-2}> {
        y = QLinearMatMul(a, s, p, b, s, q, u, z)
    }""",
    {"a": rng.integers(0, 9, (5, 7)).astype(np.uint8), "b": rng.integers(-9, 9, (7, 3)).astype(np.int8), "s": f32()},
    edit=_weights(("z", np.array(-0.375, ml_dtypes.float8_e4m3fn))),
)
text(
    "pads beside auto_pad",
    """g (float[1,3,12,16] x, uint8[2,4,14,8] q, uint8[1,4,5,5] w, float s, uint8 z) => (y, m, c) {
        y = AveragePool<kernel_shape=[2,2], strides=[4,4], pads=[1,0,3,0], ceil_mode=1, auto_pad="VALID">(x)
        m = MaxPool<kernel_shape=[2,2], strides=[4,4], pads=[1,0,3,0], ceil_mode=1, auto_pad="VALID">(x)
        c = QLinearConv<strides=[3,3], pads=[0,2,0,2], auto_pad="SAME_LOWER">(q, s, z, w, s, z, s, z)
    }""",
    {
        "x": f32(1, 3, 12, 16),
        "q": rng.integers(0, 9, (2, 4, 14, 8)).astype(np.uint8),
        "w": rng.integers(0, 9, (1, 4, 5, 5)).astype(np.uint8),
        "s": np.float32(0.3),
        "z": np.uint8(3),
    },
)
text(
    "an integer convolution of an image of no columns",
    """g (uint8[3,8,7,k] x, uint8[4,2,1,1] w) => (y) {
        y = ConvInteger<kernel_shape=[1,1], strides=[2,2], dilations=[3,3], auto_pad="SAME_LOWER", group=4>(x, w)
    }""",
    *({"x": np.ones((3, 8, 7, n), np.uint8), "w": np.ones((4, 2, 1, 1), np.uint8)} for n in (0, 3)),
)
text(
    "transposed windows with gaps between them",
    """g (float[n,4,5,6] x) => (y, z) {
        y = ConvTranspose<auto_pad="SAME_LOWER", strides=[5,4], group=2>(x, w)
        z = ConvTranspose<auto_pad="SAME_UPPER", strides=[1,5]>(x, w, b)
    }""",
    {"x": f32(2, 4, 5, 6)},
    {"x": f32(1, 4, 5, 6)},
    edit=_weights(("w", f32(4, 2, 2, 1)), ("b", f32(2))),
)
text(
    "pools of dilated windows that cover the image",
    """g (float[1,2,6,9] x) => (y, z) {
        y = LpPool<kernel_shape=[5,5], strides=[2,2], dilations=[2,3], auto_pad="SAME_UPPER", ceil_mode=1>(x)
        z = AveragePool<kernel_shape=[2,2], strides=[4,4], dilations=[2,9], auto_pad="SAME_LOWER", ceil_mode=1>(x)
    }""",
    {"x": f32(1, 2, 6, 9)},
)
text(
    "recurrences in halves over no steps",
    """g (float16[t,2,3] x, float16[1,2,4] h) => (y, z, w) {
        a, y = GRU<hidden_size=4>(x, g, r, "", "", h)
        b, z = RNN<hidden_size=4>(x, f, e, "", "", h)
        c, w = LSTM<hidden_size=4>(x, l, m, "", "", h)
    }""",
    *({"x": f32(n, 2, 3).astype(np.float16), "h": f32(1, 2, 4).astype(np.float16)} for n in (0, 2)),
    edit=_weights(
        *(
            (name, f32(1, 4 * gates, n).astype(np.float16))
            for gates, names in ((3, "gr"), (1, "fe"), (4, "lm"))
            for name, n in zip(names, (3, 4), strict=True)
        )
    ),
)
text(
    "a loss of nothing",
    "g (float[n,3,4] x, int64[n,4] t) => (y) { y = NegativeLogLikelihoodLoss(x, t) }",
    *({"x": f32(n, 3, 4), "t": rng.integers(0, 3, (n, 4))} for n in (0, 2)),
)
text(
    "bytes between which a linear Upsample lies",
    'g (int8[1,2,n,6] x) => (y) { y = Upsample<mode="linear">(x, s) }',
    {"x": rng.integers(-9, 9, (1, 2, 5, 6)).astype(np.int8)},
    edit=_weights(("s", np.array([1, 1, 2, 1.5], np.float32))),
    opset=9,
)
text(
    "an Upsample that keeps the sizes",
    "g (float[1,2,3,n] x) => (y) { y = Upsample(x, s) }",
    *({"x": f32(1, 2, 3, n)} for n in (1, 3, 5)),
    edit=_weights(("s", np.array([1, 1, 1.3, 1], np.float32))),
    opset=9,
)
text(
    "the variance of equal elements",
    "g (float[n] x) => (y) { y = MeanVarianceNormalization<axes=[-1]>(x) }",
    {"x": np.full(2, 3.783531, np.float32)},
)
text(
    "MeanVarianceNormalization over no axes",
    "g (float[2, 3, n, 2] x) => (y) { y = MeanVarianceNormalization<axes: ints=[]>(x) }",
    {"x": f32(2, 3, 4, 2)},
)
text(
    "ScatterND at one place",
    "g (float[4, 3, n] x, float[n] u) => (y) { y = ScatterND(x, i, u) }",
    {"x": f32(4, 3, 5), "u": f32(5)},
    edit=_weights(("i", i64(-3, 1))),
)
TREE = """leaf_targetids=[0, 1, 0, 1], n_targets=2, nodes_falseleafs=[0, 1, 1], nodes_falsenodeids=[2, 2, 3],
    nodes_featureids=[0, 0, 0], nodes_trueleafs=[0, 1, 1], nodes_truenodeids=[1, 0, 1], tree_roots=[0],
    nodes_modes=uint8[3] {0, 0, 0}"""
text(
    "a forest of halves",
    f"""g (float16[3, 2] x) => (y) {{ y = ai.onnx.ml.TreeEnsemble<{TREE},
        leaf_weights=float16[4] {{17723, 18959, 51741, 18230}},
        nodes_splits=float16[3] {{16968, 15565, 17459}}>(x) }}""",
    {"x": np.array([[1.2, 3.4], [-0.12, 1.66], [4.14, 1.77]], np.float16)},
)
text(
    "a forest whose splits have more digits than its features",
    f"""g (float[3, 2] x) => (y) {{ y = ai.onnx.ml.TreeEnsemble<{TREE},
        leaf_weights=double[4] {{5.23, 12.12, -12.23, 7.21}}, nodes_splits=double[3] {{3.14, 1.2, 4.2}}>(x) }}""",
    {"x": np.array([[1.2, 3.4], [3.14, 1.66], [4.2, 1.77]], np.float32)},
)
text(
    "a forest with no such aggregate",
    f"""g (float[3, 2] x) => (y) {{ y = ai.onnx.ml.TreeEnsemble<aggregate_function=255, {TREE},
        leaf_weights=float[4] {{5.23, 12.12, -12.23, 7.21}}, nodes_splits=float[3] {{3.14, 1.2, 4.2}}>(x) }}""",
    {"x": f32(3, 2)},
)
text(
    "a product of sizes with many terms",
    """g (float[n, c, h, w] x) => (y) {
        a = Tile(x, r)
        b = Conv<kernel_shape=[2, 2], pads=[1, 1, 1, 1], strides=[2, 2]>(a, k)
        d = Transpose<perm=[0, 1, 3, 2]>(b)
        y = MatMul(b, d)
    }""",
    {"x": f32(1, 4, 4, 4)},
    edit=_weights(("r", i64(3, 1, 3, 3)), ("k", f32(32, 4, 2, 2))),
)
text(
    "indices of a OneHot that are past int64",
    "g (uint64[n] x, float[2] v) => (y) { d = Constant<value_int=5>() y = OneHot(x, d, v) }",
    {"x": np.array([2, (1 << 64) - 5, 1 << 63], np.uint64), "v": f32(2)},
)
text(
    "indices of a OneHot that are no numbers",
    "g (float[n] x, float[2] v) => (y) { d = Constant<value_int=1>() y = OneHot(x, d, v) }",
    {"x": np.array([np.nan, 0, np.inf, -np.inf, 1e30], np.float32), "v": f32(2)},
)
text(
    "axes of a reduction that are named twice",
    "g (float[n,m,3] x) => (y) { a = Constant<value_ints=[1,0,-2]>() y = ReduceMean<keepdims=0>(x, a) }",
    {"x": f32(2, 4, 3)},
)
text(
    "ArgMax over an empty axis of nothing",
    "g (float[n,m] x) => (y) { y = ArgMax<axis=1>(x) }",
    {"x": f32(0, 0)},
    {"x": f32(2, 3)},
)
text(
    "categories that are named twice",
    """g (int64[n] x) => (y, z) { y = ai.onnx.ml.OneHotEncoder<cats_int64s=[1,2,2]>(x)
        z = ai.onnx.ml.CategoryMapper<cats_int64s=[1,2,2], cats_strings=["a","b","c"]>(x) }""",
    {"x": i64(1, 2, 0)},
)
text("a size named ?2", CONCAT, {"x": f32(3), "z": f32(50)}, edit=_named("?2", "?1"))
text("one name, two sizes", CONCAT, {"x": f32(3), "z": f32(50)}, edit=_named("n", "n"))
text("a long name", CONCAT, {"x": f32(3), "z": f32(50)}, edit=_named("n" * 100_000, "+-*/()" * 20_000))


def _override() -> tuple[bytes, list[dict[str, Any]]]:
    info = helper.make_tensor_value_info
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    graph = helper.make_graph(
        [node], "g", [info("x", 1, [6]), info("s", 7, [2])], [info("y", 1, None)], [to_tensor(i64(2, 3), "s")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model.SerializeToString(), [{"x": f32(6), "s": i64(3, 2)}, {"x": f32(6)}]


ENTRIES.append(("a shape that is fed over its initializer", _override))


def _views() -> tuple[bytes, list[dict[str, Any]]]:
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Transpose", [f"v{i}"], [f"v{i + 1}"], perm=[1, 0]) for i in range(3000)]
    graph = helper.make_graph(nodes, "g", [info("v0", 1, ["n", 3])], [onnx.ValueInfoProto(name="v3000")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString(), [
        {"v0": f32(2, 3)}
    ]


ENTRIES.append(("three thousand views", _views))
