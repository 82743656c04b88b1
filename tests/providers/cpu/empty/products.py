"""Matrix products, attention and recurrences."""

from __future__ import annotations

import numpy as np

from tests.providers.cpu.empty.case import TILES, Case

WEIGHT = np.random.default_rng(0).integers(-128, 128, (128, 160)).astype(np.int8)


def _bytes(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-99, 100, shape).astype(np.int8)


PRODUCTS = {
    "matmul": Case("y = MatMul(x, w)", "float[m,64] x", "float[a,b] y", {"m": 33}, {"w": (64, 48)}, precisions=TILES),
    "matmul of long sums": Case(
        "y = MatMul(x, w)", "float[m,700] x", "float[a,b] y", {"m": 40}, {"w": (700, 70)}, precisions=TILES
    ),
    "matmul of a batch": Case(
        "y = MatMul(x, w)", "float[n,m,64] x", "float[a,b,c] y", {"n": 2, "m": 9}, {"w": (64, 48)}, precisions=TILES
    ),
    "matmul, both fed": Case(
        "y = MatMul(x, w)", "float[n,m,k] x, float[n,k,j] w", "float[a,b,c] y", {"n": 2, "m": 17, "k": 40, "j": 33},
        precisions=TILES,
    ),
    "matmul of a weight in blocks": Case(
        "d = DequantizeLinear<axis = 0, block_size = 32>(w, s) y = MatMul(x, d)", "float[n,m,128] x",
        "float[a,b,c] y", {"n": 2, "m": 9}, {"w": WEIGHT, "s": (4, 160)}, precisions=TILES,
    ),
    "matmul of vectors": Case("y = MatMul(x, w)", "float[k] x, float[k] w", "float y", {"k": 9}),
    "matmul of f16": Case(
        "y = MatMul(x, w)", "float16[m,k] x, float16[k,j] w", "float16[a,b] y", {"m": 17, "k": 40, "j": 33}
    ),
    "matmul of f64": Case(
        "y = MatMul(x, w)", "double[m,k] x, double[k,j] w", "double[a,b] y", {"m": 7, "k": 10, "j": 9}
    ),
    "gemm": Case(
        "y = Gemm<transA = 1, alpha = 0.5>(x, w, b)", "float[k,m] x, float[k,j] w, float[j] b", "float[a,c] y",
        {"m": 17, "k": 40, "j": 33}, precisions=TILES,
    ),
    "gemm of a constant": Case(
        "c = Gemm<transB = 1>(x, w, b) y = Relu(c)", "float[m,64] x", "float[a,c] y", {"m": 17},
        {"w": (48, 64), "b": (48,)}, precisions=TILES,
    ),
    "layers": Case(
        "a = MatMul(x, u) b = Add(a, c) d = Gelu(b) e = MatMul(d, v) f = Add(e, x) "
        "y = LayerNormalization<axis = -1>(f, g, h)",
        "float[n,m,64] x", "float[i,j,k] y", {"n": 2, "m": 9},
        {"u": (64, 96), "c": (96,), "v": (96, 64), "g": (64,), "h": (64,)}, precisions=TILES,
    ),
    "matmul of bytes": Case(
        "y = MatMulInteger(x, w, z)", "uint8[m,64] x", "int32[a,b] y", {"m": 17},
        {"w": np.random.default_rng(0).integers(-9, 9, (64, 40)).astype(np.int8), "z": np.array(3, np.uint8)}, top=200,
    ),
    "matmul of bytes, both fed": Case(
        "y = MatMulInteger(x, w)", "uint8[m,k] x, int8[k,j] w", "int32[a,b] y", {"m": 17, "k": 20, "j": 18}, top=100
    ),
    "quantized matmul": Case(
        "y = QLinearMatMul(x, s, z, w, s, z, t, z)", "uint8[m,64] x", "uint8[a,b] y", {"m": 17},
        {"w": np.random.default_rng(0).integers(0, 9, (64, 40)).astype(np.uint8), "z": np.array(3, np.uint8),
         "s": np.array(0.1, "f"), "t": np.array(0.9, "f")}, top=200,
    ),
    "quantized when run": Case(
        "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)", "float[m,k] x", "float[a,b] y",
        {"m": 3, "k": 5},
    ),
    "quantized by rows": Case(
        "q = QuantizeLinear<axis = 1>(x, s, z) y = DequantizeLinear<axis = 1>(q, s, z)", "float[m,4,k] x",
        "float[a,b,c] y", {"m": 3, "k": 5}, {"s": np.array([0.1, 0.2, 0.3, 0.4], "f"), "z": np.zeros(4, np.uint8)},
    ),
    "einsum": Case(
        'y = Einsum<equation = "nmk,nkj->nmj">(x, w)', "float[n,m,k] x, float[n,k,j] w", "float[a,b,c] y",
        {"n": 2, "m": 3, "k": 4, "j": 5},
    ),
    "einsum of a sum": Case('y = Einsum<equation = "mk->m">(x)', "float[m,k] x", "float[a] y", {"m": 3, "k": 4}),
    "determinants": Case("y = Det(x)", "float[n,3,3] x", "float[a] y", {"n": 4}),
}  # fmt: skip

