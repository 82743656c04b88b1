"""Symbolic shapes: what is inferred holds at every size, and what follows from it is folded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import dtypes
from sardonyx.interpret.bind import bind, compile_graph
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.ir import dims
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Graph, Model, Value
from sardonyx.ir.types import TensorType
from sardonyx.optimize import manager
from sardonyx.optimize.report import Report
from sardonyx.optimize.shapes import fix_dimensions
from sardonyx.optimize.symbolic import Facts
from tests.optimize.graphs import apply, ops, parse

SIZES = ({"N": 2, "S": 3, "H": 8}, {"N": 1, "S": 1, "H": 9}, {"N": 5, "S": 4, "H": 11})
FOLD = ("FoldConstants", "FoldShapes", "FoldConstants", "RemoveDeadCode")


def feeds(graph: Graph, sizes: dict[str, int]) -> list[Any]:
    rng = np.random.default_rng(0)
    given = []
    for v in graph.inputs:
        assert v.shape is not None and v.dtype is not None
        shape = [dims.evaluate(d, sizes) for d in v.shape]
        assert all(isinstance(d, int) for d in shape), v
        given.append(rng.integers(1, 9, shape).astype(v.dtype.numpy))  # type: ignore[arg-type]
    return given


def run(graph: Graph, sizes: dict[str, int]) -> list[Any]:
    return compile_graph(graph).run(feeds(graph, sizes), RunContext())


def folded(body: str, *, check: tuple[dict[str, int], ...] = SIZES, **kwargs: str) -> tuple[Model, Report]:
    """The model after folding, having given the same results as before at several sizes."""
    model = parse(body, **kwargs)
    before = clone(model)
    report = apply(model, *FOLD)
    for sizes in check:
        for want, got in zip(run(before.graph, sizes), run(model.graph, sizes), strict=True):
            assert want.dtype == got.dtype
            np.testing.assert_array_equal(want, got)
    return model, report


# -- inference

INFERRED = {
    "pointwise": ("y = Add(x, z)", "float[N,S,64] x, float[S,1] z", "[N, S, 64]"),
    "matmul": ("w = Transpose<perm=[0,2,1]>(x) y = MatMul(x, w)", "float[N,S,64] x", "[N, S, S]"),
    "gemm": ("y = Gemm<transA=1>(x, z)", "float[S,N] x, float[S,7] z", "[N, 7]"),
    "concat": ("y = Concat<axis=1>(x, z, x)", "float[N,S] x, float[N,3] z", "[N, 2*S + 3]"),
    "split": ("a, y = Split<axis=1, num_outputs=2>(x)", "float[N,6] x", "[N, 3]"),
    "unsqueeze": ("i = Constant<value_ints=[0,-1]>() y = Unsqueeze(x, i)", "float[N,S] x", "[1, N, S, 1]"),
    "split unevenly": ("a, y, b, c = Split<axis=1, num_outputs=4>(x)", "float[N,5] x", "[N, 2]"),
    "split of a multiple": (
        "d = Concat<axis=1>(x, x) a, y = Split<axis=1, num_outputs=2>(d)",
        "float[N,S] x",
        "[N, S]",
    ),
    "transposed convolution": (
        "y = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,0]>(x, w)",
        "float[N,3,H,8] x, float[3,5,3,3] w",
        "[N, 5, 2*H, 15]",
    ),
    "quantization": (
        "k = Constant<value_float=0.5>() q = QuantizeLinear(x, k) y = DequantizeLinear(q, k)",
        "float[N,S] x",
        "[N, S]",
    ),
    "flatten": ("y = Flatten<axis=2>(x)", "float[N,S,4,5] x", "[N*S, 20]"),
    "reshape by -1": ("s = Constant<value_ints=[-1,32]>() y = Reshape(x, s)", "float[N,S,64] x", "[2*N*S, 32]"),
    "reshape by 0": ("s = Constant<value_ints=[0,-1,8]>() y = Reshape(x, s)", "float[N,S,64] x", "[N, 8*S, 8]"),
    "reshape of a computed shape": (
        (
            "a = Shape(x) i = Constant<value_int=0>() n = Gather(a, i) z = Constant<value_ints=[0]>() "
            "u = Unsqueeze(n, z) m = Constant<value_ints=[-1]>() s = Concat<axis=0>(u, m) y = Reshape(x, s)"
        ),
        "float[N,S,64] x",
        "[N, 64*S]",
    ),
    "slice to an end": (
        "b = Constant<value_ints=[1]>() e = Constant<value_ints=[9223372036854775807]>() y = Slice(x, b, e, b)",
        "float[N,S] x",
        "[N, max(0, S - 1)]",
    ),
    "slice by a step": (
        (
            "b = Constant<value_ints=[0]>() e = Constant<value_ints=[9999999999]>() a = Constant<value_ints=[1]>() "
            "t = Constant<value_ints=[2]>() y = Slice(x, b, e, a, t)"
        ),
        "float[N,H] x",
        "[N, div(H + 1, 2)]",
    ),
    "expand": ("s = Shape(x) y = Expand(z, s)", "float[N,S] x, float[1] z", "[N, S]"),
    "range": (
        "l = Size(x) b = Constant<value_int=0>() d = Constant<value_int=1>() r = Range(b, l, d) y = Cast<to=1>(r)",
        "float[N,S] x",
        "[N*S]",
    ),
    "constant of shape": ("s = Shape<start=1>(x) y = ConstantOfShape(s)", "float[N,S] x", "[S]"),
    "tile": ("r = Constant<value_ints=[1,3]>() y = Tile(x, r)", "float[N,S] x", "[N, 3*S]"),
    "convolution": (
        "y = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w)",
        "float[N,3,H,8] x, float[5,3,3,3] w",
        "[N, 5, div(H + 1, 2), 4]",
    ),
    "pooling that rounds up": (
        "y = MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)",
        "float[N,3,H,8] x",
        "[N, 3, div(H + 1, 2), 4]",
    ),
    "resize": (
        "k = Constant<value_floats=[1.0,1.0,2.0,2.0]>() y = Resize(x, , k)",
        "float[N,3,H,8] x",
        "[N, 3, 2*H, 16]",
    ),
    "pad": ("p = Constant<value_ints=[0,1,0,2]>() y = Pad(x, p)", "float[N,S] x", "[N, S + 3]"),
    "top k": ("k = Constant<value_ints=[2]>() y, i = TopK(x, k)", "float[N,7] x", "[N, 2]"),
    "one hot": (
        "d = Constant<value_int=9>() v = Constant<value_floats=[0.0,1.0]>() y = OneHot(x, d, v)",
        "int64[N,S] x",
        "[N, S, 9]",
    ),
    "reduction": ("a = Constant<value_ints=[1]>() y = ReduceMean<keepdims=0>(x, a)", "float[N,S,4] x", "[N, 4]"),
    "declared expression": ("y = Concat<axis=1>(x, z)", "float[N,S] x, float[N,H] z", "[N, H + S]"),
    "stft": (
        "t = Constant<value_int=2>() w = Constant<value_floats=[1.0,1.0,1.0,1.0]>() y = STFT(x, t, w)",
        "float[N,H,1] x",
        "[N, div(H, 2) - 1, 3, 2]",
    ),
}


@pytest.mark.parametrize("case", INFERRED)
def test_dimensions_are_expressions_of_those_of_the_inputs(case: str) -> None:
    body, inputs, expected = INFERRED[case]
    model = parse(body, inputs=inputs, outputs="float y")
    apply(model, "FoldConstants", "InferShapes")
    out = model.graph.outputs[0]
    assert f"[{', '.join(map(str, out.shape or ()))}]" == expected
    assert_holds(model)


def assert_holds(model: Model) -> None:
    """Every inferred dimension and element equals that of a run."""
    facts, graph = Facts(), model.graph
    facts.walk(graph)
    values: list[Value] = [out for node in graph.nodes for out in node.outputs if out.shape is not None]
    for sizes in SIZES:
        results = Program(graph.nodes, graph.inputs, values, bind).run(feeds(graph, sizes), RunContext())
        unnamed: dict[Any, int] = {}
        for value, array in zip(values, results, strict=True):
            pairs = [*zip(value.shape or (), array.shape, strict=True)]
            if value in facts.contents:
                content = zip(facts.contents[value].flat, array.flat, strict=True)
                pairs += [(dim, number) for dim, number in content if dim is not None]
            for dim, number in pairs:
                known = dims.evaluate(dim, sizes)
                assert number == (known if isinstance(known, int) else unnamed.setdefault(known, number)), value


def test_an_unknown_dimension_gets_a_fresh_name() -> None:
    model = parse("i = NonZero(x) y = Transpose(i) z = Concat<axis=0>(y, y)", outputs="int64 z, int64 y")
    apply(model, "InferShapes")
    z, y = (v.shape for v in model.graph.outputs)
    assert y is not None and z is not None
    assert dims.is_fresh(y[0]) and z[0] == dims.mul(2, y[0])


def test_inner_names_that_a_model_states_are_ignored() -> None:
    """Both values are stated to have S rows, and have different numbers of them."""
    model = parse(
        "a = Concat<axis=0>(x, x) y = Concat<axis=0>(a, x)", inputs="float[N] x", outputs="float[S] y, float[S] a"
    )
    apply(model, "InferShapes")
    assert [v.shape for v in model.graph.outputs] == [("3*N",), ("2*N",)]


def test_inputs_keep_what_they_declare() -> None:
    model = parse("y = Relu(x)", inputs="float[N,?] x", outputs="float y")
    declared = model.graph.inputs[0].type
    apply(model, "InferShapes", "FoldShapes")
    assert model.graph.inputs[0].type is declared


# -- folding

HEADS = (
    "s = Shape(x) zero = Constant<value_int=0>() one = Constant<value_int=1>() ax = Constant<value_ints=[0]>() "
    "b0 = Gather(s, zero) b = Unsqueeze(b0, ax) s0 = Gather(s, one) q = Unsqueeze(s0, ax) "
)

FOLDED = {
    "split into heads": (
        HEADS + "h = Constant<value_ints=[4,16]>() t = Concat<axis=0>(b, q, h) y = Reshape(x, t)",
        "float[N,S,64] x",
        ["Reshape"],
    ),
    "expand by where and equal": (
        (
            "s = Shape(x) m = Constant<value_ints=[-1]>() e = Equal(s, m) r = Constant<value_ints=[2]>() "
            "f = ConstantOfShape<value=int64[1] {1}>(r) w = Where(e, f, s) y = Expand(x, w)"
        ),
        "float[N,S] x",
        [],
    ),
    "slice that keeps everything": (
        (
            "s = Shape(x) i = Constant<value_ints=[1]>() n = Gather(s, i) "
            "b = Constant<value_ints=[0]>() y = Slice(x, b, n, i)"
        ),
        "float[N,S] x",
        [],
    ),
    "squeeze of unsqueeze": (
        "a = Constant<value_ints=[1]>() u = Unsqueeze(x, a) y = Squeeze(u, a)",
        "float[N,S] x",
        [],
    ),
    "reshape that undoes a reshape": (
        "t = Constant<value_ints=[-1,1]>() f = Reshape(x, t) s = Shape(x) y = Reshape(f, s)",
        "float[N,S] x",
        [],
    ),
    "flattened by sizes": (
        HEADS + "n = Mul(b0, s0) m = Unsqueeze(n, ax) h = Constant<value_ints=[64]>() "
        "t = Concat<axis=0>(m, h) y = Reshape(x, t)",
        "float[N,S,64] x",
        ["Reshape"],
    ),
    "flattened beside what may be empty": (
        (
            "s = Shape(x) zero = Constant<value_int=0>() ax = Constant<value_ints=[0]>() b0 = Gather(s, zero) "
            "b = Unsqueeze(b0, ax) e = Shape<start=1>(x) p = ReduceProd<keepdims=1>(e) "
            "t = Concat<axis=0>(b, p) y = Reshape(x, t)"
        ),
        "float[N,S,H] x",
        ["Flatten"],
    ),
    "dimensions read at once": (
        HEADS + "t = Concat<axis=0>(b, q) c = Cast<to=6>(t) d = Cast<to=7>(c) y = ConstantOfShape(d)",
        "float[N,S,64] x",
        ["Shape", "ConstantOfShape"],
    ),
    "the same dimension of another input": (
        (
            "s = Shape(x) i = Constant<value_ints=[0]>() n = Gather(s, i) r = Shape(z) m = Gather(r, i) a = Add(n, m) "
            "y = ConstantOfShape(a)"
        ),
        "float[N,S] x, float[N,4] z",
        ["Shape", "Add", "ConstantOfShape"],
    ),
    "expand before a broadcast": (
        "s = Shape(x) e = Expand(z, s) y = Add(x, e)",
        "float[N,S,4] x, float[S,1] z",
        ["Add"],
    ),
    "expand to numbers before a broadcast": (
        "s = Constant<value_ints=[2,3,4]>() e = Expand(z, s) y = Add(x, e)",
        "float[2,3,4] x, float[3,1] z",
        ["Add"],
    ),
    "expand that nobody else does": (
        "s = Constant<value_ints=[2,3,4]>() e = Expand(z, s) y = Add(x, e)",
        "float[3,4] x, float[3,1] z",
        ["Expand", "Add"],
    ),
    "expand by numbers beside dimensions": (
        (
            "s = Shape(x) i = Constant<value_ints=[0]>() n = Gather(s, i) k = Constant<value_ints=[3,4]>() "
            "t = Concat<axis=0>(n, k) y = Expand(x, t)"
        ),
        "float[N,1,4] x",
        ["Expand"],
    ),
    "if by rank": (
        (
            "s = Shape(x) r = Size(s) two = Constant<value_int=2>() c = Equal(r, two) "
            "y = If(c) <then_branch = t () => (float[N,S] p) { p = Neg(x) }, "
            "else_branch = e () => (float[N,S] q) { q = Abs(x) }>"
        ),
        "float[N,S] x",
        ["Neg"],
    ),
    "elements of a value that was removed": (
        HEADS + "six = Constant<value_ints=[6]>() n = Mul(b, six) t = Concat<axis=0>(n, b, q) "
        "m = Constant<value_ints=[-1]>() r = Reshape(t, m) e = Equal(r, m) three = Constant<value_ints=[3]>() "
        "f = ConstantOfShape<value=int64[1] {1}>(three) w = Where(e, f, r) y = ConstantOfShape(w)",
        "float[N,S,64] x",
        ["Shape", "Mul", "Shape", "Concat", "ConstantOfShape"],
    ),
    "reshape to its own shape": ("s = Shape(x) y = Reshape(x, s)", "float[N,S] x", []),
}


@pytest.mark.parametrize("case", FOLDED)
def test_shape_arithmetic_folds(case: str) -> None:
    body, inputs, expected = FOLDED[case]
    model, report = folded(body, inputs=inputs, outputs="float y")
    assert ops(model.graph) == expected
    assert all(r.what for r in report.rewrites)


@pytest.mark.parametrize("case", FOLDED)
def test_elements_of_shapes_are_what_a_run_computes(case: str) -> None:
    body, inputs, _ = FOLDED[case]
    model = parse(body, inputs=inputs, outputs="float y")
    apply(model, "FoldConstants")
    assert_holds(model)


@pytest.mark.parametrize("shape", ["2, 2", "N, 2", "1"], ids=["larger", "of unknown size", "alike"])
def test_a_choice_between_equal_numbers_has_the_shape_of_its_condition(shape: str) -> None:
    body = "a = Constant<value_ints=[5]>() b = Constant<value_ints=[5]>() y = Where(c, a, b)"
    model, _ = folded(body, inputs=f"bool[{shape}] c", outputs="int64 y")
    sizes = [int(d) if d.isdecimal() else 3 for d in shape.split(", ")]
    condition = np.arange(np.prod(sizes, dtype=int)).reshape(sizes) % 2 == 0
    (found,) = compile_graph(model.graph).run([condition], RunContext())
    np.testing.assert_array_equal(found, np.where(condition, [5], [5]))


CONTENTS = {
    "arithmetic": (
        "t = Constant<value_ints=[2,3]>() a = Mul(s, t) b = Sub(a, t) c = Neg(b) d = Abs(t) e = Add(c, d)",
        2,
    ),
    "division": ("t = Constant<value_ints=[2,3]>() a = Div(s, t) b = Mod(s, t) c = Add(s, t) e = Div(c, t)", 2),
    "bounds": ("t = Constant<value_ints=[3,3]>() a = Min(s, t) b = Max(s, t) e = Concat<axis=0>(a, b)", 4),
    "comparison": (
        (
            "t = Constant<value_ints=[-1,4]>() g = Greater(s, t) l = LessOrEqual(t, s) n = Not(g) o = Or(n, l) "
            "e = Cast<to=7>(o)"
        ),
        2,
    ),
    "floats of whole numbers": (
        "f = Cast<to=1>(s) t = Constant<value_float=2.0>() m = Mul(f, t) q = Div(m, t) r = Floor(q) e = Cast<to=7>(r)",
        2,
    ),
    "movement": (
        (
            "i = Constant<value_ints=[1,0]>() a = Gather(s, i) z = Constant<value_ints=[0]>() b = Unsqueeze(a, z) "
            "c = Transpose(b) d = Squeeze(c) r = Constant<value_ints=[2]>() e = Tile(d, r)"
        ),
        4,
    ),
    "pieces": (
        (
            "a, b = Split<axis=0, num_outputs=2>(s) p = ReduceProd<keepdims=1>(s) u = ReduceSum<keepdims=1>(s) "
            "e = Concat<axis=0>(b, a, p, u)"
        ),
        4,
    ),
    "backwards": (
        (
            "b = Constant<value_ints=[-1]>() l = Constant<value_ints=[-99]>() z = Constant<value_ints=[0]>() "
            "e = Slice(s, b, l, z, b)"
        ),
        2,
    ),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_elements_are_followed_through(case: str) -> None:
    body, count = CONTENTS[case]
    model = parse(f"s = Shape(x) {body} y = Identity(e)", inputs="float[N,S] x", outputs="int64 y")
    apply(model, "FoldConstants")
    facts = Facts()
    facts.walk(model.graph)
    content = facts.contents[model.graph.outputs[0]]
    assert content.size == count
    assert any(d is not None for d in content.flat)
    assert_holds(model)


EMPTY = ({"N": 0, "S": 3, "H": 8}, {"N": 2, "S": 0, "H": 8})


def test_a_constant_target_serves_empty_tensors_too() -> None:
    """[N, S, 64] to heads copies N and S; with a -1 in addition it would fail for N = 0."""
    body, inputs, _ = FOLDED["split into heads"]
    model, _ = folded(body, inputs=inputs, outputs="float y", check=SIZES + EMPTY)
    target = next(iter(model.graph.nodes)).inputs[1]
    assert target is not None and target.numpy().tolist() == [0, 0, 4, 16]
    body, inputs, _ = FOLDED["flattened beside what may be empty"]
    folded(body, inputs=inputs, outputs="float y", check=SIZES + EMPTY[1:])


LEFT = {
    "two dimensions that the input lacks": (
        "f = Flatten<axis=2>(x) g = Relu(f) s = Shape(x) y = Reshape(g, s)",
        "float[N,S,64] x",
        "no constant target",
    ),
    "a -1 beside a dimension that may be 0": (
        (
            "t = Transpose<perm=[0,2,1]>(x) s = Shape(t) i = Constant<value_ints=[0]>() n = Gather(s, i) "
            "k = Constant<value_ints=[2,8]>() j = Constant<value_ints=[2]>() h = Gather(s, j) "
            "u = Concat<axis=0>(n, k, h) y = Reshape(x, u)"
        ),
        "float[N,H,16] x",
        "no constant target",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_non_constant_parameters_are_reported_with_a_reason(case: str) -> None:
    body, inputs, reason = LEFT[case]
    model, report = folded(body, inputs=inputs, outputs="float y")
    assert "Reshape" in ops(model.graph) and "Shape" in ops(model.graph)
    assert any("Reshape" in d.node and reason in d.reason for d in report.declined)


def test_a_slice_with_a_negative_step_is_kept() -> None:
    body = (
        "b = Constant<value_ints=[-1]>() e = Constant<value_ints=[-9223372036854775807]>() "
        "a = Constant<value_ints=[1]>() "
        "y = Slice(x, b, e, a, b)"
    )
    model, _ = folded(body, inputs="float[N,S] x", outputs="float y")
    assert ops(model.graph) == ["Slice"]


def test_fixed_dimensions_fold_all_that_depends_on_them() -> None:
    body, inputs, _ = FOLDED["dimensions read at once"]
    model = parse(body, inputs=inputs, outputs="float y")
    fix_dimensions(model.graph, {"N": 2, "S": 3}, {})
    apply(model, *FOLD)
    assert ops(model.graph) == [] and model.graph.outputs[0].is_const


def test_fixed_dimensions_reach_expressions() -> None:
    model = parse("y = Relu(x)")
    v = model.graph.inputs[0]
    v.type = TensorType(dtypes.f32, ("N + S", "S"))
    fix_dimensions(model.graph, {"S": 3}, {})
    assert v.shape == ("N + 3", 3)


def test_an_inlined_branch_keeps_its_constants_and_names() -> None:
    model, _ = folded(
        "k = Constant<value_int=0>() c = Cast<to=9>(k) y = If(c) <then_branch = t () => (float[N] p) { p = Neg(x) }, "
        "else_branch = e () => (float[N] q) { two = Constant<value_float=2.0>() d = Mul(x, two) q = Add(d, x) }>",
        inputs="float[N] x", outputs="float y",
    )  # fmt: skip
    assert ops(model.graph) == ["Mul", "Add"]
    assert model.graph.output_names == ["y"]


def test_inside_a_loop_dimensions_of_the_outside_are_known_and_those_that_change_are_not() -> None:
    model, _ = folded(
        "n = Constant<value_int=3>() t = Constant<value_int=1>() c = Cast<to=9>(t) "
        "y = Loop(n, c, x) <body = b (int64 i, bool k, float[N] v) => (bool go, float[M] w) { "
        "go = Identity(k) s = Shape(x) m = Constant<value_ints=[-1]>() r = Reshape(v, m) e = Shape(r) "
        "u = Concat<axis=0>(s, e) f = ConstantOfShape(u) g = Reshape(f, m) w = Concat<axis=0>(v, g) }>",
        inputs="float[N] x", outputs="float y",
    )  # fmt: skip
    assert ops(model.graph) == ["Loop"]


def test_a_judge_that_refuses_leaves_the_graph_whole() -> None:
    for body, inputs, _ in FOLDED.values():
        model = parse(body, inputs=inputs, outputs="float y")
        apply(model, "FoldConstants")
        before = clone(model)
        report = manager.run(model.graph, ("FoldShapes",), judge=lambda old, new, made: "no")
        assert not report.rewrites
        for want, got in zip(run(before.graph, SIZES[0]), run(model.graph, SIZES[0]), strict=True):
            np.testing.assert_array_equal(want, got)
