"""Generators of layers: products, convolutions, pools, norms, resampling, recurrence, attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz.drafts import Draft, Maker, Operand
from fuzz.table import generator

CHANNELS = (1, 1, 2, 3, 4, 5, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65)
IMAGE = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14, 16, 17, 20, 28)
BATCH = (0, 1, 1, 1, 2, 3)


def image(m: Maker, channels: int | None = None, rank: int | None = None, *, limit: int = 30_000) -> list[int]:
    """Sizes of a batch of images of one to three axes."""
    d = m.draw
    rank = rank or d.one((1, 2, 2, 2, 2, 3))
    c = d.one(CHANNELS) if channels is None else channels
    c = 0 if channels is None and d.maybe(0.02) else c
    dims = [d.one(BATCH), c, *(d.one(IMAGE) for _ in range(rank))]
    while np.prod(dims, dtype=float) > limit:
        axis = max(range(2, len(dims)), key=lambda a: dims[a])
        if dims[axis] <= 2:
            break
        dims[axis] //= 2
    return dims


def window(m: Maker, rank: int, *, largest: int = 5) -> dict[str, Any]:
    """Kernel, strides, dilations and pads, legal most of the time."""
    d = m.draw
    square = d.one((1, 2, 3, 3, 3, 5)) if d.maybe(0.6) else None
    kernel = [square or d.int(1, largest) for _ in range(rank)]
    made: dict[str, Any] = {"kernel_shape": kernel}
    if d.maybe(0.5):
        made["strides"] = [d.one((1, 1, 2, 2, 3, 4))] * rank if d.maybe(0.7) else [d.int(1, 4) for _ in range(rank)]
    if d.maybe(0.25):
        made["dilations"] = [d.one((1, 2, 3)) for _ in range(rank)]
    roll = d.rng.random()
    if roll < 0.45:
        made["pads"] = (
            [d.int(0, max(k // 2, 1)) for k in kernel] * 2 if d.maybe(0.6) else [d.int(0, 3) for _ in kernel * 2]
        )
    elif roll < 0.65:
        made["auto_pad"] = d.one(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    if d.maybe(0.03):
        name = d.one(sorted(made))
        if isinstance(made[name], list) and made[name]:
            made[name][0] = d.one((0, -1, 100, 1 << 31, (1 << 63) - 1))
    return made


def filters(m: Maker, x: list[int], kernel: list[int]) -> tuple[list[int], int]:
    """Shape of the weights of a convolution over these images, and the number of groups."""
    d, c = m.draw, x[1]
    divisors = [g for g in range(1, c + 1) if c % g == 0] or [1]
    group = d.one((1, 1, 1, c or 1, d.one(divisors)))
    outputs = group * d.one((1, 1, 2, 3, 4)) if group > 1 else d.one(CHANNELS)
    shape = [outputs, c // group if group else 0, *kernel]
    while np.prod(shape, dtype=float) > 60_000 and shape[0] > group:
        shape[0] = max(shape[0] // 2 // group * group, group)
    if np.prod(shape, dtype=float) > 60_000:
        shape[2:] = [min(k, 9) for k in kernel]
    return shape, group


@generator("Conv")
def conv(m: Maker) -> Draft:
    x = image(m)
    attributes = window(m, len(x) - 2)
    w, group = filters(m, x, attributes["kernel_shape"])
    if m.draw.maybe(0.5):
        del attributes["kernel_shape"]
    bias = m.maybe(0.5, lambda: m.data(2, [w[0]]))
    return m.node(
        [m.data(0, x), m.data(1, w), bias], group=group if group > 1 or m.draw.maybe(0.3) else None, **attributes
    )


@generator("ConvTranspose")
def conv_transpose(m: Maker) -> Draft:
    d, x = m.draw, image(m, limit=8_000)
    attributes = window(m, len(x) - 2, largest=4)
    w, group = filters(m, x, attributes["kernel_shape"])
    w = [x[1], max(w[0] // max(group, 1), 1), *w[2:]]
    strides = attributes.get("strides", [1] * (len(x) - 2))
    if d.maybe(0.3):
        attributes["output_padding"] = [d.int(0, max(abs(s) - 1, 0)) if s < 9 else 0 for s in strides]
    if d.maybe(0.1):
        attributes["output_shape"] = [d.one((1, 4, 9, 16, 30, 0)) for _ in strides]
    bias = m.maybe(0.5, lambda: m.data(2, [w[1] * group]))
    return m.node([m.data(0, x), m.data(1, w), bias], group=group, **attributes)


@generator("ConvInteger", "QLinearConv")
def conv_integer(m: Maker) -> Draft:
    d, x = m.draw, image(m, rank=m.draw.one((1, 2, 2, 2)))
    attributes = window(m, len(x) - 2)
    w, group = filters(m, x, attributes["kernel_shape"])
    attributes["group"] = group
    per_channel = d.maybe(0.5)
    point = [w[0]] if per_channel else []
    if m.key[1] == "ConvInteger":
        zx, zw = m.maybe(0.6, lambda: m.data(2, [])), m.maybe(0.5, lambda: m.data(3, point))
        return m.node([m.data(0, x), m.data(1, w), zx, zw], **attributes)
    scale = lambda shape: Operand(d.np.uniform(0.001, 0.1, shape).astype(np.float32))  # noqa: E731
    bias = m.maybe(0.4, lambda: Operand(d.values([w[0]], np.int32)))
    return m.node(
        [
            m.data(0, x),
            scale([]),
            m.data(2, []),
            m.data(3, w),
            scale(point),
            m.data(5, point),
            scale([]),
            m.data(7, []),
            bias,
        ],
        **attributes,
    )


@generator("DeformConv")
def deform_conv(m: Maker) -> Draft:
    d, x = m.draw, image(m, d_channels(m), 2, limit=2_000)
    kernel = [d.int(1, 3), d.int(1, 3)]
    outputs = [max(x[2] - kernel[0] + 1, 0), max(x[3] - kernel[1] + 1, 0)]
    w = [d.one((1, 2, 3, 4)), x[1], *kernel]
    k = kernel[0] * kernel[1]
    offset = m.data(2, [x[0], 2 * k, *outputs])
    mask = m.maybe(0.4, lambda: m.data(4, [x[0], k, *outputs]))
    return m.node(
        [m.data(0, x), m.data(1, w), offset, m.maybe(0.4, lambda: m.data(3, [w[0]])), mask], kernel_shape=kernel
    )


def d_channels(m: Maker) -> int:
    return int(m.draw.one((1, 2, 3, 4)))


@generator("MaxPool", "AveragePool", "LpPool")
def pool(m: Maker) -> Draft:
    d, x = m.draw, image(m)
    attributes = window(m, len(x) - 2)
    attributes["ceil_mode"] = m.some(0, 1)
    outputs = 1
    if m.key[1] == "MaxPool":
        outputs, attributes["storage_order"] = d.one((1, 1, 2)), m.some(0, 1)
    elif m.key[1] == "AveragePool":
        attributes["count_include_pad"] = m.some(0, 1)
    else:
        attributes["p"] = m.some(1, 2, 3)
    return m.node([m.data(0, x)], outputs, **attributes)


@generator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(m: Maker) -> Draft:
    return m.node([m.data(0, image(m))], p=m.some(1, 2, 3) if m.key[1] == "GlobalLpPool" else None)


@generator("MaxUnpool")
def max_unpool(m: Maker) -> Draft:
    d, x = m.draw, image(m, rank=m.draw.one((1, 2, 2, 3)), limit=4_000)
    stride = d.one((1, 2, 2, 3))
    places = int(np.prod([n * stride for n in x[2:]]))
    indices = d.np.integers(0, max(places * max(x[0] * x[1], 1), 1), x)
    size = [*x[:2], *(n * stride + d.int(0, 2) for n in x[2:])]
    shape = m.maybe(0.3, lambda: m.setting(size))
    return m.node(
        [m.data(0, x), Operand(indices, "index", places), shape],
        kernel_shape=[stride] * (len(x) - 2),
        strides=[stride] * (len(x) - 2),
    )


@generator("MaxRoiPool")
def max_roi_pool(m: Maker) -> Draft:
    d, x = m.draw, image(m, rank=2)
    rois = d.np.uniform(-2, 12, (d.one((0, 1, 3)), 5)).round(d.int(0, 1))
    rois[:, 0] = d.np.integers(0, max(x[0], 1), len(rois))
    return m.node(
        [m.data(0, x), Operand(rois.astype(m.dtype(0)))],
        pooled_shape=[d.int(1, 4), d.int(1, 4)],
        spatial_scale=m.some(0.5, 1.0),
    )


@generator("RoiAlign")
def roi_align(m: Maker) -> Draft:
    d, x = m.draw, image(m, rank=2)
    count = d.one((0, 1, 3, 8))
    rois = Operand(d.np.uniform(-3, 20, (count, 4)).astype(m.dtype(0)))
    batch = Operand(d.indices([count], max(x[0], 1)) % max(x[0], 1), "index", x[0])
    return m.node(
        [m.data(0, x), rois, batch],
        output_height=m.some(1, 2, 5),
        output_width=m.some(1, 2, 5),
        mode=m.some("avg", "max"),
        sampling_ratio=m.some(0, 1, 2, 3),
        spatial_scale=m.some(0.25, 1.0, 2.0),
        coordinate_transformation_mode=m.some("half_pixel", "output_half_pixel"),
    )


@generator("MatMul", "MatMulInteger")
def matmul(m: Maker) -> Draft:
    d = m.draw
    rows, inner, columns = (d.size(large=0.4) for _ in range(3))
    batch = d.shape(0, 2, large=0)
    a, b = [*batch, rows, inner], [*d.broadcast(batch), inner, columns]
    a, b = (a[-1:] if d.maybe(0.05) else a), (b[-2:-1] if d.maybe(0.05) else b[-2:] if d.maybe(0.5) else b)
    if m.key[1] == "MatMul":
        return m.node([m.data(0, a), m.data(1, b)])
    za = m.maybe(0.5, lambda: m.data(2, [rows] if d.maybe(0.1) else []))
    return m.node([m.data(0, a), m.data(1, b), za, m.maybe(0.5, lambda: m.data(3, [columns] if d.maybe(0.4) else []))])


@generator("QLinearMatMul")
def qlinear_matmul(m: Maker) -> Draft:
    d = m.draw
    rows, inner, columns = (d.size(large=0.3) for _ in range(3))
    per = [columns] if d.maybe(0.4) else []
    scale = lambda shape: Operand(d.np.uniform(0.001, 0.1, shape).astype(np.float32))  # noqa: E731
    return m.node(
        [
            m.data(0, [rows, inner]),
            scale([]),
            m.data(2, []),
            m.data(3, [inner, columns]),
            scale(per),
            m.data(5, per),
            scale([]),
            m.data(7, []),
        ]
    )


@generator("Gemm")
def gemm(m: Maker) -> Draft:
    d = m.draw
    rows, inner, columns = (d.size(large=0.4) for _ in range(3))
    ta, tb = d.maybe(0.3), d.maybe(0.4)
    a, b = ([inner, rows] if ta else [rows, inner]), ([columns, inner] if tb else [inner, columns])
    c = m.maybe(0.7, lambda: m.data(2, d.one(([columns], [rows, columns], [1, columns], [rows, 1], [], [1]))))
    return m.node(
        [m.data(0, a), m.data(1, b), c],
        transA=int(ta),
        transB=int(tb),
        alpha=m.some(0.5, 1.0, 0.0),
        beta=m.some(0.5, 0.0),
    )


EQUATIONS = (
    "ij,jk->ik",
    "bij,bjk->bik",
    "ij,kj",
    "i,i->",
    "ii->i",
    "ij->ji",
    "bhid,bhjd->bhij",
    "...ij,...jk->...ik",
    "ab,b->a",
    "i,j->ij",
    "abc->",
    "bnth,bnsh->bnts",
    "ii",
    "ij,ij->j",
)


@generator("Einsum")
def einsum(m: Maker) -> Draft:
    d = m.draw
    equation = d.one(EQUATIONS)
    sizes: dict[str, int] = {}
    batch = d.shape(0, 2, large=0)
    operands = []
    for i, term in enumerate(equation.split("->")[0].split(",")):
        shape = list(batch) if term.startswith("...") else []
        shape += [sizes.setdefault(c, d.size(large=0.1)) for c in term.replace("...", "")]
        operands.append(m.data(i, shape))
    return m.node(operands, equation=equation)


@generator("BatchNormalization")
def batch_norm(m: Maker) -> Draft:
    x = image(m) if m.draw.maybe(0.8) else m.draw.shape(2, 3)
    c = [x[1]]
    training = m.some(0, 0, 1)
    operands = [m.data(0, x), m.data(1, c), m.data(2, c), m.data(3, c), m.positive(4, c)]
    return m.node(operands, 3 if training else 1, epsilon=m.some(1e-5, 1e-3), training_mode=training)


@generator("InstanceNormalization", "GroupNormalization")
def instance_norm(m: Maker) -> Draft:
    x = image(m)
    if m.key[1] == "InstanceNormalization":
        return m.node([m.data(0, x), m.data(1, [x[1]]), m.data(2, [x[1]])], epsilon=m.some(1e-3))
    groups = m.draw.one([g for g in range(1, x[1] + 1) if x[1] % g == 0] or [1])
    count = [x[1] if m.version >= 21 else groups]
    return m.node([m.data(0, x), m.data(1, count), m.data(2, count)], num_groups=groups, epsilon=m.some(1e-3))


@generator("LayerNormalization", "RMSNormalization")
def layer_norm(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 4, large=0.3)
    axis = d.int(0, len(x) - 1)
    tail = x[axis:] if d.maybe(0.8) else d.broadcast(x[axis:])
    axis = axis - len(x) if d.maybe(0.5) else axis
    if m.key[1] == "RMSNormalization":
        return m.node([m.data(0, x), m.data(1, tail)], axis=axis, epsilon=m.some(1e-3))
    bias = m.maybe(0.6, lambda: m.data(2, tail))
    return m.node([m.data(0, x), m.data(1, tail), bias], d.one((1, 1, 2, 3)), axis=axis, epsilon=m.some(1e-3))


@generator("LRN")
def lrn(m: Maker) -> Draft:
    return m.node(
        [m.data(0, image(m))],
        size=m.draw.one((1, 2, 3, 5, 40)),
        alpha=m.some(1e-3, 0.5),
        beta=m.some(0.5),
        bias=m.some(2.0),
    )


@generator("MeanVarianceNormalization", "LpNormalization", "Softmax", "LogSoftmax", "Hardmax")
def along_axis(m: Maker) -> Draft:
    x = m.draw.shape(1, 4, large=0.3)
    if m.key[1] == "MeanVarianceNormalization":
        return m.node([m.data(0, x)], axes=m.draw.axes(len(x)) if m.draw.maybe(0.6) else None)
    p = m.some(1, 2) if m.key[1] == "LpNormalization" else None
    return m.node([m.data(0, x)], axis=m.draw.axis(len(x)) if m.draw.maybe(0.8) else None, p=p)


@generator("Resize", "Upsample")
def resize(m: Maker) -> Draft:
    d = m.draw
    x = image(m, rank=m.draw.one((1, 2, 2, 2, 3)), limit=4_000)
    scales = [1.0, 1.0, *(d.one((0.5, 0.25, 1.0, 1.5, 2.0, 2.0, 3.0, 0.7, 1.3)) for _ in x[2:])]
    if d.maybe(0.04):
        scales[d.int(0, len(scales) - 1)] = d.one((0.0, -1.0, 1e30, float("nan"), 1e-30, 1e6))
    scale = Operand(np.array(scales, np.float32), "setting")
    mode = d.one(("nearest", "linear", "cubic"))
    if m.key[1] == "Upsample":
        return m.node([m.data(0, x), scale], mode=d.one(("nearest", "linear")))
    if m.version == 10:
        return m.node([m.data(0, x), scale], mode=d.one(("nearest", "linear")))
    sizes = m.setting([*x[:2], *(d.one((1, 2, 5, 8, 0, n)) for n in x[2:])])
    roi = Operand(d.np.uniform(0, 1, 2 * len(x)).astype(np.float32)) if m.version == 11 or d.maybe(0.1) else None
    transforms = (
        "half_pixel",
        "asymmetric",
        "align_corners",
        "pytorch_half_pixel",
        "half_pixel_symmetric",
        "tf_crop_and_resize",
    )
    attributes = dict(
        mode=mode,
        coordinate_transformation_mode=m.some(*transforms),
        nearest_mode=m.some("floor", "ceil", "round_prefer_ceil"),
        cubic_coeff_a=m.some(-0.5),
        exclude_outside=m.some(0, 1),
        extrapolation_value=m.some(2.0),
    )
    if m.version >= 18:
        attributes.update(
            antialias=m.some(0, 1), keep_aspect_ratio_policy=m.some("stretch", "not_larger", "not_smaller")
        )
    if d.maybe(0.5):
        empty = Operand(np.zeros(0, np.float32), "setting") if m.version == 11 else None
        return m.node([m.data(0, x), roi, empty, sizes], **attributes)
    return m.node([m.data(0, x), roi, scale], **attributes)


@generator("GridSample")
def grid_sample(m: Maker) -> Draft:
    d, x = m.draw, image(m, rank=m.draw.one((2, 2, 2, 3)), limit=5_000)
    grid = [x[0], *(d.one((0, 1, 2, 5, 9)) for _ in x[2:]), len(x) - 2]
    modes = ("bilinear", "nearest", "bicubic") if m.version < 20 else ("linear", "nearest", "cubic")
    points = Operand(
        (d.np.uniform(-1.4, 1.4, grid)).astype(
            m.dtype(1) if m.dtype(1) in (np.float32, np.float64, np.float16) else np.float32
        )
    )
    return m.node(
        [m.data(0, x), points],
        mode=m.some(*modes),
        padding_mode=m.some("zeros", "border", "reflection"),
        align_corners=m.some(0, 1),
    )


@generator("AffineGrid")
def affine_grid(m: Maker) -> Draft:
    d = m.draw
    axes = d.one((2, 3))
    n = d.one(BATCH)
    size = [n, 1, *(d.one((0, 1, 2, 5)) for _ in range(axes))]
    return m.node([m.data(0, [n, axes, axes + 1]), m.setting(size)], align_corners=m.some(0, 1))


@generator("RNN", "LSTM", "GRU")
def recurrent(m: Maker) -> Draft:
    d = m.draw
    steps, batch, width, hidden = d.one((0, 1, 2, 5)), d.one(BATCH), d.one((1, 3, 8, 17)), d.one((1, 2, 5, 16, 20))
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[m.key[1]]
    direction = m.some("forward", "reverse", "bidirectional")
    count = 2 if direction == "bidirectional" else 1
    layout = m.some(0, 1) if m.version >= 14 else None
    x = [batch, steps, width] if layout else [steps, batch, width]
    state = [batch, count, hidden] if layout else [count, batch, hidden]
    lengths = m.maybe(0.4, lambda: Operand(d.np.integers(0, steps + 1, batch).astype(np.int32), "index", steps))
    operands = [
        m.data(0, x),
        m.data(1, [count, gates * hidden, width]),
        m.data(2, [count, gates * hidden, hidden]),
        m.maybe(0.6, lambda: m.data(3, [count, 2 * gates * hidden])),
        lengths,
        m.maybe(0.4, lambda: m.data(5, state)),
    ]
    if m.key[1] == "LSTM":
        operands += [m.maybe(0.4, lambda: m.data(6, state)), m.maybe(0.3, lambda: m.data(7, [count, 3 * hidden]))]
    return m.node(
        operands,
        d.int(1, 3 if m.key[1] == "LSTM" else 2),
        hidden_size=hidden,
        direction=direction,
        layout=layout,
        clip=m.some(1.0),
        linear_before_reset=m.some(0, 1) if m.key[1] == "GRU" else None,
    )


@generator("Attention")
def attention(m: Maker) -> Draft:
    d = m.draw
    batch, heads, width = d.one(BATCH), d.one((1, 2, 4)), d.one((1, 4, 8, 16, 33, 64))
    shared, past = d.one((1, 1, 2)), d.one((None, None, 0, 3, 17))
    queries, keys = d.size(large=0.3), d.size(large=0.3)
    total = keys + (past or 0)
    q, k = [batch, heads * shared, queries, width], [batch, heads, keys, width]
    attributes = dict(
        is_causal=m.some(0, 1), scale=m.some(0.5), softcap=m.some(2.0), qk_matmul_output_mode=m.some(0, 1, 2, 3)
    )
    if d.maybe(0.3):
        attributes.update(q_num_heads=heads * shared, kv_num_heads=heads)
        q, k = [batch, queries, heads * shared * width], [batch, keys, heads * width]
    mask = None
    if d.maybe(0.5):
        shape = d.one(([queries, total], [batch, 1, queries, total], [1, heads * shared, queries, total], [1, total]))
        mask = Operand(d.values(shape, np.bool_ if d.maybe(0.5) else m.dtype(0)))
    kept = [None, None]
    if past is not None:
        kept = [m.data(4, [batch, heads, past, width]), m.data(5, [batch, heads, past, width])]
    lengths = (
        m.maybe(0.1, lambda: Operand(d.np.integers(0, total + 1, batch), "index", total)) if m.version >= 24 else None
    )
    return m.node(
        [m.data(0, q), m.data(1, k), m.data(2, k), mask, *kept, lengths],
        d.one((1, 3, 4) if past is not None else (1, 1, 4)),
        **attributes,
    )


@generator("RotaryEmbedding")
def rotary(m: Maker) -> Draft:
    d = m.draw
    batch, heads, steps, width = d.one(BATCH), d.one((1, 2, 3)), d.size(), d.one((2, 4, 8, 16, 34))
    longest = max(steps, 1) + 3
    ids = m.maybe(0.6, lambda: Operand(d.np.integers(0, longest, (batch, steps)), "index", longest))
    table = [longest, width // 2] if ids else [batch, steps, width // 2]
    flat = d.maybe(0.3)
    x = [batch, steps, heads * width] if flat else [batch, heads, steps, width]
    return m.node(
        [m.data(0, x), m.data(1, table), m.data(2, table), ids],
        interleaved=m.some(0, 1),
        num_heads=heads if flat else m.some(0),
    )
