"""Attention, MultiHeadAttention, GroupQueryAttention and rotary embedding of com.microsoft."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx import errors
from tests.comparing import Tolerance, assert_same
from tests.normalize.contrib import (  # noqa: F401
    MICROSOFT,
    agree,
    fresh_numbers,
    gives,
    integers,
    model,
    normal,
    onnxruntime,
    ours,
    rng,
    scales,
    weights,
)

I32 = np.int32
BATCH, NEW, HEADS, SIZE, PAST = 2, 5, 2, 4, 3
WIDTH = HEADS * SIZE
F32 = np.float32


def masks(kind, keys):
    """A mask of each accepted shape; but for one, the first key is always valid."""
    keys_valid, queries_valid = rng.integers(0, 2, (BATCH, keys)), rng.integers(0, 2, (BATCH, NEW, keys))
    keys_valid[:, 0] = queries_valid[:, :, 0] = 1
    return {
        "none": None,
        "ends": np.array([3, keys], I32),
        "ends and starts": np.array([4, keys, 1, 2], I32),
        "keys": keys_valid.astype(I32),
        "queries": queries_valid.astype(I32),
        "nothing": np.zeros((BATCH, keys), I32),
    }[kind]


@pytest.mark.parametrize("past", [0, PAST])
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("mask", ["none", "ends", "ends and starts", "keys", "queries", "nothing"])
def test_attention(mask, unidirectional, past):
    state = normal(2, BATCH, HEADS, past, SIZE) if past else None
    inputs = (normal(BATCH, NEW, 6), normal(6, 3 * WIDTH), normal(3 * WIDTH), masks(mask, NEW + past), state)
    # Scores near -10,000 have three decimals in f32.
    tolerance = 1e-3 if mask == "nothing" else 2e-5
    flags = {"num_heads": HEADS, "unidirectional": unidirectional}
    agree("Attention", *inputs, outputs=2, tolerance=tolerance, **flags)


def test_attention_options():
    x, w, b = normal(BATCH, NEW, 6), normal(6, 2 * WIDTH + 12), normal(2 * WIDTH + 12)
    agree("Attention", x, w, b, num_heads=HEADS, qkv_hidden_sizes=[WIDTH, WIDTH, 12], scale=0.3)
    w, b = w[:, : 3 * WIDTH].copy(), b[: 3 * WIDTH].copy()
    for shape in ((BATCH, HEADS, NEW, NEW), (1, 1, NEW, NEW)):
        agree("Attention", x, w, b, masks("keys", NEW), None, normal(*shape), num_heads=HEADS, mask_filter_value=-50.0)


@pytest.mark.parametrize("attributes", [{"do_rotary": 1}, {"past_present_share_buffer": 1}])
def test_attention_refuses_what_it_cannot_do(attributes):
    proto = model("Attention", (normal(1, 2, 4), normal(4, 12), normal(12)), {"num_heads": 1, **attributes})
    with pytest.raises(errors.NotImplemented, match=next(iter(attributes))):
        ours(proto, {})


@pytest.mark.parametrize("past", [0, PAST])
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("mask", ["none", "ends", "keys", "queries"])
@pytest.mark.parametrize("biased", [False, True])
def test_multi_head_attention(mask, unidirectional, past, biased):
    # With more keys than queries, onnxruntime lets the last query look ahead: not tested.
    keys, width = NEW if past or unidirectional else 7, WIDTH if past else 12
    total = keys + past
    bias = normal(2 * WIDTH + width) if biased else None
    extra = normal(BATCH if unidirectional else 1, HEADS, NEW, total) if biased else None
    state = (normal(BATCH, HEADS, past, SIZE), normal(BATCH, HEADS, past, SIZE)) if past else ()
    qkv = normal(BATCH, NEW, WIDTH), normal(BATCH, keys, WIDTH), normal(BATCH, keys, width)
    flags = {"num_heads": HEADS, "unidirectional": unidirectional}
    inputs = (*qkv, bias, masks(mask, total), extra, *state)
    agree("MultiHeadAttention", *inputs, outputs=3, **flags)
    # Where a query may not look, onnxruntime writes the lowest float and ai.onnx minus infinity.
    agree("MultiHeadAttention", *inputs, outputs=[F32] * 4, select=lambda _, x: np.maximum(x, -1e5), **flags)


def test_multi_head_attention_over_split_heads():
    q, k, v = normal(BATCH, NEW, WIDTH), normal(BATCH, HEADS, 7, SIZE), normal(BATCH, HEADS, 7, SIZE)
    agree("MultiHeadAttention", q, k, v, num_heads=HEADS)


@pytest.mark.parametrize("attribute", ["value", "value_ints"])
def test_ranks_that_follow_from_constant_nodes(attribute):
    """Sizes and axes may be Constant nodes, as some builders write them, in models that state no inner shapes."""
    held = helper.make_tensor("", TensorProto.INT64, [1], [0]) if attribute == "value" else [0]
    nodes = [
        helper.make_node("Constant", [], ["axes"], **{attribute: held}),
        helper.make_node("Shape", ["x"], ["length"], start=1, end=2),
        helper.make_node("Squeeze", ["length", "axes"], ["count"]),
        helper.make_node("Range", ["zero", "count", "one"], ["steps"]),
        helper.make_node("Unsqueeze", ["steps", "axes"], ["row"]),
        helper.make_node("Gather", ["table", "row"], ["places"]),
        helper.make_node("Add", ["x", "places"], ["q"]),
        helper.make_node("MultiHeadAttention", ["q", "q", "q"], ["y"], domain=MICROSOFT, num_heads=HEADS),
    ]
    held_values = {"zero": np.array(0), "one": np.array(1), "table": normal(32, WIDTH)}
    graph = helper.make_graph(
        nodes,
        "places",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", WIDTH])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(x, name) for name, x in held_values.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    for batch, length in ((2, 5), (1, 9)):
        feeds = {"x": normal(batch, length, WIDTH)}
        (want,), (got,) = onnxruntime(proto, feeds), ours(proto, feeds)
        assert_same(got, want, Tolerance(of_largest=2e-5, least=1.0))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_multi_head_attention_over_packed_inputs():
    packed = normal(BATCH, NEW, HEADS, 3, SIZE)
    q, k, v = (packed[:, :, :, i].transpose(0, 2, 1, 3) for i in range(3))
    y = softmax(q @ k.swapaxes(2, 3) / np.sqrt(F32(SIZE))) @ v
    want = y.transpose(0, 2, 1, 3).reshape(BATCH, NEW, WIDTH)
    gives("MultiHeadAttention", (packed,), [want], num_heads=HEADS)
    query = packed[:, :, :, 0].reshape(BATCH, NEW, WIDTH)
    gives("MultiHeadAttention", (query, packed[:, :, :, 1:].copy()), [want], num_heads=HEADS)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_decoder_attention_writes_into_its_cache(biased, masked):
    mask = rng.integers(0, 2, (BATCH, PAST + 1)).astype(I32) if masked else None
    qkv = [normal(BATCH, 1, WIDTH) for _ in range(3)]
    caches = [normal(BATCH, HEADS, 8, SIZE) for _ in range(2)]
    at, beams, bias = np.array([PAST], I32), np.array([1], I32), normal(3 * WIDTH) if biased else None
    inputs = (*qkv, mask, None, *caches, at, beams, None, bias)
    written = slice(0, PAST + 1)
    agree(
        "DecoderMaskedMultiHeadAttention",
        *inputs,
        outputs=3,
        select=lambda k, x: x[:, :, written] if k else x,
        num_heads=HEADS,
        past_present_share_buffer=1,
    )


def test_decoder_attention_over_another_sequence():
    inputs = normal(BATCH, 1, WIDTH), normal(BATCH, HEADS, 7, SIZE), normal(BATCH, HEADS, 7, SIZE)
    agree("DecoderMaskedMultiHeadAttention", *inputs, num_heads=HEADS)


@pytest.mark.parametrize("weight", [np.int8, np.uint8])
@pytest.mark.parametrize("past", [0, PAST])
@pytest.mark.parametrize("per_column", [False, True])
def test_quantized_attention(weight, past, per_column):
    columns = (3 * WIDTH,) if per_column else ()
    agree(
        "QAttention",
        integers(np.uint8, BATCH, NEW, 6),
        weights(weight, 6, 3 * WIDTH),
        normal(3 * WIDTH),
        scales(),
        scales(*columns),
        np.array([2, NEW + past], I32),
        integers(np.uint8),
        integers(weight, *columns),
        normal(2, BATCH, HEADS, past, SIZE) if past else None,
        outputs=2 if past else 1,
        tolerance=1e-4,
        num_heads=HEADS,
        unidirectional=int(past > 0),
    )


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float16, 3e-3)])
def test_rotary_embedding(interleaved, dtype, tolerance):
    def g(*shape):
        return normal(*shape, dtype=dtype)

    cos, sin, places = g(10, 2), g(10, 2), rng.integers(0, 10, (BATCH, NEW))
    options = {"interleaved": interleaved, "tolerance": tolerance}
    for positions in (places, np.array([2])):
        agree("RotaryEmbedding", g(BATCH, NEW, WIDTH), positions, cos, sin, **options)
        agree("RotaryEmbedding", g(BATCH, HEADS, NEW, SIZE), positions, cos, sin, **options)
    agree("RotaryEmbedding", g(BATCH, NEW, 16), places, cos, sin, num_heads=2, rotary_embedding_dim=4, **options)


STEPS = {
    "prompt": (5, 5, [4, 2], 0),
    "prompt into a longer cache": (5, 5, [4, 2], 9),
    "token": (1, 7, [6, 3], 6),
    "token into a longer cache": (1, 7, [6, 3], 12),
    "chunk": (3, 7, [6], 4),
}
"""New tokens, the longest row's tokens, each row's last position, and the cache's length."""

