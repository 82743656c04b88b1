"""Pointwise operators, movement, control flow and training."""

from __future__ import annotations

import numpy as np

from tests.providers.cpu.empty.case import Case, ints

MOVED = {
    "pointwise": Case(
        "a = Add(x, w) b = Sigmoid(a) c = Cast<to = 6>(b) d = CastLike(c, x) y = Where(m, b, d)",
        "float[n,m] x, float[m] w, bool[n,m] m", "float[e,f] y", {"n": 3, "m": 20},
    ),
    "broadcast": Case(
        "y = Mul(x, w)", "float[n,1,k] x, float[m,1] w", "float[a,b,c] y", {"n": 3, "m": 4, "k": 5}
    ),
    "transposed": Case(
        "y = Transpose<perm = [2,0,1]>(x)", "float[n,m,k] x", "float[a,b,c] y", {"n": 3, "m": 40, "k": 50}
    ),
    "concat": Case(
        "y = Concat<axis = 1>(x, w, x)", "float[n,m] x, float[n,k] w", "float[a,b] y", {"n": 3, "m": 4, "k": 5}
    ),
    "split": Case(
        "a, b = Split<axis = 1, num_outputs = 2>(x) y = Sub(a, b)", "float[n,m] x", "float[c,d] y", {"n": 3, "m": 8}
    ),
    "slice": Case(
        "y = Slice(x, s, e, a, t)", "float[n,m] x", "float[b,c] y", {"n": 5, "m": 8},
        {"s": ints(4, 1), "e": ints(-9, 7), "a": ints(0, 1), "t": ints(-2, 3)},
    ),
    "pad": Case("y = Pad(x, p)", "float[n,m] x", "float[b,c] y", {"n": 5, "m": 8}, {"p": ints(1, 2, 0, 3)}),
    "pad at the edge": Case(
        'y = Pad<mode = "edge">(x, p)', "float[n,m] x", "float[b,c] y", {"n": 5, "m": 8}, {"p": ints(0, 2, 0, 3)}
    ),
    "pad by reflection": Case(
        'y = Pad<mode = "reflect">(x, p)', "float[n,m] x", "float[b,c] y", {"n": 5, "m": 8}, {"p": ints(0, 2, 0, 3)}
    ),
    "pad around": Case(
        'y = Pad<mode = "wrap">(x, p)', "float[n,m] x", "float[b,c] y", {"n": 5, "m": 8}, {"p": ints(0, 2, 0, 3)}
    ),
    "tile": Case("y = Tile(x, r)", "float[n,m] x", "float[b,c] y", {"n": 5, "m": 8}, {"r": ints(2, 3)}),
    "tile by nothing": Case("y = Tile(x, r)", "float[n,4] x", "float[b,c] y", {"n": 5}, {"r": ints(0, 3)}),
    "expand": Case(
        "y = Expand(x, s)", "float[n,1] x", "float[b,c] y", {"n": 5}, {"s": ints(1, 6)}
    ),
    "expand to nothing": Case("y = Expand(x, s)", "float[n,1] x", "float[b,c] y", {"n": 5}, {"s": ints(1, 0)}),
    "shapes": Case(
        "a = Unsqueeze(x, i) b = Squeeze(a, i) c = Flatten<axis = 1>(b) d = Identity(c) s = Shape(x) e = Reshape(d, s) "
        "z = Size(x) f = Cast<to = 1>(z) y = Add(e, f)",
        "float[n,m,k] x", "float[g,h,j] y", {"n": 3, "m": 4, "k": 5}, {"i": ints(1)},
    ),
    "constant of shape": Case(
        "s = Shape(x) c = ConstantOfShape<value = float[1] {2.0}>(s) y = Add(x, c)", "float[n,m] x", "float[a,b] y",
        {"n": 3, "m": 4},
    ),
    "range": Case(
        "s = Shape<start = 0, end = 1>(x) i = Constant<value = int64 {0}>() e = Squeeze(s) "
        "o = Constant<value = int64 {1}>() y = Range(i, e, o)",
        "float[n,m] x", "int64[a] y", {"n": 3, "m": 4},
    ),
    "triangles": Case(
        "a = Trilu(x, k) b = EyeLike(x) y = Add(a, b)", "float[n,m] x", "float[c,d] y", {"n": 3, "m": 4},
        {"k": np.array(1)},
    ),
    "bits": Case("y = BitCast<to = 6>(x)", "float[n,m] x", "int32[a,b] y", {"n": 3, "m": 4}, opsets='"" : 26'),
    "dropped": Case("y = Dropout(x)", "float[n,m] x", "float[a,b] y", {"n": 3, "m": 4}),
    "windows": Case(
        "s = Shape<start = 0, end = 1>(x) e = Squeeze(s) a = HannWindow(e) b = HammingWindow(e) c = BlackmanWindow(e) "
        "d = Add(a, b) y = Add(c, d)",
        "float[n_,m] x", "float[f] y", {"n_": 7, "m": 4},
    ),
    "mel": Case(
        "y = MelWeightMatrix(a, b, c, d, e)", "float[n,m] x", "float[f,g] y", {"n": 3, "m": 4},
        {"a": np.array(8), "b": np.array(16), "c": np.array(8192), "d": np.array(0.0, "f"), "e": np.array(4096.0, "f")},
    ),
    "random": Case(
        "a = RandomNormalLike(x) b = RandomUniformLike(x) c = Add(a, b) d = Bernoulli(p) e = Add(c, d) "
        "u = RandomUniform<shape = [1]>() v = RandomNormal<shape = [1]>() f = Add(u, v) y = Add(e, f)",
        "float[n,m] x, float[n,m] p", "float[g,h] y", {"n": 3, "m": 4}, is_random=True,
    ),
    "multinomial": Case(
        "y = Multinomial<sample_size = 3>(x)", "float[n,m_] x", "int32[a,b] y", {"n": 3, "m_": 4}, is_random=True
    ),
}  # fmt: skip