ATTENTION = {
    "attention": Case(
        "y = Attention(q, k, v)", "float[n,h,s,16] q, float[n,h,t,16] k, float[n,h,t,16] v", "float[a,b,c,d] y",
        {"n": 2, "h": 2, "s": 5, "t": 7}, opsets='"" : 23', precisions=TILES, hangs=("h",),
    ),
    "attention, causal and masked": Case(
        "y = Attention<is_causal = 1>(q, k, v, m)",
        "float[n,h,s,16] q, float[n,h,t,16] k, float[n,h,t,16] v, float[s,t] m", "float[a,b,c,d] y",
        {"n": 2, "h": 2, "s": 5, "t": 7}, opsets='"" : 23', precisions=TILES, hangs=("h",),
    ),
    "attention that grows": Case(
        "y, p, r = Attention(q, k, v, , e, f)",
        "float[n,2,s,16] q, float[n,2,s,16] k, float[n,2,s,16] v, float[n,2,t,16] e, float[n,2,t,16] f",
        "float[a,b,c,d] y, float[g,h,i,j] p, float[l,m,o,q] r", {"n": 2, "s": 3, "t": 7}, opsets='"" : 23',
    ),
    "attention written out": Case(
        "c = Transpose<perm = [0,1,3,2]>(k) a = MatMul(q, c) b = Mul(a, f) d = Softmax<axis = -1>(b) y = MatMul(d, v)",
        "float[n,h,s,16] q, float[n,h,t,16] k, float[n,h,t,16] v", "float[e,g,i,j] y",
        {"n": 2, "h": 2, "s": 5, "t": 7}, {"f": np.array(0.25, "f")}, precisions=TILES,
    ),
    "rotary": Case(
        "y = RotaryEmbedding(x, c, s)", "float[n,h,t,16] x, float[n,t,8] c, float[n,t,8] s", "float[a,b,d,e] y",
        {"n": 2, "h": 2, "t": 5}, opsets='"" : 23',
    ),
    "linear attention": Case(
        "y, s = LinearAttention<q_num_heads = 2, kv_num_heads = 2>(q, k, v)",
        "float[n,t,32] q, float[n,t,32] k, float[n,t,32] v", "float[a,b,c] y, float[d,e,f,g] s", {"n": 2, "t": 5},
        opsets='"" : 27',
    ),
}  # fmt: skip

RECURRENT = {
    **{
        f"{name}, {way}": Case(
            f'y, z = {name}<hidden_size = 8, direction = "{way}">(x, w, r, b)', "float[t,n,6] x",
            "float[a,c,d,e] y, float[f,g,h] z", {"t": 4, "n": 3},
            {"w": (ways, gates * 8, 6), "r": (ways, gates * 8, 8), "b": (ways, gates * 16)}, hangs=("n", "t"),
        )
        for name, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
        for way, ways in (("forward", 1), ("bidirectional", 2))
    },
    "LSTM with lengths": Case(
        "y, z = LSTM<hidden_size = 8>(x, w, r, , l)", "float[t_,n,6] x, int32[n] l", "float[a,c,d,e] y, float[f,g,h] z",
        {"t_": 4, "n": 3}, {"w": (1, 32, 6), "r": (1, 32, 8)}, top=5, hangs=("n",),
    ),
    "DynamicQuantizeLSTM": Case(
        'y, z = com.microsoft.DynamicQuantizeLSTM<hidden_size = 24, direction = "bidirectional">'
        "(x, w, r, b, , , , , s, o, s, o)",
        "float[t,n,6] x", "float[a,c,d,e] y, float[f,g,h] z", {"t": 4, "n": 1},
        {"w": _bytes(2, 6, 96), "r": _bytes(2, 24, 96), "b": (2, 192), "s": np.full(2, 0.02, "f"),
         "o": np.zeros(2, np.int8)}, hangs=("n", "t"), opsets='"" : 21, "com.microsoft" : 1',
    ),
}  # fmt: skip
