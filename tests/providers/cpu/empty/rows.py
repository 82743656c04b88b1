"""Reductions, normalizations and what else goes along rows."""

from __future__ import annotations

import numpy as np

from tests.providers.cpu.empty.case import Case, ints

REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
ROWS = {
    **{
        f"{name} over {'+'.join(map(str, axes))}": Case(
            f"y = Reduce{name}(x, a)", "float[n,m,k] x", "float[b,c,d] y", {"n": 3, "m": 4, "k": 5}, {"a": ints(*axes)}
        )
        for name in REDUCTIONS
        for axes in ((1,), (2,), (0, 2), (0, 1, 2))
    },
    "reductions of integers": Case(
        "a = ReduceSum<keepdims = 0>(x, i) b = ReduceProd<keepdims = 0>(x, i) y = Add(a, b)", "int64[n,m] x",
        "int64[c] y", {"n": 3, "m": 4}, {"i": ints(1)},
    ),
    "arg": Case(
        "a = ArgMax<axis = 1>(x) b = ArgMin<axis = 1>(x) y = Add(a, b)", "float[n,m,k] x", "int64[c,d,e] y",
        {"n": 3, "m": 4, "k": 5},
    ),
    **{
        f"{name} over {axis}": Case(
            f"y = {name}<axis = {axis}>(x)", "float[n,m,k] x", "float[a,b,c] y", {"n": 3, "m": 4, "k": 5}
        )
        for name in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
        for axis in (1, -1)
    },
    "layer norm": Case(
        "y, m, d = LayerNormalization(x, s, b)", "float[n,t,k] x, float[k] s, float[k] b",
        "float[a,c,e] y, float[f,g,h] m, float[i,j,l] d", {"n": 3, "t": 4, "k": 5},
    ),
    "rms norm": Case(
        "y = RMSNormalization(x, s)", "float[n,t,k] x, float[k] s", "float[a,b,c] y", {"n": 3, "t": 4, "k": 5},
        opsets='"" : 23',
    ),
    "instance norm": Case(
        "y = InstanceNormalization(x, s, b)", "float[n,c,h,w] x, float[c] s, float[c] b", "float[a,d,e,f] y",
        {"n": 3, "c": 4, "h": 5, "w": 6},
    ),
    "group norm": Case(
        "y = GroupNormalization<num_groups = 2>(x, s, b)", "float[n,4,h,w] x, float[4] s, float[4] b",
        "float[a,d,e,f] y", {"n": 3, "h": 5, "w": 6},
    ),
    "batch norm": Case(
        "y = BatchNormalization(x, s, b, s, s)", "float[n,c,h,w] x, float[c] s, float[c] b", "float[a,d,e,f] y",
        {"n": 3, "c": 4, "h": 5, "w": 6},
    ),
    "batch norm, trained": Case(
        "y, m, v = BatchNormalization<training_mode = 1>(x, s, b, s, s)", "float[n,c,h,w] x, float[c] s, float[c] b",
        "float[a,d,e,f] y, float[g] m, float[i] v", {"n": 3, "c": 4, "h": 5, "w": 6},
    ),
    "mean and variance": Case(
        "y = MeanVarianceNormalization(x)", "float[n,c,h,w] x", "float[a,d,e,f] y", {"n": 3, "c": 4, "h": 5, "w": 6}
    ),
    "cumulative": Case(
        "a = CumSum(x, i) y = Add(a, x)", "float[n,m] x", "float[b,c] y", {"n": 3, "m": 4}, {"i": np.array(1)}
    ),
    "cumulative products": Case(
        "y = CumProd(x, i)", "float[n,m] x", "float[b,c] y", {"n": 3, "m": 4}, {"i": np.array(1)}, opsets='"" : 26'
    ),
    "loss": Case(
        "l = LogSoftmax<axis = 1>(x) y = NegativeLogLikelihoodLoss(l, t)", "float[n,5,d] x, int64[n,d] t", "float y",
        {"n": 3, "d": 4},
    ),
    "cross entropy": Case(
        'y = SoftmaxCrossEntropyLoss<reduction = "none">(x, t)', "float[n,5,d] x, int64[n,d] t", "float[a,b] y",
        {"n": 3, "d": 4},
    ),
    "fourier": Case(
        "y = DFT(x, , a)", "float[n,l,1] x", "float[b,c,d] y", {"n": 3, "l": 8}, {"a": np.array(1)}, hangs=("l",),
    ),
    "fourier of frames": Case(
        "y = STFT(x, s, w)", "float[n,l_,1] x", "float[b,c,d,e] y", {"n": 3, "l_": 20},
        {"s": np.array(4), "w": np.ones(8, "f")},
    ),
}  # fmt: skip