FLOW = {
    "if": Case(
        "s = Size(x) z = Constant<value = int64 {0}>() c = Greater(s, z) "
        "y = If<then_branch = t () => (float[n,m] u) { u = Relu(x) }, "
        "else_branch = f () => (float[n,m] v) { v = Neg(x) }>(c)",
        "float[n,m] x", "float[a,b] y", {"n": 3, "m": 4},
    ),
    "scan": Case(
        "y, z = Scan<num_scan_inputs = 1, body = b (float[m] s, float[m] r) => (float[m] t, float[m] o) "
        "{ t = Add(s, r) o = Mul(t, r) }>(i, x)",
        "float[m] i, float[n,m] x", "float[a] y, float[c,d] z", {"n": 3, "m": 4},
    ),
    "loop": Case(
        "e = Shape<start = 0, end = 1>(x) l = Squeeze(e) c = Constant<value = bool {1}>() "
        "y, z = Loop<body = b (int64 i, bool g, float[m] s) => (bool h, float[m] t, float[m] o) "
        "{ h = Identity(g) r = Gather(x, i) t = Add(s, r) o = Mul(t, r) }>(l, c, q)",
        "float[n,m] x, float[m] q", "float[a] y, float[d,f] z", {"n": 3, "m": 4}, hangs=("n",),
    ),
}  # fmt: skip

TRAINING = '"" : 21, "ai.onnx.preview.training" : 1'
TRAINED = {
    "adagrad": Case(
        "y, h = ai.onnx.preview.training.Adagrad<epsilon = 0.1>(r, t, x, g, s)",
        "float r, int64 t, float[n,m] x, float[n,m] g, float[n,m] s", "float[a,b] y, float[c,d] h", {"n": 3, "m": 4},
        opsets=TRAINING,
    ),
    "adam": Case(
        "y, u, v = ai.onnx.preview.training.Adam<epsilon = 0.1>(r, t, x, g, s, q)",
        "float r, int64 t, float[n,m] x, float[n,m] g, float[n,m] s, float[n,m] q",
        "float[a,b] y, float[c,d] u, float[e,f] v", {"n": 3, "m": 4}, opsets=TRAINING,
    ),
    "momentum": Case(
        "y, u = ai.onnx.preview.training.Momentum"
        '<alpha = 0.9, beta = 0.5, norm_coefficient = 0.1, mode = "standard">(r, t, x, g, s)',
        "float r, int64 t, float[n,m] x, float[n,m] g, float[n,m] s", "float[a,b] y, float[c,d] u", {"n": 3, "m": 4},
        opsets=TRAINING,
    ),
}  # fmt: skip
