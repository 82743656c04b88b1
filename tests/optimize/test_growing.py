"""Loops that append to what they carry collect rows instead."""

from __future__ import annotations

import pytest

from sardonyx.ir.graph import Model
from sardonyx.model.text import from_text
from sardonyx.normalize.run import normalize
from tests.optimize.agree import apply_and_compare
from tests.optimize.graphs import ops


def growing(body: str, *, start: str = "float[2,3] a", step: str = "float[1,3] x", trips: int = 4) -> Model:
    """A Loop that carries s, from x, and t, from a."""
    model = from_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({step}, {start}) => (float[] y, float[] all) {{ '
        f"n = Constant<value_int={trips}>() k = Constant<value_int=1>() on = Cast<to=9>(k) "
        f"y, all = Loop (n, on, x, a) <body = body (int64 i, bool c, float[] s, float[] t) => "
        f"(bool co, float[] so, float[] to) {{ co = Identity(c) {body} }}> }}"
    )
    normalize(model)
    return model


COLLECTED = {
    "rows of one": (growing("so = Neg(s) to = Concat<axis=0>(t, so)"), ["Reshape", "Concat"]),
    "what a trip begins with": (growing("so = Neg(s) to = Concat<axis=0>(t, s)"), ["Reshape", "Concat"]),
    "several rows": (
        growing("so = Neg(s) to = Concat<axis=-2>(t, so)", step="float[2,3] x"),
        ["Reshape", "Concat"],
    ),
    "along the last axis": (
        growing("so = Neg(s) to = Concat<axis=1>(t, so)", start="float[2,4] a", step="float[2,1] x"),
        ["Transpose", "Squeeze", "Concat"],
    ),
    "in the middle": (
        growing("so = Exp(s) to = Concat<axis=1>(t, so)", start="float[2,0,5] a", step="float[2,1,5] x"),
        ["Transpose", "Squeeze", "Concat"],
    ),
    "without a trip": (growing("so = Neg(s) to = Concat<axis=0>(t, so)", trips=0), ["Reshape", "Concat"]),
    "rows of a size from outside": (
        growing("so = Neg(s) to = Concat<axis=0>(t, so)", start="float[m,3] a", step="float[n,3] x"),
        ["Reshape", "Concat"],
    ),
}


@pytest.mark.parametrize("name", COLLECTED)
def test_appended_rows_are_collected(name: str) -> None:
    model, after = COLLECTED[name]
    report = apply_and_compare(model, "RemoveNoOps", "CollectRows")
    assert report.count()["CollectRows"] == 1
    assert ops(model.graph) == ["Loop", *after]
    assert "Concat" not in ops(next(iter(model.graph.nodes)).attrs["body"])


def test_two_values_that_grow() -> None:
    rows = "f = Cast<to=1>(i) p = Add(x, f) q = Mul(x, f)"
    model = growing(f"{rows} so = Concat<axis=0>(s, p) to = Concat<axis=0>(t, q)")
    report = apply_and_compare(model, "RemoveNoOps", "CollectRows")
    assert report.count()["CollectRows"] == 2
    assert sorted(ops(model.graph)) == ["Concat", "Concat", "Loop", "Reshape", "Reshape"]


KEPT = {
    "it is read": growing("m = ReduceMean<keepdims=1>(t) so = Add(s, m) to = Concat<axis=0>(t, so)"),
    "it is prepended to": growing("so = Neg(s) to = Concat<axis=0>(so, t)"),
    "it is appended to itself": growing("so = Neg(s) to = Concat<axis=0>(t, t)"),
    "rows grow": growing("so = Concat<axis=0>(s, x) to = Concat<axis=0>(t, so)"),
    "several columns": growing("so = Neg(s) to = Concat<axis=1>(t, so)", start="float[1,4] a", step="float[1,2] x"),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_values_are_carried(name: str) -> None:
    report = apply_and_compare(KEPT[name], "RemoveNoOps", "CollectRows")
    assert "CollectRows" not in report.count()


def listing(joins: str, *, step: str = "float[1,3] x", body: str = "so = Neg(s) to = SequenceInsert(t, so)") -> Model:
    """A Loop that carries s, from x, and a sequence, from nothing."""
    model = from_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({step}) => (float[] y, float[] z) {{ '
        "n = Constant<value_int=4>() k = Constant<value_int=1>() on = Cast<to=9>(k) none = SequenceEmpty<dtype=1>() "
        "y, all = Loop (n, on, x, none) <body = body (int64 i, bool c, float[] s, seq(float[]) t) => "
        f"(bool co, float[] so, seq(float[]) to) {{ co = Identity(c) {body} }}> {joins} }}"
    )
    normalize(model)
    return model


LISTED = {
    "joined": listing("z = ConcatFromSequence<axis=0>(all)"),
    "joined along the last axis": listing("z = ConcatFromSequence<axis=-1>(all)", step="float[2,1] x"),
    "stacked": listing("z = ConcatFromSequence<axis=0, new_axis=1>(all)"),
    "stacked along the last axis": listing("z = ConcatFromSequence<axis=-1, new_axis=1>(all)", step="float[2,3] x"),
    "numbers": listing("z = ConcatFromSequence<axis=0, new_axis=1>(all)", step="float x"),
    "twice": listing(
        "a = ConcatFromSequence<axis=0>(all) b = ConcatFromSequence<axis=1, new_axis=1>(all) p = ReduceSum(b)"
        " z = Add(a, p)"
    ),
}


@pytest.mark.parametrize("name", LISTED)
def test_sequences_of_rows_are_collected(name: str) -> None:
    report = apply_and_compare(LISTED[name], "RemoveNoOps", "CollectRows")
    assert report.count()["CollectRows"] == 1
    assert not {"SequenceInsert", "SequenceEmpty", "ConcatFromSequence"} & set(ops(LISTED[name].graph))


UNLISTED = {
    "an element is read": listing(
        "q = Constant<value_int=1>() e = SequenceAt(all, q) r = ConcatFromSequence<axis=0>(all) z = Add(r, e)"
    ),
    "put in front": listing(
        "z = ConcatFromSequence<axis=0>(all)",
        body="so = Neg(s) f = Constant<value_int=0>() to = SequenceInsert(t, so, f)",
    ),
    "rows that grow": listing(
        "z = ConcatFromSequence<axis=0>(all)", body="so = Concat<axis=0>(s, s) to = SequenceInsert(t, so)"
    ),
}


@pytest.mark.parametrize("name", UNLISTED)
def test_other_sequences_stay(name: str) -> None:
    report = apply_and_compare(UNLISTED[name], "RemoveNoOps", "CollectRows")
    assert "CollectRows" not in report.count()
