"""Operators that are bound by memory, on tensors of 50 MB; and calls that do next to nothing."""

from __future__ import annotations

from benchmarks.kernels.case import Case, Draw, fixed, normal

IMAGE, SMALL = (8, 64, 160, 160), (8, 64, 80, 80)
WINDOW = {
    2: "kernel_shape = [2, 2], strides = [2, 2]",
    3: "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]",
}
SAME = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"
POOLS = ("MaxPool", "AveragePool")


def large(name: str, node: str, shape: tuple[int, ...], **constants: Draw) -> Case:
    return Case(name, f"y = {node}", {"x": normal(*shape)}, constants, has_error=False)


def resize(name: str, attributes: str, by: float, shape: tuple[int, ...] = SMALL) -> Case:
    return large(f"resize {name} x{by:g}", f"Resize<{attributes}>(x, , s)", shape, s=fixed(1, 1, by, by))


NEAREST = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
MEMORY = (
    resize("nearest", NEAREST, 2), resize("linear", 'mode = "linear"', 2),
    resize("linear", 'mode = "linear"', 1.6, (8, 64, 100, 100)), resize("linear", 'mode = "linear"', 0.5, IMAGE),
    resize("cubic", 'mode = "cubic"', 2),
    *(large(f"{op} {k}x{k} stride 2", f"{op}<{WINDOW[k]}>(x)", IMAGE) for op in POOLS for k in (2, 3)),
    *(large(f"{op} 3x3 stride 1", f"{op}<{SAME}>(x)", IMAGE) for op in POOLS),
    large("transpose NCHW to NHWC", "Transpose<perm = [0, 2, 3, 1]>(x)", IMAGE),
    large("transpose NHWC to NCHW", "Transpose<perm = [0, 3, 1, 2]>(x)", (8, 160, 160, 64)),
    large("softmax of 1000", "Softmax<axis = -1>(x)", (13107, 1000)),
    large("softmax of 128", "Softmax<axis = -1>(x)", (102400, 128)),
    large("layernorm of 768", "LayerNormalization<axis = -1>(x, w, b)", (17067, 768), w=normal(768), b=normal(768)),
    large("relu", "Relu(x)", IMAGE),
)  # fmt: skip
CALL = (
    Case("Identity of 4 floats", "y = Identity(x)", {"x": normal(4)}, has_limit=False),
    Case("Add of 4 floats", "y = Add(x, x)", {"x": normal(4)}, has_limit=False),
    Case(
        "sum of 8 inputs of 4 floats", f"y = Sum({', '.join('abcdefgh')})", {name: normal(4) for name in "abcdefgh"},
        has_limit=False,
    ),
)  # fmt: skip
"""What a call costs."""
