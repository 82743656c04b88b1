import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peers import agree, integers, meaning, normal, reference, rounds_once, same

B, H, S, T, D, V = 2, 4, 5, 7, 6, 3


def qkv(heads=H, dtype=np.float32):
    return normal(B, H, S, D, dtype=dtype), normal(B, heads, T, D, dtype=dtype), normal(B, heads, T, V, dtype=dtype)


def packed(heads=H):
    return [x.transpose(0, 2, 1, 3).reshape(B, x.shape[2], -1) for x in qkv(heads)]


MASKS = {
    "none": None,
    "float": normal(S, T),
    "heads": normal(H, S, T),
    "full": normal(B, 1, S, T),
    "bool": np.random.default_rng(0).random((B, H, S, T)) < 0.6,
    "rows": np.arange(S * T).reshape(S, T) % 9 > S,
    "short": normal(S, T - 2),
    "one": normal(S, 1),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("heads", [H, 2, 1])
def test_masks(mask, causal, heads):
    agree("Attention", *qkv(heads), MASKS[mask], is_causal=causal, peer=reference)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("heads", [H, 2])
def test_agrees_with_onnxruntime(causal, heads):
    agree("Attention", *qkv(heads), MASKS["full"], is_causal=causal, scale=0.2, softcap=1.5)
    agree("Attention", *packed(heads), is_causal=causal, q_num_heads=H, kv_num_heads=heads)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("softcap", [0.0, 0.7])
def test_stages_of_the_scores(mode, softcap):
    args = (*qkv(), MASKS["full"])
    got = meaning("Attention", *args, outputs=4, qk_matmul_output_mode=mode, softcap=softcap)
    q, k = args[0].astype(np.float64), args[1].astype(np.float64)
    expected = q @ k.swapaxes(2, 3) / np.sqrt(D)
    if mode >= 1 and softcap:
        expected = softcap * np.tanh(expected / softcap)
    if mode >= 2:
        expected = expected + args[3]
    if mode == 3:
        expected = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
    same(got[3:], (expected.astype(np.float32),))


@pytest.mark.parametrize("causal", [0, 1])
def test_past_and_present(causal):
    past = normal(B, 2, 3, D, seed=1), normal(B, 2, 3, V, seed=1)
    args = (*qkv(2), normal(S, T + 3), *past)
    agree("Attention", *args, outputs=4, is_causal=causal, peer=reference)
    agree(
        "Attention", *packed(2), None, *past, outputs=3, is_causal=causal, q_num_heads=H, kv_num_heads=2, peer=reference
    )


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("lens", [[7, 5], [3, 6]])
def test_external_cache(causal, lens):
    agree("Attention", *qkv(), None, None, None, np.array(lens), is_causal=causal, peer=reference)
    agree("Attention", *qkv(), MASKS["float"], None, None, np.array(lens), is_causal=causal, peer=reference)


@pytest.mark.parametrize("window", [(2, -1), (-1, 1), (1, 1), (0, 0)])
@pytest.mark.parametrize("causal", [0, 1])
def test_sliding_window(window, causal):
    left, right = window
    q, k, v = qkv()
    ahead = np.arange(T) - np.arange(S)[:, None]
    seen = (left < 0) | (ahead >= -left)
    seen &= (right < 0) | (ahead <= right)
    seen &= (not causal) | (ahead <= 0)
    got = meaning("Attention", q, k, v, left_window_size=left, right_window_size=right, is_causal=causal)
    same(got, meaning("Attention", q, k, v, seen))


def test_a_query_that_sees_nothing_gives_zero():
    mask = np.ones((S, T), bool)
    mask[2] = False
    (y,) = meaning("Attention", *qkv(), mask)
    assert not y[:, :, 2].any() and y[:, :, 1].all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_round_once(dtype):
    rounds_once("Attention", dtype, *qkv(2), normal(S, T), is_causal=1)
    rounds_once(
        "RotaryEmbedding", dtype, normal(B, H, S, D), normal(9, D // 2), normal(9, D // 2), integers(0, 9, B, S)
    )


def test_doubles():
    agree("Attention", *qkv(dtype=np.float64), softmax_precision=11, peer=reference, tolerance=1e-12)


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        (packed(), {}),
        (packed(), {"q_num_heads": 5, "kv_num_heads": 4}),
        ((*qkv()[:2], normal(B, H, T + 1, V)), {}),
        ((normal(B, 3, S, D), *qkv(2)[1:]), {}),
        ((*qkv(), normal(S, T + 1)), {}),
        ((*qkv(), None, normal(B, H, 3, D)), {}),
    ],
)
def test_inputs_that_do_not_fit(inputs, attributes):
    with pytest.raises(errors.InvalidArgument):
        meaning("Attention", *inputs, **attributes)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("partial", [0, 4])
@pytest.mark.parametrize("ids", [False, True])
def test_rotary(interleaved, partial, ids):
    half = (partial or D) // 2
    shape = (9, half) if ids else (B, S, half)
    caches = normal(*shape), normal(*shape, seed=1)
    positions = integers(0, 9, B, S) if ids else None
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": partial, "peer": reference}
    agree("RotaryEmbedding", normal(B, H, S, D), *caches, positions, **attributes)
    agree("RotaryEmbedding", normal(B, S, H * D), *caches, positions, num_heads=H, **attributes)


@pytest.mark.parametrize("bad", [-1, 9])
def test_rotary_checks_positions(bad):
    with pytest.raises(errors.InvalidArgument, match=f"0 to 8; got: {bad}"):
        meaning("RotaryEmbedding", normal(1, 1, 1, 4), normal(9, 2), normal(9, 2), np.array([[bad]]))


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("heads", [H, 2])
@pytest.mark.parametrize("wide", [False, True])
def test_linear_attention(rule, heads, wide):
    q, k, v = normal(B, S, H * D), normal(B, S, heads * D) * 0.3, normal(B, S, heads * V)
    decay = -np.abs(normal(B, S, heads * D if wide else heads)) if rule.startswith("gated") else None
    beta = np.abs(normal(B, S, heads if wide else 1)) if rule.endswith("delta") else None
    args = (q, k, v, normal(B, heads, D, V), decay, beta)
    attributes = {"q_num_heads": H, "kv_num_heads": heads, "update_rule": rule}
    got = meaning("LinearAttention", *args, outputs=2, **attributes)
    from onnx.reference.ops.op_linear_attention import LinearAttention

    expected = LinearAttention._run(None, *args, **attributes)
    same(got, expected)
    first = meaning(
        "LinearAttention", *(a if a is None or a.ndim == 4 else a[:, :2] for a in args), outputs=2, **attributes
    )
    rest = [a if a is None else first[1] if a.ndim == 4 else a[:, 2:] for a in args]
    same(meaning("LinearAttention", *rest, outputs=2, **attributes)[1:], got[1:])
