"""Transforms, sums of products by equation, attention's rarer forms, optimizers and features."""

from __future__ import annotations

import pytest

from tests.lower.agree import OPSETS, compare, parse

SIZES = ({"n": 3, "m": 4}, {"n": 1, "m": 1})
NEWEST = '"" : 27, "ai.onnx.ml" : 5'


def _i(name: str, *values: int) -> str:
    shape = "int64" if len(values) == 1 else f"int64[{len(values)}]"
    return f"{name} = Constant<value = {shape} {{{', '.join(map(str, values))}}}>() "


CASES = {
    # transforms
    "real": ("y = DFT(x)", "float[n,10,1] x", "float[n,10,2] y"),
    "complex, inverse": ("y = DFT<inverse = 1>(x)", "float[n,m,12,2] x", "float[n,m,12,2] y"),
    "one side of an outer axis": (_i("a", 1) + "y = DFT<onesided = 1>(x, , a)", "float[n,9,m,1] x", "float[n,5,m,2] y"),
    "back from one side": ("y = DFT<onesided = 1, inverse = 1>(x)", "float[n,6,2] x", "float[n,10,1] y"),
    "back from one side, long": ("y = DFT<onesided = 1, inverse = 1>(x)", "float[n,400,2] x", "float[n,798,1] y"),
    "longer and shorter": (
        _i("l", 16) + "a = DFT(x, l) " + _i("k", 7) + "y = DFT(a, k)", "float[n,10,2] x", "float[n,7,2] y"
    ),
    "one row": ("y = DFT(x)", "float[10,1] x", "float[10,2] y"),
    "one long row": ("y = DFT<inverse = 1, onesided = 1>(x)", "float[400,2] x", "float[798,1] y"),
    "another": ("y = DFT<inverse = 1>(x)", "float[400,2] x", "float[400,2] y"),
    "in two rounds": ("y = DFT(x)", "float[n,1000,2] x", "float[n,1000,2] y"),
    "in three rounds": ("y = DFT<onesided = 1>(x)", "float[1,8192,1] x", "float[1,4097,2] y"),
    "a large prime": ("y = DFT<inverse = 1>(x)", "float[n,1031,1] x", "float[n,1031,2] y"),
    "f64": ("y = DFT(x)", "double[n,600,2] x", "double[n,600,2] y"),
    "halves": ("y = DFT(x)", "float16[n,600,1] x", "float16[n,600,2] y"),
    "frames": (
        _i("s", 4) + _i("l", 16) + "y = STFT(x, s, w, l)", "float[n,64,1] x, float[16] w", "float[n,13,9,2] y"
    ),
    "frames of any signal": (
        _i("s", 4) + _i("l", 9) + "e = Add(x, x) y = STFT<onesided = 0>(e, s, , l)", "float[n,q,2] x",
        "float[n,k,9,2] y"
    ),
    "long frames": (
        _i("s", 100) + "y = STFT(x, s, w)", "float[n,2000] x, float[1024] w", "float[n,10,513,2] y"
    ),
    "windows": (
        ("s = Shape<start = 0, end = 1>(x) t = Squeeze(s) a = HannWindow(t) b = HammingWindow<periodic = 0>(t) "
         "c = BlackmanWindow(t) d = Add(a, b) e = Mul(c, d) y = Mul(e, x)"), "float[m] x", "float[m] y",
    ),
    # equations
    "product": ('y = Einsum<equation = "nmk,kj->jnm">(x, z)', "float[n,m,6] x, float[6,5] z", "float[5,n,m] y"),
    "heads": (
        'y = Einsum<equation = "bqhc,bkhc->bhqk">(x, z)', "float[n,m,3,5] x, float[n,7,3,5] z", "float[n,3,m,7] y"
    ),
    "ellipsis": ('y = Einsum<equation = "...ij,jk">(x, z)', "float[n,m,6] x, float[6,5] z", "float[n,m,5] y"),
    "trace": ('y = Einsum<equation = "bii">(x)', "float[n,4,4] x", "float[n] y"),
    "diagonal": ('y = Einsum<equation = "iib->bi">(x)', "float[4,4,n] x", "float[n,4] y"),
    "three operands": (
        'y = Einsum<equation = "bn,anm,bm->ba">(x, z, w)', "float[n,5] x, float[3,5,m] z, float[n,m] w", "float[n,3] y"
    ),
    "sums of one operand": (
        'y = Einsum<equation = "ij,jk->k">(x, z)', "float16[n,6] x, float16[6,m] z", "float16[m] y"
    ),
    "integers": ('y = Einsum<equation = "ij,kj->ik">(x, z)', "int32[n,6] x, int32[m,6] z", "int32[n,m] y"),
    "gemm of integers": (
        "y = Gemm<transB = 1>(x, z, c)", "int32[n,6] x, int32[m,6] z, int32[m] c", "int32[n,m] y"
    ),
    "determinants": ("a = Det(x) b = Det(z) y = Add(a, b)", "float[n,4,4] x, float[n,3,3] z", "float[n] y"),
    # positions
    "diagonal ones": ("y = EyeLike<k = 1, dtype = 6>(x)", "float[n,m] x", "int32[n,m] y"),
    # attention
    "scores of every stage": (
        "".join(
            f"y{i}, k{i}, v{i}, s{i} = Attention<qk_matmul_output_mode = {i}, softcap = 2.0, is_causal = 1>(q, k, k) "
            for i in range(4)
        ) + "a = Add(y0, y1) b = Add(y2, y3) y = Add(a, b)",
        "float[n,4,m,4] q, float[n,2,5,4] k",
        "float[n,4,m,4] y, float[n,4,m,5] s0, float[n,4,m,5] s1, float[n,4,m,5] s2, float[n,4,m,5] s3",
    ),
    "attention in f64, with a past": (
        "y, pk, pv = Attention<is_causal = 1>(q, q, q, , k, k)",
        "double[n,2,m,4] q, double[n,2,3,4] k", "double[n,2,m,4] y, double[n,2,t,4] pk, double[n,2,t,4] pv",
    ),
    "attention in f64, with a mask": (
        "y = Attention(q, k, k, b)", "double[n,2,m,4] q, double[n,2,5,4] k, double[m,5] b", "double[n,2,m,4] y"
    ),
    "softmax in f64": (
        "y = Attention<softmax_precision = 11>(q, k, k)", "float16[n,2,m,4] q, float16[n,2,5,4] k", "float16[n,2,m,4] y"
    ),
    "a short mask": (
        "y = Attention(q, k, k, b)", "float[n,2,m,4] q, float[n,2,5,4] k, bool[m,3] b", "float[n,2,m,4] y"
    ),
    # training and features
    "batch norm": (
        "v = Abs(s) y, a, b = BatchNormalization<training_mode = 1, momentum = 0.8>(x, s, s, s, v)",
        "float[n,3,m] x, float[3] s", "float[n,3,m] y, float[3] a, float[3] b",
    ),
    "batch norm of halves": (
        "y, a, b = BatchNormalization<training_mode = 1>(x, s, s, t, t)",
        "float16[n,3,m] x, float16[3] s, float[3] t", "float16[n,3,m] y, float[3] a, float[3] b",
    ),
    "adagrad": (
        "y, h2 = ai.onnx.preview.training.Adagrad<decay_factor = 0.1, norm_coefficient = 0.2>(r, t, x, g, h) ",
        "float r, int64 t, float[n,m] x, float[n,m] g, float[n,m] h", "float[n,m] y, float[n,m] h2",
    ),
    "momentum": (
        ('y, v2 = ai.onnx.preview.training.Momentum<alpha = 0.9, beta = 0.5, norm_coefficient = 0.1, mode = "nesterov">'
         "(r, t, x, g, v)"),
        "float r, int64 t, float[n,m] x, float[n,m] g, float[n,m] v", "float[n,m] y, float[n,m] v2",
    ),
    "imputed": (
        "y = ai.onnx.ml.Imputer<imputed_value_floats = [1.0, 2.0], replaced_value_float = 0.0>(x)",
        "float[n,2] x", "float[n,2] y",
    ),
    "one-hot encoder": ("y = ai.onnx.ml.OneHotEncoder<cats_int64s = [2, 0, 7]>(x)", "int64[n,m] x", "float[n,m,3] y"),
    "one-hot encoder of reals": ("y = ai.onnx.ml.OneHotEncoder<cats_int64s = [1, 0]>(x)", "float[n] x", "float[n,2] y"),
    **{
        f"columns {columns}": (
            f"i = Constant<value_ints = {columns}>() y = ai.onnx.ml.ArrayFeatureExtractor(x, i)",
            "float[n,5] x", f"float[n,{len(columns)}] y",
        )
        for columns in ([3], [1, 3], [0, 1, 2], [2, 2], [4, 1], [0, 1, 4])
    },
    "a column of a vector": (
        "i = Constant<value_ints = [4]>() a = ai.onnx.ml.ArrayFeatureExtractor(x, i) y = Neg(a)",
        "float[5] x", "float[1,1] y",
    ),
    "labels": (
        "y = ai.onnx.ml.LabelEncoder<keys_int64s = [2, 0, 2], values_floats = [0.5, 4.0, 9.0], default_float = 7.0>(x)",
        "int64[n,m] x", "float[n,m] y",
    ),
    "labels of labels": (
        "y = ai.onnx.ml.LabelEncoder<keys_int64s = [-1, 1], values_int64s = [1, -9], default_int64 = 3>(x)",
        "int64[n] x", "int64[n] y",
    ),
    "sum of many": (f"y = Sum({', '.join(['x', 'z'] * 35)})", "float[n,m] x, float[m] z", "float[n,m] y"),
    "largest of many": (f"y = Max({', '.join(['x', 'z'] * 17)})", "int64[n,m] x, int64[m] z", "int64[n,m] y"),
    "binarized": ("y = ai.onnx.ml.Binarizer<threshold = 0.5>(x)", "float[n,m] x", "float[n,m] y"),
}  # fmt: skip

