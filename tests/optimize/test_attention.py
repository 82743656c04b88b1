"""Attention as exporters write it, and what only looks like it.

Heads have 6 elements: the root of 1/6 is no power of two, so that a scale in the wrong place changes the numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.optimize.rewritten import Case, check

CORE = ("FuseAttention", "FoldAttentionScale")
ALL = (
    "FuseRotaryEmbedding", "FuseAttention", "FoldAttentionScale", "FoldRepeatedHeads", "RemoveDeadCode", "FoldPast",
    "FoldHeads", "FoldAttentionScale", "ShareDuplicates",
)  # fmt: skip
Q, K, V = (2, 3, 5, 6), (2, 3, 7, 6), (2, 3, 7, 4)
QKV: dict[str, Any] = {"q": Q, "k": K, "v": V}


def f32(number: float) -> Any:
    return np.array(number, np.float32)


S, HALF, OVER = f32(6**-0.5), f32(6**-0.25), f32(6**0.5)
LOWEST = f32(float(np.finfo(np.float32).min))
PAST = {"q": Q, "k": (2, 3, 5, 6), "v": (2, 3, 5, 4), "pk": (2, 3, 2, 6), "pv": (2, 3, 2, 4)}


def padded(*shape: int) -> Any:
    """Which keys count; none does in the first row."""
    keys = np.random.default_rng(1).random(shape) < 0.6
    keys[..., 0] = True
    keys[(0,) * (len(shape) - 1)] = False
    return keys


def core(scores: str, *, q: str = "q", kt: str = "kt", weights: str = "p = Softmax(s)") -> str:
    return f"kt = Transpose<perm=[0,1,3,2]>(k) {scores.replace('QK', f'MatMul({q}, {kt})')} {weights} y = MatMul(p, v)"


SCORES = {
    "unscaled": Case(core("s = QK"), ["Attention"], QKV),
    "scaled after": Case(core("r = QK s = Mul(c, r)"), ["Attention"], QKV, {"c": S}),
    "divided after": Case(core("r = QK s = Div(r, c)"), ["Attention"], QKV, {"c": OVER}),
    "queries divided": Case(core("t = Div(q, c) s = QK", q="t"), ["Attention"], QKV, {"c": OVER}),
    "both scaled by the root": Case(
        core("t = Mul(q, c) u = Mul(c, kt) s = QK", q="t", kt="u"), ["Attention"], QKV, {"c": HALF}
    ),
    "soft cap": Case(
        core("r = QK t = Div(r, c) u = Tanh(t) w = Mul(u, c) s = Add(w, m)"),
        ["Attention"], {**QKV, "m": (2, 1, 5, 7)}, {"c": f32(1.5)},
    ),
    "mask of keys": Case(
        core("r = QK t = Mul(r, c) s = Add(m, t)"), ["Attention"], {**QKV, "m": (2, 1, 1, 7)}, {"c": S}
    ),
    "mask of rank 2": Case(core("r = QK s = Add(r, m)"), ["Attention"], {**QKV, "m": (5, 7)}),
    "bias and mask": Case(
        core("r = QK t = Add(r, b) s = Add(t, m)"), ["Add", "Attention"], {**QKV, "m": (2, 1, 5, 7), "b": (1, 3, 5, 7)}
    ),
    "nothing added, then a mask": Case(
        core("r = QK t = Add(r, z) s = Add(t, m)"), ["Attention"], {**QKV, "m": (2, 1, 5, 7)}, {"z": f32(0)}
    ),
    "lowest number for padding": Case(
        core("r = QK m = Where(w, z, c) s = Add(r, m)"), ["Where", "Attention"], {**QKV, "w": padded(2, 1, 1, 7)},
        {"c": LOWEST, "z": f32(0)},
    ),
    "lowest number in place": Case(
        core("r = QK s = Where(w, r, c)"), ["Where", "Attention"], {**QKV, "w": padded(2, 1, 1, 7)}, {"c": LOWEST}
    ),
    "lowest number in place, dropped": Case(
        core("r = QK s = Where(w, c, r)"), ["Where", "Attention"], {**QKV, "w": ~padded(2, 1, 1, 7)}, {"c": LOWEST}
    ),
    "-inf in place, no row empty": Case(
        core("r = QK s = Where(w, r, c)"), ["Attention"], {**QKV, "w": padded(1, 3, 5, 7) | (np.arange(7) == 0)},
        {"c": f32(-np.inf)},
    ),
    "-inf and a guard, a row empty": Case(
        core("r = QK s = Where(w, r, c)", weights="f = Softmax(s) n = IsNaN(f) p = Where(n, z, f)"),
        ["Attention"], {**QKV, "w": padded(2, 1, 5, 7)}, {"c": f32(-np.inf), "z": f32(0)},
    ),
    "-inf dropped and a guard": Case(
        core("r = QK s = Where(w, c, r)", weights="f = Softmax<axis=3>(s) n = IsNaN(f) p = Where(n, z, f)"),
        ["Not", "Attention"], {**QKV, "w": ~padded(2, 1, 5, 7)}, {"c": f32(-np.inf), "z": f32(0)},
    ),
    "a low number under a constant triangle": Case(
        core("o = Constant<value_ints=[5]>() u = Constant<value_ints=[7]>() a = Constant<value_ints=[2]>() "
             "e = Constant<value_ints=[3]>() n = Constant<value_ints=[0]>() f = Slice(w, n, o, a) "
             "g = Slice(f, n, u, e) r = QK s = Where(g, r, c)"),
        ["Attention"], QKV, {"c": f32(-1e4), "w": np.tril(np.ones((1, 1, 9, 9), bool))},
    ),
    "keys given transposed": Case(
        "s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v)", ["Transpose", "Attention"], {**QKV, "k": (2, 3, 6, 7)}
    ),
    "keys swapped as one batch": Case(
        "a = Reshape(k, l) b = Transpose<perm=[0,2,1]>(a) kt = Reshape(b, o) s = MatMul(q, kt) p = Softmax(s) "
        "y = MatMul(p, v)",
        ["Attention"], QKV, {"l": np.array([-1, 7, 6]), "o": np.array([2, 3, 6, 7])},
    ),
    "one key head for all": Case(core("s = QK"), ["Attention"], {"q": Q, "k": (2, 1, 7, 6), "v": (2, 1, 7, 4)}),
}  # fmt: skip


@pytest.mark.parametrize("case", SCORES.values(), ids=SCORES.keys())
def test_the_core_becomes_one_operator(case: Case) -> None:
    check(case, *CORE, tolerance=1e-5)


LEFT = {
    "keys of another batch": (core("s = QK"), {**QKV, "k": (1, 3, 7, 6)}, {}, "the batch is not known"),
    "fewer key heads than value heads": (core("s = QK"), {**QKV, "k": (2, 1, 7, 6)}, {}, "the heads are not known"),
    "a mask of one key": (core("r = QK s = Add(r, m)"), {**QKV, "m": (2, 1, 5, 1)}, {}, "to cover all keys"),
    "a mask that makes a batch": (
        core("r = QK s = Add(r, m)"), {"q": (1, 3, 5, 6), "k": (1, 3, 7, 6), "v": (1, 3, 7, 4), "m": (2, 1, 5, 7)}, {},
        "to broadcast to the scores",
    ),
    "a scale of many numbers": (
        core("r = QK s = Mul(r, c)"), {**QKV, "c": (2, 3, 5, 7)}, {}, "the scale is not a scalar"
    ),
    "a low number for padding": (
        core("r = QK s = Where(w, r, c)"), {**QKV, "w": padded(2, 1, 1, 7)}, {"c": f32(-1e4)}, "not low enough"
    ),
    "two soft caps": (
        core("r = QK t = Div(r, c) u = Tanh(t) s = Mul(u, d)"), QKV, {"c": f32(2), "d": f32(3)},
        "divides and multiplies",
    ),
    "three axes": (
        "kt = Transpose<perm=[0,2,1]>(k) s = MatMul(q, kt) p = Softmax(s) y = MatMul(p, v)",
        {"q": (6, 5, 6), "k": (6, 7, 6), "v": (6, 7, 4)}, {}, "to have 4 axes",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "feeds", "consts", "reason"), LEFT.values(), ids=LEFT.keys())
def test_near_attentions_are_kept(body: str, feeds: Any, consts: Any, reason: str) -> None:
    report = check(Case(body, _ops_of(body), feeds, consts, reason=reason), "FuseAttention", tolerance=1e-5)
    assert "FuseAttention" not in report.count()


def _ops_of(body: str) -> list[str]:
    """The operators of a body, in order."""
    return [part.split("(")[0].split("<")[0] for part in body.split(" = ")[1:]]


def test_weights_that_others_read_stay() -> None:
    body = core("s = QK")
    case = Case(
        body, _ops_of(body), QKV, outputs="float[] y, float[] p", reason="'p', inside the pattern, is a graph output"
    )
    check(case, "FuseAttention")


SPLIT = (
    "a = Reshape(q, l) b = Transpose<perm=[0,2,1,3]>(a) c = Reshape(k, l) d = Transpose<perm=[0,2,{}]>(c) "
    "e = Reshape(v, l) f = Transpose<perm=[0,2,1,3]>(e) "
)
MERGE = " o = Transpose<perm=[0,2,1,3]>(z) y = Reshape(o, n)"
WRITTEN = SPLIT.format("3,1") + "r = MatMul(b, d) s = Mul(r, x) p = Softmax(s) z = MatMul(p, f)" + MERGE
FLAT: dict[str, Any] = {"q": (2, 5, 18), "k": (2, 7, 18), "v": (2, 7, 18)}
TO = {"l": np.array([0, 0, -1, 6]), "n": np.array([0, 0, -1]), "x": S}
NAMED = {"q": "[B,S,18]", "k": "[B,T,18]", "v": "[B,T,18]"}
OFFSET = "g = Mul(q, x) " + WRITTEN.replace("Reshape(q", "Reshape(g").replace(
    "s = Mul(r, x) p = Softmax(s)", "p = Softmax(r)"
)

HEADS = {
    "split and merged": Case(WRITTEN, ["Attention"], FLAT, TO),
    "sizes that are names": Case(WRITTEN, ["Attention"], FLAT, TO, symbols=NAMED),
    "targets without zeros": Case(
        WRITTEN, ["Attention"], {**FLAT, "q": (2, 7, 18)},
        {**TO, "l": np.array([2, 7, 3, 6]), "n": np.array([2, 7, 18])},
    ),
    "merged with the batch": Case(WRITTEN, ["Attention", "Reshape"], FLAT, {**TO, "n": np.array([-1, 18])}),
    "scaled before the split": Case(OFFSET, ["Attention"], FLAT, TO),
    "split from rows": Case(
        WRITTEN, ["Reshape", "Reshape", "Reshape", "Attention"], {"q": (14, 18), "k": (14, 18), "v": (14, 18)},
        {**TO, "l": np.array([2, 7, 3, 6])},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADS.values(), ids=HEADS.keys())
def test_heads_are_taken_in(case: Case) -> None:
    check(case, *ALL, tolerance=1e-5)


def test_heads_that_are_read_before_they_are_merged_stay_outside() -> None:
    case = Case(WRITTEN, [], FLAT, TO, outputs="float[] y, float[] z", reason="heads are not merged")
    case.after = [
        "Reshape",
        "Transpose",
        "Reshape",
        "Reshape",
        "Transpose",
        "Transpose",
        "Attention",
        "Transpose",
        "Reshape",
    ]
    check(case, *ALL, tolerance=1e-5)


def test_heads_that_keep_an_axis_of_their_own_stay_outside() -> None:
    case = Case(WRITTEN, [], FLAT, {**TO, "n": np.array([0, -1, 0])}, reason="merged heads keep the size")
    case.after = [
        "Reshape",
        "Transpose",
        "Reshape",
        "Reshape",
        "Transpose",
        "Transpose",
        "Attention",
        "Transpose",
        "Reshape",
    ]
    check(case, *ALL, tolerance=1e-5)


CACHE = "i = Concat<axis=2>(pk, k) j = Concat<axis=-2>(pv, v) kt = Transpose<perm=[0,1,3,2]>(i) "
USE = "r = MatMul(q, kt) s = Add(r, m) p = Softmax(s) y = MatMul(p, j)"


def test_a_cache_is_taken_in_and_given_out() -> None:
    feeds = {**PAST, "m": (2, 1, 5, 7)}
    case = Case(CACHE + USE, ["Attention"], feeds, outputs="float[] y, float[] i, float[] j")
    check(case, *ALL, tolerance=1e-5)


def test_a_cache_that_others_read_stays_outside() -> None:
    feeds = {**PAST, "m": (2, 1, 5, 7)}
    case = Case(CACHE + "h = Neg(i) " + USE, ["Concat", "Concat", "Neg", "Attention"], feeds,
                outputs="float[] y, float[] h", reason="the grown cache is also read by")  # fmt: skip
    check(case, *ALL, tolerance=1e-5)


REPEAT = (
    "ku = Unsqueeze(k, t) kw = Expand(ku, w) kr = Reshape(kw, f) "
    "vu = Unsqueeze(v, t) vw = Expand(vu, w) vr = Reshape(vw, f) "
    "kt = Transpose<perm=[0,1,3,2]>(kr) s = MatMul(q, kt) p = Softmax(s) y = MatMul(p, vr)"
)
SHARED = {"q": (2, 6, 5, 6), "k": (2, 3, 7, 6), "v": (2, 3, 7, 6)}
TWICE = {"t": np.array([2]), "w": np.array([2, 3, 2, 7, 6]), "f": np.array([2, 6, 7, 6])}


def test_repeated_heads_are_shared() -> None:
    check(Case(REPEAT, ["Attention"], SHARED, TWICE), *ALL, tolerance=1e-5)


def test_examples_that_are_repeated_with_heads_stay() -> None:
    feeds = {**SHARED, "k": (1, 3, 7, 6), "v": (1, 3, 7, 6)}
    after = ["Unsqueeze", "Expand", "Reshape", "Unsqueeze", "Expand", "Reshape", "Attention"]
    check(Case(REPEAT, after, feeds, TWICE, reason="axes other than the heads are repeated"), *ALL, tolerance=1e-5)


def test_heads_repeated_in_another_order_stay() -> None:
    body, twice = REPEAT, {**TWICE, "t": np.array([1]), "w": np.array([2, 2, 3, 7, 6])}
    after = ["Unsqueeze", "Expand", "Reshape", "Unsqueeze", "Expand", "Reshape", "Attention"]
    check(Case(body, after, SHARED, twice), *ALL, tolerance=1e-5)


ROTARY = (
    "c2 = Concat<axis=-1>(a, a) c = Cos(c2) d = Sin(c2) cu = Unsqueeze(c, one) su = Unsqueeze(d, one) "
    "low = Slice(x, zero, half, last) high = Slice(x, half, end, last) n = Neg(high) r = Concat<axis=-1>(n, low) "
    "t = Mul(x, cu) u = Mul(r, su) y = Add(t, u)"
)
BOUNDS = {
    "one": np.array([1]), "zero": np.array([0]), "half": np.array([3]), "last": np.array([3]),
    "end": np.array([2**63 - 1]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("feeds", "after"),
    [
        ({"x": Q, "a": (2, 5, 3)}, ["Cos", "Sin", "RotaryEmbedding"]),
        ({"x": Q, "a": (1, 5, 3)}, ["Cos", "Expand", "Sin", "Expand", "RotaryEmbedding"]),
    ],
    ids=["angles of each example", "angles that examples share"],
)
def test_rotary_positions(feeds: Any, after: list[str]) -> None:
    check(Case(ROTARY, after, feeds, BOUNDS), "FuseRotaryEmbedding", tolerance=1e-5)


TABLED = (
    ROTARY[ROTARY.index("cu = ") :].replace("Unsqueeze(c,", "Unsqueeze(cg,").replace("Unsqueeze(d,", "Unsqueeze(sg,")
)
ANGLES = np.random.default_rng(2).random((9, 3)).astype(np.float32)


@pytest.mark.parametrize("turn", [0, 1], ids=["equal halves", "halves that differ"])
def test_angles_from_a_table(turn: int) -> None:
    body = "cg = Gather(cos, at) sg = Gather(sin, at) " + TABLED
    table = np.concatenate([ANGLES, np.roll(ANGLES, turn, axis=1)], axis=1)
    consts = {**BOUNDS, "cos": np.cos(table), "sin": np.sin(table)}
    after = _ops_of(body) if turn else ["Gather", "Gather", "RotaryEmbedding"]
    feeds = {"x": Q, "at": np.array([[3, 1, 4, 1, 5], [8, 2, 6, 5, 0]])}
    check(Case(body, after, feeds, consts, reason="halves" if turn else ""), "FuseRotaryEmbedding", tolerance=1e-5)


def test_angles_that_differ_between_halves_stay() -> None:
    body = ROTARY.replace("Concat<axis=-1>(a, a)", "Concat<axis=-1>(a, b)")
    case = Case(body, _ops_of(body), {"x": Q, "a": (2, 5, 3), "b": (2, 5, 3)}, BOUNDS, reason="not known to be equal")
    check(case, "FuseRotaryEmbedding")


RANGES = (
    "hw = Shape(w) n0 = Gather(hw, i0) n1 = Gather(hw, i1) r0 = Range(i0, n0, i1) r1 = Range(i0, n1, i1) "
    "rows = Unsqueeze(r0, a123) columns = Unsqueeze(r1, a012) queries = Unsqueeze(r1, a013) "
)
SURE = "sure = GreaterOrEqual(queries, i0) "
INDEXED = (
    "big = Max(rows, columns) all = Shape(big) re = Expand(rows, all) ru = Unsqueeze(re, last) "
    "ce = Expand(columns, all) cu = Unsqueeze(ce, last) at = Concat<axis=-1>(ru, cu) kept = GatherND(w, at) "
)
FLATTENED = (
    "f = Flatten<axis=2>(w) wide = Shape<start=1>(w) off = Mul(rows, wide) at = Add(columns, off) g = Gather(f, at) "
    "kept = Reshape(g, to) "
)
MASK = "both = And(sure, kept) m = Where(both, z, c) r = MatMul(q, k) s = Add(r, m) p = Softmax(s) y = MatMul(p, v)"
PLACES = {
    "i0": np.array(0), "i1": np.array(1), "a123": np.array([1, 2, 3]), "a012": np.array([0, 1, 2]),
    "a013": np.array([0, 1, 3]), "last": np.array([-1]), "to": np.array([0, 1, 1, 0]), "z": f32(0), "c": LOWEST,
}  # fmt: skip
TOKENS: dict[str, Any] = {"q": (2, 3, 5, 6), "k": (2, 3, 6, 5), "v": (2, 3, 5, 6), "w": padded(2, 5)}
SYMBOLS = {"q": "[B,3,S,6]", "k": "[B,3,6,S]", "v": "[B,3,S,6]", "w": "[B,S]"}
MASKS = ("FoldShapes", "InferShapes", *ALL, "FoldPositionGather", "FoldMask")
SIMPLE = ["Unsqueeze", "Transpose", "Where", "Attention"]


@pytest.mark.parametrize("form", [INDEXED, FLATTENED], ids=["GatherND", "Gather from a flat mask"])
def test_a_mask_read_by_position_is_the_mask(form: str) -> None:
    case = Case(RANGES + SURE + form + MASK, SIMPLE, TOKENS, PLACES, symbols=SYMBOLS)
    check(case, *MASKS, tolerance=1e-5)


def test_a_mask_of_which_a_part_is_read_stays() -> None:
    ranges = RANGES.replace("n1 = Gather(hw, i1)", "qw = Shape(v) n1 = Gather(qw, i2)")
    feeds, symbols = {**TOKENS, "w": padded(2, 8)}, {**SYMBOLS, "w": "[B,T]"}
    case = Case(ranges + SURE + INDEXED + MASK, [], feeds, {**PLACES, "i2": np.array(2)}, symbols=symbols)
    case.reason = "the positions are not known to cover the axis"
    case.after = [
        *("Shape", "Gather", "Shape", "Gather", "Range", "Range", "Unsqueeze", "Unsqueeze", "Max", "Shape", "Expand"),
        *("Unsqueeze", "Expand", "Unsqueeze", "Concat", "GatherND", "Transpose", "Where", "Attention"),
    ]
    check(case, *MASKS, tolerance=1e-5)


def test_a_condition_that_always_holds_is_no_mask() -> None:
    body = "m = Expand(w, to) " + core("r = QK s = Where(m, r, c)")
    consts = {"w": np.ones((1, 1, 5, 1), bool), "to": np.array([2, 1, 5, 7]), "c": LOWEST}
    check(Case(body, ["Attention"], QKV, consts), *CORE, "FoldMask", tolerance=1e-5)


def test_a_condition_over_queries_alone_stays() -> None:
    body = "m = Expand(w, to) " + core("r = QK s = Where(m, r, c)")
    feeds = {**QKV, "w": padded(2, 1, 5)[..., None]}
    case = Case(body, ["Expand", "Where", "Attention"], feeds, {"to": np.array([2, 1, 5, 7]), "c": LOWEST})
    check(case, *CORE, "FoldMask", tolerance=1e-5)


FLATTEN = "q3 = Reshape(q, f) k3 = Reshape(k, g) v3 = Reshape(v, h) kt = Transpose<perm=[0,2,1]>(k3) "
TURNED = (
    "q3 = Reshape(q, f) k3 = Reshape(k, g) v3 = Reshape(v, h) qt = Transpose<perm=[0,2,1]>(q3) r = MatMul(k3, qt) "
    "r4 = Reshape(r, t) s = Transpose<perm=[0,1,3,2]>(r4) p = Softmax(s) p3 = Reshape(p, b) "
    "z = MatMul(p3, v3) y = Reshape(z, o)"
)
OPENED = (
    FLATTEN
    + "r = MatMul(q3, kt) r4 = Reshape(r, t) s = Add(r4, m) s3 = Reshape(s, b) p = Softmax(s3) z = MatMul(p, v3) "
    "y = Reshape(z, o)"
)
TARGETS = {
    "f": np.array([6, 5, 6]), "g": np.array([6, 7, 6]), "h": np.array([6, 7, 4]), "t": np.array([2, 3, 5, 7]),
    "b": np.array([6, 5, 7]), "o": np.array([2, 3, 5, 4]),
}  # fmt: skip
BARE = FLATTEN + "s = MatMul(q3, kt) p = Softmax(s) z = MatMul(p, v3) y = Reshape(z, o)"
FLAT_BATCH = {
    "masked over four axes": Case(OPENED, ["Attention"], {**QKV, "m": (2, 1, 5, 7)}, TARGETS),
    "not masked": Case(BARE, ["Attention"], QKV, TARGETS),
    "keys times queries, turned": Case(TURNED, ["Attention"], QKV, {**TARGETS, "t": np.array([2, 3, 7, 5])}),
    "a result over five axes": Case(
        BARE, ["Attention", "Reshape"], QKV, {**TARGETS, "o": np.array([-1, 1, 3, 5, 4])}
    ),
    "heads told by the scores alone": Case(
        OPENED[OPENED.index("r = ") :].replace("v3", "v").replace("q3, kt", "q, k"),
        ["Reshape", "Reshape", "Transpose", "Reshape", "Attention"],
        {"q": (6, 5, 6), "k": (6, 6, 7), "v": (6, 7, 4), "m": (2, 1, 5, 7)}, TARGETS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FLAT_BATCH.values(), ids=FLAT_BATCH.keys())
def test_batch_and_heads_in_one_axis(case: Case) -> None:
    check(case, "FuseFlatAttention", tolerance=1e-5)


def test_a_mask_with_batch_and_heads_in_one_axis_stays() -> None:
    body = FLATTEN + "r = MatMul(q3, kt) s = Add(r, m) p = Softmax(s) z = MatMul(p, v3) y = Reshape(z, o)"
    case = Case(
        body, _ops_of(body), {**QKV, "m": (6, 5, 7)}, TARGETS, reason="the mask has batch and heads in one axis"
    )
    check(case, "FuseFlatAttention")


def test_flat_attention_needs_known_heads() -> None:
    body = "kt = Transpose<perm=[0,2,1]>(k) s = MatMul(q, kt) p = Softmax(s) z = MatMul(p, v) y = Reshape(z, o)"
    feeds = {"q": (6, 5, 6), "k": (6, 7, 6), "v": (6, 7, 4)}
    case = Case(body, _ops_of(body), feeds, TARGETS, reason="no value has batch and heads as separate axes")
    check(case, "FuseFlatAttention")
