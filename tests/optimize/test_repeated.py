"""What is known of the values of loops: types that every trip keeps, and how many trips there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import InvalidArgument
from sardonyx.interpret.bind import compile_graph
from sardonyx.interpret.context import RunContext
from sardonyx.ir.graph import Model, Node
from sardonyx.optimize.symbolic import Facts
from tests.optimize.graphs import apply, ops, parse

SIZES = "sh = Shape<start=0,end=1>(x) ax = Constant<value_ints=[0]>() m = Squeeze(sh, ax) z = Constant<value_int=0>()"
FAR = "far = Constant<value_int=9223372036854775807>()"


def looped(head: str, given: str, end: str, count: str = "one = Constant<value_int=1>()") -> Model:
    """A Loop over the rows of x that carries a counter and collects what it reads."""
    return parse(
        f"""{SIZES} {head}
        k, y, rows = Loop({given}, z, x) <
          body = b (int64 i, bool c, int64 j, float[a,b] s) => (bool d, int64 jn, float[a,b] u, float[b] r) {{
            {count} jn = Add(j, one) u = Add(s, s) r = Gather<axis=0>(s, i) d = {end} }}>""",
        inputs="float[n,3] x",
        outputs="int64 k, float[n,3] y, float[p,3] rows",
    )


def learned(model: Model) -> tuple[Facts, Node]:
    apply(model, "FoldConstants")
    facts = Facts()
    facts.walk(model.graph)
    return facts, next(node for node in model.graph.nodes if node.op_type in ("Loop", "Scan"))


COUNTED = {
    "no condition": ("", "m,", "Identity(c)"),
    "a condition that is true": ("t = Less(z, z) go = Not(t)", "m, go", "Identity(c)"),
    "the counter is below the limit": ("go = Less(z, m)", "m, go", "Less(jn, m)"),
    "the trip's number is": ("go = Less(z, m)", "m, go", "Less(i, m)"),
    "both are": ("go = Less(z, m)", "m, go", "And(p, q)"),
    "said the other way round": ("go = Greater(m, z)", "m, go", "Greater(m, jn)"),
    "the condition alone": (f"{FAR} go = Less(z, m)", "far, go", "Less(jn, m)"),
    "the condition alone, with its last": (f"{FAR} w = Sub(m, o) go = LessOrEqual(z, w)", "far, go", "Less(jn, m)"),
}


@pytest.mark.parametrize("name", COUNTED)
def test_trips_follow_from_sizes(name: str) -> None:
    head, given, end = COUNTED[name]
    body = "one = Constant<value_int=1>() v = Add(i, one) p = Less(i, m) q = Less(v, m)"
    model = looped(f"o = Constant<value_int=1>() {head}", given, end, body)
    facts, node = learned(model)
    assert facts.trips[node] == "n"
    assert [str(out.shape) for out in node.outputs[1:]] == ["('n', 3)", "('n', 3)"]


UNCOUNTED = {
    "it ends one too early": ("go = Less(z, m)", "m, go", "Less(i, w)"),
    "data says": ("go = Less(z, m)", "m, go", "Less(j, m2)"),
    "the first trip is not certain": ("two = Constant<value_int=2>() go = Less(two, m)", "m, go", "Less(i, m)"),
}


@pytest.mark.parametrize("name", UNCOUNTED)
def test_trips_that_data_may_end_are_not_counted(name: str) -> None:
    head, given, end = UNCOUNTED[name]
    made = """one = Constant<value_int=1>() w0 = Sub(m, one) w = Sub(w0, one)
        e = ReduceMax<keepdims=0>(s) m2 = Cast<to=7>(e)"""
    facts, node = learned(looped(head, given, end, made))
    assert node not in facts.trips
    assert node.outputs[2].shape is not None
    assert str(node.outputs[2].shape[0]).startswith("?")


def test_a_dimension_that_a_trip_changes_is_not_known() -> None:
    model = parse(
        """t = Constant<value_int=3>()
        y, v = Loop(t, , x, x) <
          body = b (int64 i, bool c, float[a,3] s, float[e,f] r) => (bool c, float[a2,3] u, float[e,f] w)
          { u = Concat<axis=0>(s, x) w = Neg(r) }>""",
        inputs="float[n,3] x",
        outputs="float[m,3] y, float[n,3] v",
    )
    _, node = learned(model)
    grown, kept = (out.shape for out in node.outputs)
    assert grown is not None
    assert str(grown[0]).startswith("?")
    assert grown[1] == 3
    assert kept == ("n", 3)
    inside = [v.shape for v in node.attrs["body"].inputs[2:]]
    assert inside[0] is not None
    assert inside[0][0] != "n"
    assert inside[1] == ("n", 3)


def test_a_scan_has_as_many_trips_as_rows() -> None:
    model = parse(
        """s0 = Constant<value_floats=[0.,0.,0.]>()
        last, rows = Scan(s0, x) <num_scan_inputs=1, scan_input_axes=[-1], scan_output_axes=[1],
          body = b (float[3] s, float[e] r) => (float[3] u, float[e] w) { u = Add(s, r) w = Neg(r) }>""",
        inputs="float[3,n] x",
        outputs="float[3] last, float[3,n] rows",
    )
    facts, node = learned(model)
    assert facts.trips[node] == "n"
    assert [out.shape for out in node.outputs] == [(3,), (3, "n")]


SQUEEZE = """sh = Shape<start=1,end=2>(x) one = Constant<value_ints=[1]>() p = Equal(sh, one)
    v = If(p) <then_branch = t () => (a) {{ a = Squeeze(x, one) }}, else_branch = e () => (b) {{ b = Identity(x) }}>
    {}"""


@pytest.mark.parametrize(
    ("reader", "left"), [("y = Transpose<perm=[1,0]>(v)", ["Squeeze", "Transpose"]), ("y = Relu(v)", None)]
)
def test_a_squeeze_whose_readers_need_the_rank_is_inlined(reader: str, left: list[str] | None) -> None:
    model = parse(SQUEEZE.format(reader), inputs="float[2,k,3] x", outputs="float y")
    x = np.random.default_rng(0).standard_normal((2, 1, 3)).astype(np.float32)
    (expected,) = compile_graph(model.graph).run([x], RunContext())
    apply(model, "FoldConstants", "FoldShapes", "RemoveDeadCode")
    (found,) = compile_graph(model.graph).run([x], RunContext())
    np.testing.assert_array_equal(found, expected)
    assert ops(model.graph) == left if left is not None else "If" in ops(model.graph)
    if left is not None:
        with pytest.raises(InvalidArgument):
            compile_graph(model.graph).run([np.repeat(x, 2, axis=1)], RunContext())


def nested(depth: int, body: str) -> str:
    """Loops around each other; each carries what the one around it does."""
    if depth == 0:
        return f"y0 = {body.format('s1')}"
    outer = "x" if depth == DEPTH else f"s{depth + 1}"
    inner = nested(depth - 1, body)
    return (
        f"y{depth} = Loop(n, , {outer}) <body = b{depth} (int64 i{depth}, bool c{depth}, float[p{depth},3] s{depth}) "
        f"=> (bool d{depth}, float[q{depth},3] y{depth - 1}) {{ d{depth} = Identity(c{depth}) {inner} }}>"
    )


DEPTH = 14


@pytest.mark.parametrize("body", ["Relu({0})", "Concat<axis=0>({0}, {0})"])
def test_nested_loops_are_inferred_a_few_times_each(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(nested(DEPTH, body), inputs="int64 n, float[2,3] x", outputs=f"float[m,3] y{DEPTH}")
    walks = 0
    walk = Facts.walk_body

    def counted(*args: Any) -> None:
        nonlocal walks
        walks += 1
        assert walks <= 2 * DEPTH**2
        walk(*args)

    monkeypatch.setattr(Facts, "walk_body", counted)
    learned(model)
    rows, columns = model.graph.outputs[0].shape or ()
    assert columns == 3 and (rows == 2) == ("Relu" in body)
