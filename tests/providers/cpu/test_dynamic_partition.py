"""Parts with data-dependent ranks and sizes: cut, compiled in a run, and cached."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx.errors import InvalidArgument
from sardonyx.providers.cpu.runtime import deferred

RNG = np.random.default_rng(3)


def session(body: str, inputs: str, outputs: str) -> ort.InferenceSession:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 24]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )
    made = ort.InferenceSession(model.SerializeToString())
    assert set(made.explain().counts()) == {"cpu"}
    return made


def reals(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f")


def test_an_operand_of_the_run_decides_the_rank(caplog: pytest.LogCaptureFixture) -> None:
    made = session("s = ReduceSum<keepdims = 0>(x, a) y = Exp(s)", "float[n,m,o] x, int64[k] a", "float[p] y")
    x = reals(3, 4, 5)
    with caplog.at_level("INFO", "sardonyx"):
        for axes in ([0, 2], [1], [-1], [0, 2]):
            (got,) = made.run(None, {"x": x, "a": np.array(axes)})
            np.testing.assert_allclose(got, np.exp(x.sum(tuple(axes))), rtol=1e-5)
    assert "numpy" not in caplog.text


@pytest.mark.parametrize(
    ("body", "operand", "meaning"),
    [
        ("y = Slice(x, s, e)", ([1], [4]), lambda x, s, e: x[s[0] : e[0]]),
        ("y = Slice(x, s, e)", ([-3], [-1]), lambda x, s, e: x[s[0] : e[0]]),
        ("t = Concat<axis = 0>(s, e) y = Expand(x, t)", ([2, 1], [1]), lambda x, s, e: np.broadcast_to(x, (2, 6, 3))),
        ("t = Concat<axis = 0>(s, e) y = Reshape(x, t)", ([9], [-1]), lambda x, s, e: x.reshape(9, 2)),
        ("t = Concat<axis = 0>(s, e) y = Tile(x, t)", ([2], [3]), lambda x, s, e: np.tile(x, (2, 3))),
    ],
)
def test_shapes_from_operands_of_the_run(body: str, operand: tuple[list[int], list[int]], meaning: Any) -> None:
    s, e = (np.array(v) for v in operand)
    made = session(body, f"float[6,3] x, int64[{len(s)}] s, int64[1] e", "float[a,b] y")
    x = reals(6, 3)
    np.testing.assert_array_equal(made.run(None, {"x": x, "s": s, "e": e})[0], meaning(x, s, e))


def test_operands_that_never_repeat_end_on_numpy() -> None:
    made = session("y = Slice(x, s, e)", "float[n] x, int64[1] s, int64[1] e", "float[m] y")
    x = reals(3 * deferred.MAX_SPECIALIZATIONS)
    for i in range(2 * deferred.MAX_SPECIALIZATIONS):
        (got,) = made.run(None, {"x": x, "s": np.array([i]), "e": np.array([i + 5])})
        np.testing.assert_array_equal(got, x[i : i + 5])


def numpy_inside(made: ort.InferenceSession) -> dict[str, str]:
    return {p.node: p.on_numpy for p in made.explain().placements if p.on_numpy}


def test_explain_tells_what_ends_on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "MAX_SPECIALIZATIONS", 2)
    made = session("t = Exp(x) y = Slice(t, s, e)", "float[n] x, int64[1] s, int64[1] e", "float[m] y")
    for i in range(2):
        made.run(None, {"x": reals(9), "s": np.array([i]), "e": np.array([i + 5])})
        assert numpy_inside(made) == {} and "on numpy" not in str(made.explain())
    made.run(None, {"x": reals(9), "s": np.array([3]), "e": np.array([7])})
    told = numpy_inside(made)
    assert list(told) == ["y"] and "different shapes, or contents of operands" in told["y"]
    assert f"on numpy all the same: {told['y']}" in str(made.explain())
    (row,) = (p for p in made.explain().placements if p.node == "y")
    assert (row.provider, row.why_not_compiled) == ("cpu", told["y"])


def test_explain_tells_what_no_run_can_compile() -> None:
    made = session("y = MaxUnpool<kernel_shape = [2, 2]>(x, i, s)", "float[1,1,2,2] x, int64[1,1,2,2] i, int64[4] s",
                   "float[a,b,c,d] y")  # fmt: skip
    made.run(None, {"x": reals(1, 1, 2, 2), "i": np.arange(4).reshape(1, 1, 2, 2), "s": np.array([1, 1, 4, 4])})
    assert numpy_inside(made) == {"y": "the rank of 'y' is not known"}


def test_results_of_data_dependent_size_are_compiled() -> None:
    made = session(
        "z = Constant<value_float = 0.5>() m = Greater(x, z) n = NonZero(m) t = Transpose(n) g = GatherND(x, t)"
        " y = Sqrt(g) c = Shape(g)",
        "float[n,m] x", "float[k] y, int64[1] c",
    )  # fmt: skip
    for shape in ((4, 5), (40, 70), (1, 3)):
        x = RNG.random(shape).astype("f")
        y, count = made.run(None, {"x": x})
        np.testing.assert_allclose(y, np.sqrt(x[x > 0.5]), rtol=1e-6)
        assert count.tolist() == [(x > 0.5).sum()]


def test_nothing_is_found() -> None:
    made = session("n = NonZero(x) t = Transpose(n) y = GatherND(x, t)", "float[n,m] x", "float[k] y")
    assert made.run(None, {"x": np.zeros((3, 4), "f")})[0].shape == (0,)


def test_a_size_from_data_is_used_downstream() -> None:
    made = session(
        """t = ReduceMax<keepdims = 0>(l) a = Constant<value_int = 0>() b = Constant<value_int = 1>()
        r = Range(a, t, b) u = Constant<value = int64[1] {1}>() c = Unsqueeze(l, u) m = Less(r, c)
        y = Cast<to = 1>(m)""",
        "int64[n] l", "float[n,k] y",
    )  # fmt: skip
    for lengths in ([3, 1, 5], [2, 2], [7]):
        length = np.array(lengths)
        (got,) = made.run(None, {"l": length})
        np.testing.assert_array_equal(got, np.arange(length.max()) < length[:, None])


def test_threads_share_compiled_code() -> None:
    made = session("s = ReduceMean(x, a) y = Relu(s)", "float[n,m] x, int64[1] a", "float[p,q] y")
    x = reals(20, 30)

    def run(axis: int) -> bool:
        (got,) = made.run(None, {"x": x, "a": np.array([axis])})
        return bool(np.allclose(got, np.maximum(x.mean(axis, keepdims=True), 0), atol=1e-6))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, [0, 1] * 20))


def test_an_index_outside_is_named() -> None:
    made = session("n = NonZero(x) y = Compress<axis = 0>(z, c)", "float[n] x, float[m] z, bool[k] c",
                   "int64[1,o] n, float[p] y")  # fmt: skip
    feeds = {"x": reals(3), "z": reals(2), "c": np.array([False, False, True])}
    with pytest.raises(InvalidArgument, match="Compress"):
        made.run(None, feeds)


def test_results_are_the_callers_own() -> None:
    made = session("y, a, b, c = Unique(x)", "int64[n] x", "int64[k] y, int64[k] a, int64[n] b, int64[k] c")
    x = np.array([3, 1, 3, 1, 1, 7])
    first = made.run(None, {"x": x})
    for array in first:
        array[...] = 0
    y, a, b, c = made.run(None, {"x": x})
    assert (y.tolist(), a.tolist(), b.tolist(), c.tolist()) == ([1, 3, 7], [1, 0, 5], [1, 0, 1, 0, 0, 2], [3, 2, 1])


@pytest.mark.parametrize(
    ("body", "operand"),
    [
        ("y = Reshape(x, a)", [5, -1]),
        ("y = Expand(x, a)", [2, 4]),
        ("y = ReduceSum(x, a)", [0, 2]),
        ("y = Unsqueeze(x, a)", [0, 9]),
        ("y = Tile(x, a)", [-1, 2]),
        ("y, z = Split(x, a)", [1, 1]),
        ("z = Constant<value_ints = [0, 0]>() w = Constant<value_ints = [0, 1]>() y = Slice(x, z, a, w, z)", [1, 1]),
    ],
)
def test_operands_that_make_no_sense_are_refused(body: str, operand: list[int]) -> None:
    made = session(body, "float[n,m] x, int64[2] a", "float[p,q] y")
    with pytest.raises(InvalidArgument):
        made.run(None, {"x": reals(3, 4), "a": np.array(operand)})


@pytest.mark.parametrize("turns", ["t = Transpose<perm = [1, 0]>(x)", "s = Neg(x) t = Transpose<perm = [1, 0]>(s)"])
def test_results_after_a_data_dependent_size_are_transposed_in_place(turns: str) -> None:
    """Not before the cut, which would copy everything; values that earlier nodes and the caller read are unchanged."""
    body = f"{turns} m = ReduceMax<keepdims = 0>(t, a) z = NonZero(c) i = Squeeze(z, o) y = Gather(t, i)"
    inputs = "float[20,300] x, int64[1] a, bool[300] c, int64[1] o"
    made = session(body, inputs, "float[n,20] y, float[300] m")
    x, c = reals(20, 300), RNG.random(300) > 0.9
    turned = -x.T if "Neg" in turns else x.T
    for _ in range(2):
        y, m = made.run(None, {"x": x, "a": np.array([1]), "c": c, "o": np.array([0])})
        np.testing.assert_array_equal(y, turned[c])
        np.testing.assert_array_equal(m, turned.max(1))
    kinds = [node.op_type for node in made._sess.engine.model.graph.nodes]
    assert kinds.index("Transpose") < kinds.index("NonZero") < len(kinds) - 1 - kinds[::-1].index("Transpose")


def test_a_body_with_sizes_unknown_before_the_run_runs_on_numpy() -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 24]>
        g (float[a,b,h,w] x, float[4] c, float[n,4] y) => (float[4] z, float[n,4] r) {
          z, r = Scan<num_scan_inputs = 1, body = b (float[4] s, float[4] e) => (float[4] t, float[4] v) {
            p, at = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
            u = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(p, at)
            t = Add(s, e) v = Mul(e, e) }>(c, y) }"""
    )
    made = ort.InferenceSession(model.SerializeToString(), options)
    x, c, y = reals(3, 2, 4, 6), reals(4), reals(3, 4)
    for _ in range(2):
        z, r = made.run(None, {"x": x, "c": c, "y": y})
        np.testing.assert_allclose(z, c + y.sum(0), rtol=1e-5)
        np.testing.assert_allclose(r, y * y, rtol=1e-6)


