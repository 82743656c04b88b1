"""Every family of operators, over free sizes that are also 0 and 1."""

from __future__ import annotations

import pytest

from sardonyx.lower.groups import Loop
from tests.lower.agree import compare, parse

NEVER_EMPTY = ("attention", "rotary", "reshape of a transpose", "pads of either sign")
"""Cases that the operators' own meanings do not allow for n = 0."""

SIZES = ({"n": 3, "m": 4}, {"n": 1, "m": 1}, {"n": 5, "m": 1}, {"n": 0, "m": 2})

SIGNS = (
    "h = Shape<end = 1>(x) w = Shape<start = 1>(x) z = Constant<value_ints = [0]>() b = Sub(w, h) e = Sub(h, w) "
    'p = Concat<axis = 0>(b, z, e, z) y = Pad<mode = "{mode}">(x, p)'
)
CASES = {
    **{
        f"pads of either sign, {mode}": (SIGNS.format(mode=mode), "float[n,m] x", "float[k,m] y")
        for mode in ("constant", "edge", "reflect", "wrap")
    },
    # pointwise
    "add": ("y = Add(x, z)", "float[n,m,6] x, float[m,1] z", "float[n,m,6] y"),
    "stretched either way": ("y = Mul(x, z)", "float[n,1,6] x, float[n,m,6] z", "float[n,m,6] y"),
    "where": ("c = Less(x, z) y = Where(c, x, z)", "float[n,m] x, float[m] z", "float[n,m] y"),
    "clip without bounds": ("y = Clip(x)", "float[n,m] x", "float[n,m] y"),
    "optional bound": ("l = Constant<value = float {0.1}>() y = Clip(x, , l)", "float[n,m] x", "float[n,m] y"),
    "squares": ("t = Constant<value = float {2}>() y = Pow(x, t)", "float[n,m] x", "float[n,m] y"),
    "integer power": ("t = Constant<value = float {2}>() y = Pow(x, t)", "int32[n,m] x", "int32[n,m] y"),
    "half": ("a = Exp(x) b = Mul(a, x) y = Tanh(b)", "float16[n,m] x", "float16[n,m] y"),
    "integers": ("a = Div(x, z) y = Mod(a, z)", "int64[n,m] x, int64[n,m] z", "int64[n,m] y"),
    "shift": ('y = BitShift<direction = "LEFT">(x, z)', "uint8[n,m] x, uint8[n,m] z", "uint8[n,m] y"),
    "logic": ("a = And(x, z) y = Not(a)", "bool[n,m] x, bool[n,m] z", "bool[n,m] y"),
    # casts
    "to bool": ("y = Cast<to = 9>(x)", "float[n,m] x", "bool[n,m] y"),
    "to narrow integer": ("y = Cast<to = 3>(x)", "float[n,m] x", "int8[n,m] y"),
    "integer to half": ("y = Cast<to = 10>(x)", "int64[n,m] x", "float16[n,m] y"),
    "through half": ("a = Cast<to = 10>(x) y = Cast<to = 1>(a)", "float[n,m] x", "float[n,m] y"),
    "like": ("y = CastLike(x, z)", "float[n,m] x, int32[1] z", "int32[n,m] y"),
    # reductions
    "sum of an inner axis": (
        "a = Constant<value = int64[1] {1}>() y = ReduceSum(x, a)", "float[n,m,6] x", "float[n,1,6] y"
    ),
    "mean of all": ("y = ReduceMean<keepdims = 0>(x)", "float[n,m] x", "float y"),
    "mean of integers": ("y = ReduceMean<keepdims = 0>(x)", "int32[n,m] x", "int32 y"),
    "norm of integers": ("y = ReduceL2<keepdims = 0>(x)", "int32[n,m] x", "int32 y"),
    "two axes of three": (
        "a = Constant<value = int64[2] {0, 2}>() y = ReduceMax<keepdims = 0>(x, a)", "float[n,m,3] x", "float[m] y"
    ),
    "an axis named twice": (
        "a = Constant<value = int64[3] {1, 0, -2}>() y = ReduceMean<keepdims = 0>(x, a)", "float[n,m,3] x", "float[3] y"
    ),
    "the only element of a scalar": ("a = Constant<value_ints = [-1]>() y = ReduceL2(x, a)", "float x", "float y"),
    "no axes": ("y = ReduceL1<noop_with_empty_axes = 1>(x)", "float[n,m] x", "float[n,m] y"),
    "half sum": ("a = Constant<value = int64[1] {1}>() y = ReduceSum(x, a)", "float16[n,m] x", "float16[n,1] y"),
    "log sum exp": ("a = Constant<value = int64[1] {1}>() y = ReduceLogSumExp(x, a)", "float[n,6] x", "float[n,1] y"),
    "product, least": ("a = ReduceProd(x) b = ReduceMin(x) y = Add(a, b)", "float[n,m] x", "float[1,1] y"),
    "sum of squares": ("a = ReduceSumSquare(x) b = ReduceLogSum(a) y = Add(a, b)", "float[n,m] x", "float[1,1] y"),
    "where the largest is": ("y = ArgMax<axis = 1>(x)", "float[n,6] x", "int64[n,1] y"),
    "where the last least is": (
        "y = ArgMin<axis = 0, keepdims = 0, select_last_index = 1>(x)", "int32[6,m] x", "int64[m] y"
    ),
    "softmax": ("y = Softmax(x)", "float[n,m,6] x", "float[n,m,6] y"),
    "softmax of an inner axis": ("y = Softmax<axis = 1>(x)", "float[n,6,m] x", "float[n,6,m] y"),
    "softmax of halves": ("y = Softmax(x)", "float16[n,m,6] x", "float16[n,m,6] y"),
    "log softmax": ("y = LogSoftmax(x)", "double[n,6] x", "double[n,6] y"),
    "hardmax": ("y = Hardmax<axis = 0>(x)", "float[6,m] x", "float[6,m] y"),
    "global pool": (
        "a = GlobalAveragePool(x) b = GlobalMaxPool(x) y = Add(a, b)", "float[n,3,4,5] x", "float[n,3,1,1] y"
    ),
    # norms
    "layer norm": ("y = LayerNormalization(x, s, b)", "float[n,m,6] x, float[6] s, float[6] b", "float[n,m,6] y"),
    "layer norm of two axes, with statistics": (
        "y, mean, inv = LayerNormalization<axis = 1>(x, s)",
        "float[n,2,6] x, float[2,6] s", "float[n,2,6] y, float[n,1,1] mean, float[n,1,1] inv",
    ),
    "layer norm of halves": (
        "y, mean = LayerNormalization(x, s)", "float16[n,6] x, float16[6] s", "float16[n,6] y, float[n,1] mean"
    ),
    "rms norm": ("y = RMSNormalization(x, s)", "float[n,m,6] x, float[6] s", "float[n,m,6] y"),
    "instance norm": ("y = InstanceNormalization(x, s, s)", "float[n,3,4,5] x, float[3] s", "float[n,3,4,5] y"),
    "group norm": (
        "y = GroupNormalization<num_groups = 2>(x, s, s)", "float[n,6,4] x, float[6] s", "float[n,6,4] y"
    ),
    "batch norm": (
        "v = Abs(s) y = BatchNormalization(x, s, s, s, v)", "float[n,3,m] x, float[3] s", "float[n,3,m] y"
    ),
    "lp norms": ("a = LpNormalization<p = 1>(x) y = LpNormalization<axis = 0>(a)", "float[2,6] x", "float[2,6] y"),
    "mean and variance": ("y = MeanVarianceNormalization<axes = [0, 2]>(x)", "float[2,3,6] x", "float[2,3,6] y"),
    # products
    "matmul": ("y = MatMul(x, z)", "float[n,m,6] x, float[6,5] z", "float[n,m,5] y"),
    "batched": ("y = MatMul(x, z)", "float[n,1,m,6] x, float[3,6,5] z", "float[n,3,m,5] y"),
    "vector, matrix": ("y = MatMul(x, z)", "float[6] x, float[n,6,m] z", "float[n,m] y"),
    "matrix, vector": ("y = MatMul(x, z)", "float[n,m,6] x, float[6] z", "float[n,m] y"),
    "two vectors": ("y = MatMul(x, z)", "float[6] x, float[6] z", "float y"),
    "of integers": ("y = MatMul(x, z)", "int32[n,m,6] x, int32[n,6,5] z", "int32[n,m,5] y"),
    "of halves": ("a = MatMul(x, z) y = Relu(a)", "float16[n,m] x, float16[m,5] z", "float16[n,5] y"),
    "gemm": (
        "y = Gemm<transA = 1, transB = 1, alpha = 0.5, beta = 2.0>(x, z, c)",
        "float[6,n] x, float[m,6] z, float[m] c", "float[n,m] y",
    ),
    "gemm without c": ("y = Gemm<alpha = 0.5>(x, z)", "float[n,6] x, float[6,m] z", "float[n,m] y"),
    # movement
    "transpose": ("y = Transpose<perm = [2, 0, 1]>(x)", "float[n,m,6] x", "float[6,n,m] y"),
    "reshape of a transpose": (
        "t = Transpose<perm = [0, 2, 1]>(x) s = Constant<value = int64[2] {0, -1}>() y = Reshape(t, s)",
        "float[n,m,6] x", "float[n,k] y",
    ),
    "heads": (
        ("s = Constant<value = int64[4] {0, 0, 2, 3}>() r = Reshape(x, s) t = Transpose<perm = [0, 2, 1, 3]>(r) "
         "y = Exp(t)"),
        "float[n,m,6] x", "float[n,2,m,3] y",
    ),
    "squeeze, unsqueeze, flatten": (
        ("a = Constant<value = int64[1] {1}>() u = Unsqueeze(x, a) f = Flatten<axis = 2>(u) g = Unsqueeze(f, a) "
        "y = Squeeze(g, a)"), "float[n,m,6] x", "float[n,k] y",
    ),
    "slice": (
        ("s = Constant<value = int64[2] {1, -3}>() e = Constant<value = int64[2] {9223372036854775807, 5}>() "
        "a = Constant<value = int64[2] {0, 2}>() y = Slice(x, s, e, a)"), "float[n,m,6] x", "float[k,m,2] y",
    ),
    "slice backwards": (
        ("s = Constant<value = int64[1] {-1}>() e = Constant<value = int64[1] {-9223372036854775807}>() "
        "a = Constant<value = int64[1] {1}>() t = Constant<value = int64[1] {-2}>() y = Slice(x, s, e, a, t)"),
        "float[n,m] x", "float[n,k] y",
    ),
    "the last ones": (
        ("s = Constant<value = int64[1] {-2}>() e = Constant<value = int64[1] {9223372036854775807}>() "
        "a = Constant<value = int64[1] {1}>() y = Slice(x, s, e, a)"), "float[n,m] x", "float[n,k] y",
    ),
    "slices from the end": (
        ("s = Constant<value = int64[1] {-4}>() e = Constant<value = int64[1] {-1}>() "
        "a = Constant<value = int64[1] {1}>() y = Slice(x, s, e, a)"), "float[n,m] x", "float[n,k] y",
    ),
    "slices from the end, backwards": (
        ("s = Constant<value = int64[1] {-2}>() e = Constant<value = int64[1] {1}>() "
        "a = Constant<value = int64[1] {1}>() t = Constant<value = int64[1] {-1}>() y = Slice(x, s, e, a, t)"),
        "float[n,m] x", "float[n,k] y",
    ),
    "slices to a size": (
        ("s = Constant<value = int64[1] {-5}>() e = Shape<start = 0, end = 1>(x) "
        "a = Constant<value = int64[1] {1}>() y = Slice(x, s, e, a)"), "float[n,m] x", "float[n,k] y",
    ),
    "split": (
        "a, b, c = Split<axis = 1, num_outputs = 3>(x) t = Mul(a, b) y = Sub(t, c)", "float[n,6] x", "float[n,2] y"
    ),
    "expand": ("s = Shape(z) y = Expand(x, s)", "float[m,1] x, float[n,1,6] z", "float[n,m,6] y"),
    "concat": ("t = Transpose(z) y = Concat<axis = 0>(x, t, x)", "float[n,m] x, float[m,2] z", "float[k,m] y"),
    "pad": (
        "p = Constant<value = int64[4] {1, -1, 0, 2}>() c = Constant<value = float {7}>() y = Pad(x, p, c)",
        "float[n,6] x", "float[k,7] y",
    ),
    "tile": ("r = Constant<value = int64[2] {2, 3}>() y = Tile(x, r)", "float[n,m] x", "float[k,l] y"),
    "depth to space": ("y = DepthToSpace<blocksize = 2>(x)", "float[n,8,2,m] x", "float[n,2,4,l] y"),
    "space to depth": ('y = SpaceToDepth<blocksize = 2>(x)', "float[n,2,4,6] x", "float[n,8,2,3] y"),
    # gathers, and what follows from sizes
    "rows": ("y = Gather(x, i)", "float[3,m] x, int64[n,2] i", "float[n,2,m] y"),
    "rows of an inner axis": ("y = Gather<axis = 1>(x, i)", "float[n,3,m] x, int32[2] i", "float[n,2,m] y"),
    "one row": ("i = Constant<value = int64 {-1}>() y = Gather<axis = 1>(x, i)", "float[n,3] x", "float[n] y"),
    "points": ("y = GatherND(x, i)", "float[3,4,m] x, int64[n,2] i", "float[n,m] y"),
    "shapes": ("s = Shape(x) t = Size(x) u = Add(s, t) y = Cast<to = 1>(u)", "float[n,m] x", "float[2] y"),
    "range": (
        ("s = Shape<start = 0, end = 1>(x) b = Constant<value = int64 {2}>() "
        "e = Constant<value = int64 {1}>() r = Squeeze(s) t = Add(r, e) y = Range(e, t, b)"),
        "float[n,m] x", "int64[k] y",
    ),
    "constant of shape": (
        "s = Shape(x) c = ConstantOfShape<value = float[1] {3}>(s) y = Sub(c, x)", "float[n,m] x", "float[n,m] y"
    ),
    "trilu": ("k = Constant<value = int64 {-1}>() y = Trilu<upper = 0>(x, k)", "float[2,n,m] x", "float[2,n,m] y"),
    "one hot": (
        "d = Constant<value = int64 {3}>() y = OneHot<axis = 1>(x, d, v)", "int64[n,m] x, float[2] v", "float[n,3,m] y"
    ),
    "dropout": ("a, mask = Dropout(x) y = Neg(a)", "float[n,m] x", "float[n,m] y, bool[n,m] mask"),
    # attention
    "attention": (
        "y = Attention<q_num_heads = 4, kv_num_heads = 2>(q, k, v)",
        "float[n,m,8] q, float[n,5,4] k, float[n,5,6] v", "float[n,m,12] y",
    ),
    "attention of four axes, causal, capped": (
        "y = Attention<is_causal = 1, softcap = 2.0, scale = 0.7>(q, k, k)",
        "float[n,2,m,4] q, float[n,2,5,4] k", "float[n,2,m,4] y",
    ),
    "attention with a mask of flags": (
        "y = Attention(q, k, k, mask)", "float[n,2,m,4] q, float[n,2,5,4] k, bool[m,5] mask", "float[n,2,m,4] y"
    ),
    "attention with a past": (
        ("c = Concat<axis = 1>(z, q) s = Transpose<perm = [0, 2, 1]>(c) p = MatMul(q, s) "
        "a = Constant<value = int64[1] {1}>() mask = Unsqueeze(p, a) "
        "y, pk, pv = Attention<q_num_heads = 2, kv_num_heads = 2, is_causal = 1>(q, q, q, mask, k, k)"),
        "float[n,m,8] q, float[n,3,8] z, float[n,2,3,4] k", "float[n,m,8] y, float[n,2,t,4] pk, float[n,2,t,4] pv",
    ),
    "rotary": (
        "y = RotaryEmbedding<num_heads = 2>(x, c, s)",
        "float[n,m,8] x, float[n,m,2] c, float[n,m,2] s", "float[n,m,8] y",
    ),
    "rotary by positions, interleaved, of a part": (
        "y = RotaryEmbedding<interleaved = 1, rotary_embedding_dim = 4>(x, c, c, p)",
        "float[n,2,m,6] x, float[3,2] c, int64[n,m] p", "float[n,2,m,6] y",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_answers_as_the_operators_do(name: str) -> None:
    graph = parse(*CASES[name])
    sizes = [s for s in SIZES if s["n"] or not name.startswith(NEVER_EMPTY)]
    compare(graph, *sizes)


@pytest.mark.parametrize(
    "operator", ["InstanceNormalization(x, one, zero)", "LayerNormalization<axis = 2>(x, ones, zeros)"]
)
def test_scales_of_one_and_biases_of_zero_are_not_read(operator: str) -> None:
    """Exporters write them where groups of channels are normalized as channels."""
    constants = "one = Constant<value_floats = [1.0, 1.0, 1.0]>() zero = Constant<value_floats = [0.0, 0.0, 0.0]>()"
    rows = "f = Constant<value_ints = [5]>() ones = ConstantOfShape<value = float {1.0}>(f) zeros = ConstantOfShape(f)"
    graph = parse(f"{constants} {rows} y = {operator}", "float[n,3,5] x", "float[n,3,5] y")
    (group,) = compare(graph, {"n": 2})
    assert isinstance(group, Loop) and len(group.inputs) == 1
