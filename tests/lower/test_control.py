"""Branches and loops, lowered with their bodies."""

from __future__ import annotations

import pytest

from sardonyx.lower.claims import refusals
from sardonyx.lower.groups import Branch
from tests.lower.agree import compare, kinds, parse

IS_POSITIVE = "z = Constant<value_float=0.0>() s = ReduceSum<keepdims=0>(x) p = Less(z, s)"
GRAPHS = {
    "if": (
        f"""{IS_POSITIVE} h = Neg(x)
        y = If(p) <then_branch = t () => (a) {{ b = Exp(h) a = Add(b, x) }},
                   else_branch = e () => (a2) {{ a2 = Mul(h, x) }}>""",
        "float[n,3] x",
        "float[] y",
    ),
    "if of values from outside": (
        f"""{IS_POSITIVE} h = Neg(x)
        y = If(p) <then_branch = t () => (h) {{ }}, else_branch = e () => (x) {{ }}>
        o = Add(y, h)""",
        "float[n,3] x",
        "float[n,3] o",
    ),
    "nested ifs": (
        f"""{IS_POSITIVE}
        y = If(p) <
          then_branch = t () => (a) {{
            q = Less(s, z)
            a = If(q) <then_branch = t2 () => (b) {{ b = Exp(x) }}, else_branch = e2 () => (c) {{ c = Relu(x) }}>
          }},
          else_branch = e () => (a2) {{ a2 = Neg(x) }}>""",
        "float[2,3] x",
        "float[] y",
    ),
    "slices from the end in a branch": (
        f"""{IS_POSITIVE} b = Constant<value_ints=[-4]>() e = Constant<value_ints=[-1]>() k = Constant<value_ints=[1]>()
        y = If(p) <then_branch = t () => (a) {{ s1 = Slice(x, b, e, k) t1 = ReduceSum(s1, k) a = Add(x, t1) }},
                   else_branch = e () => (a2) {{ s2 = Slice(x, b, e, k) t2 = ReduceMax(s2, k) a2 = Mul(x, t2) }}>""",
        "float[2,n] x",
        "float[] y",
    ),
    "sizes are read where they are needed": (
        f"""{IS_POSITIVE} sh = Shape(x) f = Cast<to=1>(sh)
        y = If(p) <then_branch = t () => (a) {{ a = Mul(x, f) }}, else_branch = e () => (a2) {{ a2 = Neg(x) }}>
        o = Add(y, f)""",
        "float[n,2] x",
        "float[n,2] o",
    ),
    "loop": (
        """t = Constant<value_int=4>() k = Constant<value_int=1>() go = Cast<to=9>(k)
        y, rows = Loop(t, go, x) <body = b (int64 i, bool c, float[n,3] s) => (bool d, float[n,3] u, float[n,3] v) {
          d = Identity(c) f = Cast<to=1>(i) g = Mul(s, x) u = Add(g, f) v = Mul(s, s) }>""",
        "float[n,3] x",
        "float[n,3] y, float[m,n,3] rows",
    ),
    "loop that counts to a size": (
        """sh = Shape<start=0,end=1>(x) ax = Constant<value_ints=[0]>() m = Squeeze(sh, ax)
        z = Constant<value_int=0>() go = Less(z, m) s0 = Constant<value_floats=[0.,0.]>()
        j, y, rows = Loop(m, go, z, s0) <
          body = b (int64 i, bool c, int64 k, float[2] s) => (bool d, int64 kn, float[2] u, float[2] v) {
            one = Constant<value_int=1>() kn = Add(k, one) xi = Gather<axis=0>(x, k) u = Add(s, xi) v = Neg(s)
            d = Less(kn, m) }>""",
        "float[n,2] x",
        "int64 j, float[2] y, float[n,2] rows",
    ),
    "loop that only its condition ends, at a size": (
        """sh = Shape<start=0,end=1>(x) ax = Constant<value_ints=[0]>() m = Squeeze(sh, ax)
        z = Constant<value_int=0>() go = Less(z, m) far = Constant<value_int=9223372036854775807>()
        j, rows = Loop(far, go, z) <body = b (int64 i, bool c, int64 k) => (bool d, int64 kn, float[2] v) {
          one = Constant<value_int=1>() kn = Add(k, one) v = Gather<axis=0>(x, k) d = Less(kn, m) }>""",
        "float[n,2] x",
        "int64 j, float[n,2] rows",
    ),
    "loop that data ends": (
        """t = Constant<value_int=50>() two = Constant<value_float=2.0>() top = Constant<value_float=1000.0>()
        y = Loop(t, , x) <body = b (int64 i, bool c, float[2,3] s) => (bool d, float[2,3] u) {
          u = Mul(s, two) q = Mul(u, u) e = ReduceSum<keepdims=0>(q) d = Less(e, top) }>""",
        "float[2,3] x",
        "float[] y",
    ),
    "loop ended by what it carries": (
        """t = Constant<value_int=50>() y, w = Loop(t, , x, b0) <
          body = b (int64 i, bool c, float[2] s, bool last) => (bool last, float[2] u, bool d) {
            u = Add(s, s) q = Mul(u, u) e = ReduceSum<keepdims=0>(q) top = Constant<value_float=99.0>()
            d = Less(e, top) }>""",
        "float[2] x, bool b0",
        "float[2] y, bool w",
    ),
    "rows that data counts": (
        """t = Constant<value_int=9>() z = Constant<value_float=9.0>()
        y, rows = Loop(t, , x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] u, float[2] v)
        { u = Add(s, s) v = Neg(s) e = ReduceSum<keepdims=0>(u) d = Less(e, z) }>""",
        "float[2] x",
        "float[2] y, float[n,2] rows",
    ),
    "rows that nothing bounds": (
        """more = Constant<value_float=0.9>() least = Constant<value_float=1e-9>() k = Constant<value_int=1>()
        go = Cast<to=9>(k)
        y, rows, sums = Loop(, go, x) <
          body = b (int64 i, bool c, float[n,3] s) => (bool d, float[n,3] u, float[n,3] v, float t) {
            u = Mul(s, more) v = Neg(s) a = Abs(u) t = ReduceSum<keepdims=0>(a) d = Less(least, t) }>""",
        "float[n,3] x",
        "float[n,3] y, float[r,n,3] rows, float[r2] sums",
    ),
    "rows up to a limit that data tells": (
        """far = Constant<value_float=90.0>() a = Abs(x) s = ReduceSum<keepdims=0>(a) l = Mul(s, far) m = Cast<to=7>(l)
        y, rows = Loop(m, , x) <body = b (int64 i, bool c, float[2] s0) => (bool c, float[2] u, float[2] v) {
          f = Cast<to=1>(i) v = Add(x, f) u = Neg(s0) }>""",
        "float[2] x",
        "float[2] y, float[r,2] rows",
    ),
    "two loops with rows that nothing bounds": (
        """half = Constant<value_float=0.5>() least = Constant<value_float=1e-3>() k = Constant<value_int=1>()
        go = Cast<to=9>(k)
        y, rows = Loop(, go, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] u, float[2] v) {
          u = Mul(s, half) v = Neg(s) a = Abs(u) t = ReduceSum<keepdims=0>(a) d = Less(least, t) }>
        z, same, others = Loop(, go, y, x) <
          body = e (int64 i2, bool c2, float[2] p, float[2] q) => (bool d2, float[2] p2, float[2] q2, float[2] w) {
            p2 = Add(p, p) q2 = Identity(q) b2 = Abs(p2) t2 = ReduceSum<keepdims=0>(b2) b3 = Abs(q)
            t3 = ReduceSum<keepdims=0>(b3) d2 = Less(t2, t3) w = Add(p, q) }>""",
        "float[2] x",
        "float[2] z, float[2] same, float[r,2] rows, float[r2,2] others",
    ),
    "branches of different sizes": (
        f"""{IS_POSITIVE}
        y, wide = If(p) <then_branch = t () => (a, b) {{ a = Concat<axis=0>(x, x) b = Exp(x) }},
                      else_branch = e () => (a2, b2) {{ a2 = Neg(x) b2 = Concat<axis=1>(x, x, x) }}>""",
        "float[n,3] x",
        "float[m,3] y, float[n,k] wide",
    ),
    "branches of constant sizes": (
        f"""{IS_POSITIVE} b = Constant<value_ints=[0]>() f = Constant<value_ints=[2]>() k = Constant<value_ints=[0]>()
        y = If(p) <then_branch = t () => (a) {{ a = Slice(x, b, f) }},
                   else_branch = e () => (a2) {{ a2 = Slice(x, b, b) }}>""",
        "float[7,n] x",
        "float[] y",
    ),
    "values change places": (
        """t = Constant<value_int=3>()
        a, b = Loop(t, , x, y) <body = b (int64 i, bool c, float[2] p, float[2] q) => (bool c, float[2] q, float[2] p)
        { }>""",
        "float[2] x, float[2] y",
        "float[2] a, float[2] b",
    ),
    "scan": (
        """ax = Constant<value_ints=[0]>() s0 = ReduceSum<keepdims=0>(x, ax)
        last, rows = Scan(s0, x) <num_scan_inputs=1, body = b (float[3] s, float[3] e) => (float[3] n, float[3] o)
        { n = Add(s, e) o = Mul(n, e) }>""",
        "float[n,3] x",
        "float[3] last, float[n,3] rows",
    ),
    "scan of other axes, backward": (
        """s0 = Constant<value_floats=[0.,0.]>()
        last, rows = Scan(s0, x, w) <num_scan_inputs=2, scan_input_axes=[1,0], scan_input_directions=[1,0],
          scan_output_axes=[1], scan_output_directions=[1],
          body = b (float[2] s, float[2] e, float f) => (float[2] n, float[2] o)
          { m = Mul(e, f) n = Add(s, m) o = Neg(n) }>""",
        "float[2,n] x, float[n] w",
        "float[2] last, float[2,n] rows",
    ),
    "a loop in a scan": (
        """t = Constant<value_int=3>() s0 = Constant<value_floats=[0.,0.]>()
        last, rows = Scan(s0, x) <num_scan_inputs=1, body = b (float[2] s, float[2] e) => (float[2] n, float[2] o) {
          o = Loop(t, , e) <body = b2 (int64 i, bool c, float[2] r) => (bool c, float[2] r2) { r2 = Add(r, s) }>
          n = Add(s, o) }>""",
        "float[n,2] x",
        "float[2] last, float[n,2] rows",
    ),
    "a scan of the rows of a scan": (
        """s0 = Constant<value_float=0.0>()
        last, rows = Scan(s0, x) <num_scan_inputs=1, body = b (float s, float[m] e) => (float q, float[m] o) {
          q, o = Scan(s, e) <num_scan_inputs=1, body = b2 (float r, float f) => (float r2, float g)
          { r2 = Add(r, f) g = Identity(r2) }> }>""",
        "float[n,m] x",
        "float last, float[n,m] rows",
    ),
    "a branch in a loop": (
        """t = Constant<value_int=5>() z = Constant<value_float=0.0>()
        y = Loop(t, , x) <body = b (int64 i, bool c, float[2] s) => (bool c, float[2] u) {
          a = ReduceSum<keepdims=0>(s) p = Less(z, a)
          u = If(p) <then_branch = th () => (v) { v = Sub(s, x) }, else_branch = el () => (w) { w = Mul(s, s) }> }>""",
        "float[2] x",
        "float[2] y",
    ),
    "a product in every trip": (
        """t = Constant<value_int=5>()
        y, rows = Loop(t, , x) <body = b (int64 i, bool c, float[n,20] s) => (bool c, float[n,20] u, float[n,20] r) {
          a = MatMul(s, w) h = Tanh(a) u = Add(h, x) r = Softmax<axis=-1>(u) }>""",
        "float[n,20] x, float[20,20] w",
        "float[n,20] y, float[5,n,20] rows",
    ),
    "a decoder that attends and writes where it is": (
        """t = Constant<value_int=4>() at = Constant<value_ints=[0,1,2,3]>() wide = Constant<value_ints=[1,-1,1]>()
        zero = Constant<value_float=0.0>() more = Constant<value_float=0.245>() inc = Constant<value_float=0.01>()
        one = Constant<value_ints=[1]>() square = Constant<value_ints=[5,5]>() fives = Constant<value_ints=[4,5]>()
        two = Constant<value_ints=[2]>() numbers = Range(zero, more, inc) w = Reshape(numbers, square)
        n0 = Shape<start=0,end=1>(x) all = Concat<axis=0>(n0, fives) p0 = ConstantOfShape(all)
        h0 = ReduceSum<keepdims=0>(x, one)
        y, preds = Loop(t, , h0, p0) <
          body = b (int64 i, bool c, float[n,5] h, float[n,4,5] p) => (bool c, float[n,5] hn, float[n,4,5] pn) {
            keys = MatMul(x, w) hu = Unsqueeze(h, one) s = Add(keys, hu) e = ReduceSum<keepdims=1>(s, two)
            a = Softmax<axis=1>(e) m = Mul(a, x) ctx = ReduceSum<keepdims=0>(m, one) g = MatMul(ctx, w) hn = Tanh(g)
            row = Unsqueeze(hn, one) is_at = Equal(at, i) here = Reshape(is_at, wide) pn = Where(here, row, p) }>""",
        "float[n,6,5] x",
        "float[n,5] y, float[n,4,5] preds",
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_control_flow_means_what_its_nodes_do(name: str) -> None:
    graph = parse(*GRAPHS[name])
    for seed in range(3):
        compare(graph, {"n": 4, "m": 3}, {"n": 1, "m": 1}, seed=seed)


@pytest.mark.parametrize("name", ["loop that counts to a size", "scan"])
def test_nothing_runs_without_a_trip(name: str) -> None:
    compare(parse(*GRAPHS[name]), {"n": 0})


def test_a_body_is_fused_on_its_own() -> None:
    groups = compare(parse(*GRAPHS["if"]), {"n": 2})
    branch = groups[-1]
    assert isinstance(branch, Branch)
    assert kinds(branch.then) == ["Loop(Exp Add)"]
    assert kinds(branch.other) == ["Loop(Mul)"]


REFUSED = {
    "a value that grows": (
        """t = Constant<value_int=3>()
        y = Loop(t, , x) <body = b (int64 i, bool c, float[k] s) => (bool c, float[k2] u)
        { u = Concat<axis=0>(s, x) }>""",
        "float[2] x",
        "float[n] y",
    ),
    "branches of different ranks": (
        f"""{IS_POSITIVE} ax = Constant<value_ints=[1]>()
        y = If(p) <then_branch = t () => (a) {{ a = ReduceSum<keepdims=0>(x, ax) }},
                   else_branch = e () => (a2) {{ a2 = Neg(x) }}>""",
        "float[n,3] x",
        "float[] y",
    ),
    "branches that differ in two sizes": (
        f"""{IS_POSITIVE}
        y = If(p) <then_branch = t () => (a) {{ b = Concat<axis=0>(x, x) a = Concat<axis=1>(b, b) }},
                   else_branch = e () => (a2) {{ a2 = Neg(x) }}>""",
        "float[n,3] x",
        "float[] y",
    ),
    "rows of random numbers that nothing bounds": (
        """least = Constant<value_float=0.1>() k = Constant<value_int=1>() go = Cast<to=9>(k)
        y, rows = Loop(, go, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] u, float[2] v) {
          v = RandomUniformLike(s) u = Mul(s, v) a = Abs(u) t = ReduceSum<keepdims=0>(a) d = Less(least, t) }>""",
        "float[2] x",
        "float[2] y, float[r,2] rows",
    ),
    "sizes that data tells inside": (
        """t = Constant<value_int=9>()
        y = Loop(t, , x) <body = b (int64 i, bool c, float[2] s) => (bool c, float[2] u) {
          one = Constant<value_ints=[1]>() k = Reshape(i, one) z = Constant<value_ints=[0]>()
          w = Slice(long, z, k) e = ReduceSum<keepdims=0>(w) u = Add(s, e) }>""",
        "float[2] x, float[20] long",
        "float[2] y",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_without_a_plan_are_refused_with_a_reason(name: str) -> None:
    graph = parse(*REFUSED[name])
    found = [reason for node, reason in refusals(graph).items() if node.op_type in ("If", "Loop")]
    assert found[0] is not None
    assert any(why in found[0] for why in ("data", "from iteration to iteration", "different shapes", "the rank of"))