def test_a_small_body_is_compiled_if_it_has_a_product() -> None:
    """Branches of different ranks, which the data select: Python calls the one that is taken."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 24]>
        g (float[n,4] x, float[4,4] w, bool p) => (float[] y) {
          y = If(p) <then_branch = t () => (float[c,d] u) { u = MatMul(x, w) },
                     else_branch = f () => (float v) { v = ReduceSum<keepdims = 0>(x) }> }"""
    )
    made = ort.InferenceSession(model.SerializeToString())
    assert made.explain().counts() == {"cpu": {"MatMul": 1}, "reference": {"If": 1, "ReduceSum": 1}}
    x, w = reals(3, 4), reals(4, 4)
    for p in (True, False):
        (y,) = made.run(None, {"x": x, "w": w, "p": np.array(p)})
        np.testing.assert_allclose(y, x @ w if p else x.sum(), rtol=1e-5, atol=1e-6)


def test_several_parts_compare_the_sizes_of_their_inputs(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Runs without a context, too: the size of x was taken for that of y."""
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))
    body = "k = Compress(x, c) s = Shape(x) e = Expand(y, s) z = Exp(k) w = Neg(e) r = ReduceSum(w)"
    for _ in range(2):
        made = session(body, "float[n] x, bool[n] c, float[n] y", "float[m] z, float[n] w, float[1] r")
        for count, given in ((5, 5), (5, 5), (6, 1), (5, 5), (7, 1), (3, 3)):
            x, y, c = reals(count), reals(given), RNG.random(count) < 0.5
            z, w, _ = made.run(None, {"x": x, "c": c, "y": y})
            np.testing.assert_allclose(z, np.exp(x[c]), rtol=1e-5)
            np.testing.assert_array_equal(w, np.broadcast_to(-y, count))


def test_results_that_branches_hand_on_are_the_callers_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 24]>
        g (float[n,2] x, bool p) => (float[] y, float[] z, float[n,2] w) {
          one = Constant<value = float[3] {1, 2, 3}>() a = Constant<value_ints = [0]>()
          y, z = If(p) <then_branch = t () => (u, s) { u = Identity(x) s = Identity(x) },
                        else_branch = f () => (v, r) { v = Identity(one) r = ReduceSum<keepdims = 0>(x, a) }>
          w = Neg(x) }"""
    )
    for _ in range(2):
        made = ort.InferenceSession(model.SerializeToString())
        for p in (True, True, False, False, True):
            x = reals(3, 2)
            kept = x.copy()
            for y, z, w in [made.run(None, {"x": x, "p": np.array(p)}) for _ in range(2)]:
                np.testing.assert_array_equal(y, kept if p else [1, 2, 3])
                np.testing.assert_allclose(z, kept if p else kept.sum(0), rtol=1e-6)
                np.testing.assert_array_equal(w, -kept)
                for array in (y, z, w):
                    array[...] = 7
            np.testing.assert_array_equal(x, kept)
