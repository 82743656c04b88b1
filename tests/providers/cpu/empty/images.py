"""Operators on images that are no convolutions."""

from __future__ import annotations

import numpy as np

from tests.providers.cpu.empty.case import Case, ints
from tests.providers.cpu.empty.convolutions import SAME, conv, image

IMAGES = {
    "max pool": image("y = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,2]>(x)", 20, ("highest",)),
    "max pool and places": Case(
        "y, i = MaxPool<kernel_shape = [2,2]>(x)", "float[n,c,h,w] x", "float[a,b,d,e] y, int64[f,g,j,k] i",
        {"n": 2, "c": 3, "h": 6, "w": 7},
    ),
    "average pool": image(
        "y = AveragePool<kernel_shape = [3,3], pads = [1,1,1,1], count_include_pad = 1>(x)", 20, ("highest",)
    ),
    "pools of other channels": Case(
        "a = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(x) "
        "y = AveragePool<kernel_shape = [2,2], strides = [2,2]>(a)",
        "float[n,c,h,w] x", "float[a,b,d,e] y", {"n": 2, "c": 3, "h": 8, "w": 7},
    ),
    "pools of single elements": image(
        "a = MaxPool<kernel_shape = [1,1], strides = [2,2]>(x) y = AveragePool<kernel_shape = [1,1]>(a)", 20,
        ("highest",),
    ),
    "pools of convolved single elements": image(
        conv("x", "w", "a", SAME) + "y = MaxPool<kernel_shape = [1,1], strides = [2,2]>(a)", 32, ("highest",),
        w=(32, 32, 3, 3),
    ),
    "lp pool": image("y = LpPool<kernel_shape = [2,2], p = 2>(x)", 3, ("highest",)),
    "global pools": Case(
        "a = GlobalMaxPool(x) b = GlobalAveragePool(x) c = GlobalLpPool<p = 2>(x) d = Add(a, b) y = Add(c, d)",
        "float[n,c,h,w] x", "float[a,b,d,e] y", {"n": 2, "c": 5, "h": 3, "w": 4},
    ),
    "local response": image("y = LRN<size = 3>(x)", 5, ("highest",)),
    "unpool": Case(
        "p, i = MaxPool<kernel_shape = [2,2], strides = [2,2]>(x) "
        "y = MaxUnpool<kernel_shape = [2,2], strides = [2,2]>(p, i)",
        "float[n,3,h,w] x", "float[a,b,d,e] y", {"n": 2, "h": 6, "w": 8},
    ),
    "resize linear": image('y = Resize<mode = "linear">(x, , s)', 6, ("highest",), s=np.array([1, 1, 2, 1.5], "f")),
    "resize nearest": image('y = Resize<mode = "nearest">(x, , s)', 6, ("highest",), s=np.array([1, 1, 2, 2], "f")),
    "resize cubic": image('y = Resize<mode = "cubic">(x, , s)', 6, ("highest",), s=np.array([1, 1, 0.5, 2], "f")),
    "resize of convolved": image(
        conv("x", "w", "a", SAME) + 'y = Resize<mode = "linear">(a, , s)', 32, w=(32, 32, 3, 3),
        s=np.array([1, 1, 2, 2], "f"),
    ),
    "grid sample": Case(
        "y = GridSample(x, g)", "float[n,c,h,w] x, float[n,p,q,2] g", "float[a,b,d,e] y",
        {"n": 2, "c": 3, "h": 5, "w": 6, "p": 4, "q": 3},
    ),
    "grid sample, nearest at the border": Case(
        'y = GridSample<mode = "nearest", padding_mode = "border">(x, g)', "float[n,c,h,w] x, float[n,p,q,2] g",
        "float[a,b,d,e] y", {"n": 2, "c": 3, "h": 5, "w": 6, "p": 4, "q": 3},
    ),
    "affine grid": Case(
        "y = AffineGrid(t, s)", "float[2,2,3] t", "float[a,b,c,d] y", {}, {"s": ints(2, 3, 4, 5)},
    ),
    "regions": Case(
        "y = RoiAlign<output_height = 2, output_width = 2>(x, r, b)", "float[n_,c,h,w] x, float[k,4] r, int64[k] b",
        "float[a,d,e,f] y", {"n_": 2, "c": 3, "h": 5, "w": 6, "k": 4}, hangs=("h", "w"),
    ),
    "largest of regions": Case(
        "z = Constant<value = int64[2] {0, 0}>() p = Constant<value = int64[4] {0, 1, 0, 0}>() "
        "b = Pad(r, p) y = MaxRoiPool<pooled_shape = [2, 2]>(x, b)",
        "float[n_,c,h,w] x, float[k,4] r", "float[a,d,e,f] y", {"n_": 2, "c": 3, "h": 5, "w": 6, "k": 4},
    ),
    "depth to space": image("y = DepthToSpace<blocksize = 2>(x)", 8, ("highest",)),
    "space to depth": Case(
        "y = SpaceToDepth<blocksize = 2>(x)", "float[n,c,h,w] x", "float[a,b,d,e] y", {"n": 2, "c": 3, "h": 4, "w": 6},
    ),
    "columns": Case(
        "y = Col2Im(x, s, k)", "float[n,c,12] x", "float[a,b,d,e] y", {"n": 2, "c": 8},
        {"s": ints(4, 5), "k": ints(2, 2)},
    ),
    "crop": Case(
        "y = CenterCropPad<axes = [2, 3]>(x, s)", "float[n,c,h,w] x", "float[a,b,d,e] y",
        {"n": 2, "c": 3, "h": 5, "w": 6}, {"s": ints(4, 8)},
    ),
}  # fmt: skip