VARIANTS = [
    {},
    {"rotary": 1},
    {"rotary": 1, "rotary_interleaved": 1},
    {"rotary": 1, "packed": True},
    {"rotary": 1, "dtype": np.float16},
    {"rotary": 1, "positions": True},
    {"local_window_size": 2},
    {"softcap": 3.0},
    {"smooth_softmax": 1},
    {"sink": True},
    {"sink": True, "local_window_size": 2, "softcap": 2.0},
    {"bias": (-1, -1)},
    {"bias": (1, 1)},
    {"bias": (-1, -1), "softcap": 2.0, "local_window_size": 3},
    {"scale": 0.2},
    {"causal": 0},
    {"causal": 0, "bias": (-1, -1)},
    {"qk_output": 1, "softcap": 2.0},
    {"qk_output": 2, "sink": True},
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: ",".join(v) or "plain")
def test_group_query_attention(step, variant):
    (new, longest, last, room), options = STEPS[step], dict(variant)
    heads, kv_heads, size, rows = 4, 2, 16, len(last)
    dtype, packed = options.pop("dtype", F32), options.pop("packed", False)

    def g(*shape):
        return normal(*shape, dtype=dtype)

    q, k, v = (g(rows, new, n * size) for n in (heads, kv_heads, kv_heads))
    first = longest == new
    caches = [g(rows, kv_heads, room, size) for _ in range(2)]
    for cache in caches:
        for row, end in enumerate(last):
            cache[row, :, 0 if first else end + 1 - new :] = 0
    qkv = (np.concatenate([q, k, v], -1), None, None) if packed else (q, k, v)
    rotary = options.pop("rotary", 0)
    turns = (g(20, size // 2), g(20, size // 2)) if rotary else (None, None)
    starts = [0 if first else end + 1 - new for end in last]
    places = np.stack([np.arange(new) + start + 1 for start in starts]) if options.pop("positions", False) else None
    spread = options.pop("bias", None)
    bias = (
        None
        if spread is None
        else g(*(n if s < 0 else s for s, n in zip(spread, (rows, heads), strict=True)), new, longest)
    )
    sink = g(heads) if options.pop("sink", False) else None
    scores = 1 if "qk_output" in options else 0

    def specified(k, x):
        """Outputs of padding, and scores between padding, are not."""
        if k in (1, 2):
            return x
        parts = [x[b, :end] if first else x[b] for b, end in enumerate(e + 1 for e in last)]
        if k == 3:
            parts = [x[b, :, : end if first else new, :end] for b, end in enumerate(e + 1 for e in last)]
        return np.concatenate([p.ravel() for p in parts])

    agree(
        "GroupQueryAttention",
        *(*qkv, *caches, np.array(last, I32), np.array([longest], I32), *turns, places, bias, sink),
        outputs=[dtype] * (3 + scores),
        select=specified,
        tolerance=2e-5 if dtype == F32 else 5e-3,
        num_heads=heads,
        kv_num_heads=kv_heads,
        do_rotary=rotary,
        **options,
    )


def test_group_query_attention_without_a_cache():
    q, k, v = normal(2, 5, 64), normal(2, 5, 16), normal(2, 5, 16)
    lengths = np.array([4, 4], I32), np.array([5], I32)
    agree("GroupQueryAttention", q, k, v, None, None, *lengths, outputs=3, num_heads=4, kv_num_heads=1)


def test_group_query_attention_normalizes_heads():
    """Norm weights of ones do to query and key what dividing them by their root mean square does."""
    q, k, v = normal(1, 3, 16), normal(1, 3, 16), normal(1, 3, 16)
    roots = [np.sqrt((x.reshape(1, 3, 2, 8) ** 2).mean(-1, keepdims=True) + 1e-6) for x in (q, k)]
    unit = [x / root.repeat(8, -1).reshape(x.shape) for x, root in zip((q, k), roots, strict=True)]
    lengths, ones = (np.array([2], I32), np.array([3], I32)), np.ones(8, F32)
    flags = {"num_heads": 2, "kv_num_heads": 2}
    rest = (None,) * 7
    plain = (*unit, v, None, None, *lengths)
    want = ours(model("GroupQueryAttention", plain, flags), {f"i{k}": x for k, x in enumerate(plain) if x is not None})
    gives("GroupQueryAttention", (q, k, v, None, None, *lengths, *rest, ones, ones), want, **flags)