NEWEST_CASES = {
    "outer": ('y = Einsum<equation = "i,j">(x, z)', "float16[n] x, float16[m] z", "float16[n,m] y"),
    "bits": ("a = BitCast<to = 6>(x) b = Add(a, a) y = BitCast<to = 1>(b)", "float[n,m] x", "float[n,m] y"),
    "causal convolution": (
        'y, p = CausalConvWithState<activation = "silu">(x, w, b, s)',
        "float[n,6,m] x, float[6,1,4] w, float[6] b, float[n,6,3] s", "float[n,6,m] y, float[n,6,3] p",
    ),
    "linear attention": (
        'y, p = LinearAttention<q_num_heads = 4, kv_num_heads = 2, update_rule = "gated_delta">(q, k, v, s, d, b)',
        "float[n,m,20] q, float[n,m,10] k, float[n,m,6] v, float[n,2,5,3] s, float[n,m,2] d, float[n,m,1] b",
        "float[n,m,12] y, float[n,2,5,3] p",
    ),
    "linear attention of halves": (
        'y, p = LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = "linear", scale = 0.5>(q, k, v)',
        "float16[n,m,10] q, float16[n,m,10] k, float16[n,m,6] v", "float16[n,m,6] y, float16[n,2,5,3] p",
    ),
    "sliding window": (
        "y = Attention<left_window_size = 1, right_window_size = 2>(q, k, k)",
        "float[n,2,m,4] q, float[n,2,5,4] k", "float[n,2,m,4] y",
    ),
    "counts of keys": (
        "y = Attention<is_causal = 1>(q, k, k, b, , , c)",
        "float[n,2,m,4] q, float[n,2,5,4] k, float[n,1,m,5] b, int64[n] c", "float[n,2,m,4] y",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*CASES, *NEWEST_CASES])
def test_answers_as_the_operators_do(name: str) -> None:
    case, opsets = (CASES[name], OPSETS) if name in CASES else (NEWEST_CASES[name], NEWEST)
    compare(parse(*case, opsets=opsets), *({**sizes, "q": 40} for sizes in SIZES))
