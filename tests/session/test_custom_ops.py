"""Operators that users define: three forms, the same answers compiled and by numpy, and errors that name the node."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import custom_op, dtypes
from sardonyx.errors import Fail, InvalidArgument, InvalidGraph, NotImplemented, RuntimeException
from sardonyx.interpret.context import RunContext
from sardonyx.ir import dims
from sardonyx.ir.types import TensorType
from sardonyx.providers.cpu.codegen import jit
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.language.dsl import kernel
from sardonyx.providers.cpu.language.values import i64
from sardonyx.session.build import BuildOptions, build

HEAD = '<ir_version: 10, opset_import: ["": 21, "test.own": 1]>'
NATIVE = pytest.mark.parametrize("native", [True, False], ids=["compiled", "numpy"])


def model(text: str) -> bytes:
    return bytes(onnx.parser.parse_model(f"{HEAD} {text}").SerializeToString())


def session(text: str) -> sardonyx.InferenceSession:
    return sardonyx.InferenceSession(model(text))


def answers(text: str, *arrays: np.ndarray, native: bool) -> list[np.ndarray]:
    """The outputs of a model, all of which was run as asked for."""
    if native:
        made = session(text)
        assert set(owners(made).values()) == {"cpu"}, made.explain()
        return made.run(None, {i.name: a for i, a in zip(made.get_inputs(), arrays, strict=True)})
    engine = build(model(text), BuildOptions())
    feeds = {i.name: a for i, a in zip(engine.inputs, arrays, strict=True)}
    return engine.run(feeds, [o.name for o in engine.outputs], RunContext())


def owners(made: sardonyx.InferenceSession) -> dict[str, str]:
    return {p.op_type: p.provider for p in made.explain().placements}


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


# -- scalar programs


@custom_op("test.own", "Swish2")
def swish2(e: Any, x: Any, *, beta: float = 1.0) -> Any:
    return x * e.sigmoid(beta * x)


@custom_op("test.own", "Blend")
def blend(e: Any, x: Any, y: Any = None, *, weights: Any = (0.5, 0.5)) -> Any:
    return x * weights[0] if y is None else x * weights[0] + y * weights[1]


@custom_op("test.own", "Within", types=["float32", np.int32])
def within(e: Any, x: Any, *, low: float, high: float) -> Any:
    return (x >= low) & (x <= high)


def by_hand(x: np.ndarray, beta: float) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / (1 + np.exp(-beta * wide))


def test_a_scalar_operator_is_fused_with_its_neighbours() -> None:
    text = "g (float[n, 8] x, float[8, 4] w) => (float[n, 4] y) {{ a = MatMul(x, w) {} y = Relu(b) }}"
    ours, plain = session(text.format("b = test.own.Swish2 <beta=2.0> (a)")), session(text.format("b = Tanh(a)"))
    x, w = normal(5, 8), normal(8, 4)
    (y,) = ours.run(None, {"x": x, "w": w})
    np.testing.assert_allclose(y, np.maximum(by_hand(x @ w, 2), 0), rtol=1e-5, atol=1e-6)
    assert owners(ours) == {"MatMul": "cpu", "Swish2": "cpu", "Relu": "cpu"}
    assert len(ours._sess.engine.parts.whole.table.steps) == len(plain._sess.engine.parts.whole.table.steps)


@pytest.mark.parametrize("dtype", ["float", "float16", "double", "bfloat16"])
def test_types_and_shapes_are_those_of_the_inputs(dtype: str) -> None:
    made = session(f"g ({dtype}[n, m] x) => ({dtype}[n, m] y) {{ y = test.own.Swish2(x) }}")
    for shape in ((0, 3), (1, 1), (7, 33)):
        x = (normal(*shape) * 4).astype(dtypes.of_ort(dtype).numpy)
        (y,) = made.run(None, {"x": x})
        assert y.dtype == x.dtype and y.shape == x.shape
        tolerance = {"float16": 1e-3, "bfloat16": 1e-2}.get(dtype, 1e-5)
        np.testing.assert_allclose(y.astype(np.float64), by_hand(x, 1), rtol=tolerance, atol=tolerance)


@NATIVE
def test_inputs_broadcast_and_may_be_left_out(native: bool) -> None:
    x, y = normal(3, 1, 5), normal(4, 1)
    both = "g (float[a, 1, b] x, float[c, 1] y) => (z) { z = test.own.Blend <weights=[2.0, -1.0]> (x, y) }"
    np.testing.assert_allclose(answers(both, x, y, native=native)[0], 2 * x - y, rtol=1e-5, atol=1e-6)
    one = "g (float[a, 1, b] x) => (z) { z = test.own.Blend(x) }"
    np.testing.assert_allclose(answers(one, x, native=native)[0], x / 2)


@NATIVE
def test_a_whole_number_suits_a_real_attribute_and_flags_come_out(native: bool) -> None:
    x = np.array([-2, -1, 0, 0.5, 0.7, np.nan], np.float32)
    text = "g (float[n] x) => (bool[n] y) { y = test.own.Within <low=-1, high=0.5> (x) }"
    np.testing.assert_array_equal(answers(text, x, native=native)[0], [False, True, True, True, False, False])


@NATIVE
def test_operators_inside_of_branches(native: bool) -> None:
    text = """g (bool c, float[n, 4] x) => (float[n, 4] y) { y = If (c) <
        then_branch = t () => (float[n, 4] a) { a = test.own.Swish2 <beta=3.0> (x) },
        else_branch = f () => (float[n, 4] b) { b = test.own.RunningMax(x) }> }"""
    x = normal(3, 4)
    for flag, want in ((True, by_hand(x, 3)), (False, np.maximum.accumulate(x, axis=1))):
        np.testing.assert_allclose(answers(text, np.array(flag), x, native=native)[0], want, rtol=1e-5, atol=1e-6)


def test_a_rank_that_only_a_run_tells_is_compiled_in_the_run() -> None:
    text = """g (float[n, m] x, int64[k] a) => (y) {
        s = ReduceSum <keepdims = 0> (x, a) y = test.own.Swish2 <beta = 2.0> (s) }"""
    made = session(text)
    assert set(owners(made).values()) == {"cpu"}
    x = normal(3, 4)
    for axes in ([0], [0, 1], [-1]):
        (y,) = made.run(None, {"x": x, "a": np.array(axes)})
        np.testing.assert_allclose(y, by_hand(x.sum(tuple(axes)), 2), rtol=1e-5, atol=1e-6)


def test_constants_are_folded() -> None:
    made = session("g (float[1] x) => (y) <float[1] c = {3}> { a = test.own.Swish2(c) y = Add(x, a) }")
    assert owners(made) == {"Add": "cpu"}
    np.testing.assert_allclose(made.run(None, {"x": np.zeros(1, "f")})[0], by_hand(np.float32([3]), 1), rtol=1e-6)


# -- functions of arrays


def halves(x: TensorType, *, axis: int = 0) -> tuple[TensorType, TensorType]:
    shape = list(x.shape)
    shape[axis] = dims.floordiv(shape[axis], 2)
    return TensorType(x.dtype, tuple(shape)), TensorType(dtypes.i64, ())


@custom_op("test.own", "FirstHalf", infer=halves)
def first_half(x: np.ndarray, *, axis: int = 0) -> Any:
    count = x.shape[axis] // 2
    return np.take(x, range(count), axis), np.int64(count)


def test_a_function_of_arrays_runs_between_compiled_parts() -> None:
    made = session("g (float[n, 6] x) => (y, k) { h, k = test.own.FirstHalf <axis=1> (x) y = Mul(h, h) }")
    x = normal(4, 6)
    y, count = made.run(None, {"x": x})
    np.testing.assert_allclose(y, x[:, :3] ** 2, rtol=1e-6)
    assert count == 3 and [o.shape for o in made.get_outputs()] == [["n", 3], []]
    assert owners(made) == {"FirstHalf": "reference", "Mul": "cpu"}


def same(x: TensorType) -> TensorType:
    return x


def register(name: str, fn: Any, infer: Any = same, **more: Any) -> str:
    """Define an operator; a model of it alone."""

    @custom_op("test.own", name, infer=infer, **more)
    def only(x: np.ndarray) -> Any:
        return fn(x)

    return f"g (float[n] x) => (y) {{ y = test.own.{name}(x) }}"


def write(x: np.ndarray) -> np.ndarray:
    x[0] = 1
    return x


def fail(x: np.ndarray) -> np.ndarray:
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (fail, "no such thing"),
        (write, "read-only"),
        (lambda x: x.astype(np.float64), r"returned a type other than inferred.*f32\[2\].*float64"),
        (lambda x: x[:1], r"returned a type other than inferred.*float32\[1\]"),
        (lambda x: (x, x), "another number of outputs"),
        (lambda x: "text", "did not return an array"),
    ],
)
def test_errors_in_a_run_name_the_node(fn: Any, message: str) -> None:
    made = session(register("Wrong", fn))
    with pytest.raises(RuntimeException, match=message) as error:
        made.run(None, {"x": np.ones(2, np.float32)})
    assert "test.own.Wrong" in str(error.value)


# -- kernels


@kernel(x=("dtype",), y=("dtype",), rows=i64, cols=i64)
def running_max(k: Any, x: Any, y: Any, rows: Any, cols: Any, *, dtype: Any, scale: float) -> None:
    with k.share(rows) as r:
        best = k.var(x.load(r * cols))
        with k.loop(0, cols) as c:
            best.set(k.max(best.get(), x.load(r * cols + c)))
            y.store(r * cols + c, best.get() * scale)


def launch(x: Any, y: Any, *, scale: float = 1.0) -> Any:
    if x.dtype is not dtypes.f32:
        raise NotImplemented("only floats of 32 bits")
    rows, cols = x.shape
    return running_max(dtype=x.dtype, scale=scale), {"x": x, "y": y, "rows": rows, "cols": cols}


def like(x: TensorType, *, scale: float = 1.0) -> TensorType:
    if len(x.shape or ()) != 2:
        raise InvalidArgument("RunningMax is of matrices", got=x)
    return x


@custom_op("test.own", "RunningMax", infer=like, kernel=launch)
def running_max_numpy(x: np.ndarray, *, scale: float = 1.0) -> np.ndarray:
    return (np.maximum.accumulate(x, axis=1) * scale).astype(x.dtype)


@NATIVE
def test_a_kernel_is_a_step_among_others(native: bool) -> None:
    text = """g (float[n, m] x) => (float[n, m] y) {
        t = Transpose <perm=[1, 0]> (x) a = test.own.RunningMax <scale=3.0> (t) y0 = Transpose <perm=[1, 0]> (a)
        y = Neg(y0) }"""
    for shape in ((1, 1), (5, 3), (33, 17)):
        x = normal(*shape)
        want = -3 * np.maximum.accumulate(x, axis=0)
        np.testing.assert_allclose(answers(text, x, native=native)[0], want, rtol=1e-6)


def test_a_kernel_declines_with_a_reason() -> None:
    made = session("g (double[n, m] x) => (y) { y = test.own.RunningMax(x) }")
    (placed,) = made.explain().placements
    assert placed.provider == "reference" and "only floats of 32 bits" in placed.reason
    x = normal(3, 4).astype(np.float64)
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], np.maximum.accumulate(x, axis=1))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (lambda x, y: {"x": x, "y": y, "rows": 1}, "wants number 'cols'"),
        (lambda x, y: {"x": x, "y": 3, "rows": 1, "cols": 1}, "wants memory 'y'"),
        (lambda x, y: {"x": x, "y": y, "rows": 1, "cols": 1, "more": 1}, "no such parameters"),
        (lambda x, y: {"x": x, "y": x, "rows": 1, "cols": 1}, "does not write every output"),
        (lambda x, y: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_a_kernel_with_wrong_arguments_is_refused(args: Any, message: str) -> None:
    def call(x: Any, y: Any) -> Any:
        return running_max(dtype=x.dtype, scale=1.0), args(x, y)

    text = register("BadKernel", write, kernel=call)
    with pytest.raises(InvalidGraph, match=message) as error:
        session(text)
    assert "test.own.BadKernel" in str(error.value)


# -- definitions and nodes that are refused


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda: custom_op("", "Mine"), "its own domain"),
        (lambda: custom_op("ai.onnx.ml", "Mine"), "its own domain"),
        (lambda: custom_op("com.microsoft", "Mine"), "its own domain"),
        (lambda: custom_op("test.own", "two words"), "identifier"),
        (lambda: custom_op("test.own", "Mine", types=["float31"]), "not an element type.*float31"),
        (lambda: custom_op("test.own", "Mine", kernel=launch), "states its types"),
        (lambda: custom_op("test.own", "Mine")(lambda: 0), "first parameter is the emitter"),
        (lambda: custom_op("test.own", "Mine")(lambda e, x, beta=1.0: x), "attributes keyword-only"),
        (lambda: custom_op("test.own", "Mine")(lambda e, x, **more: x), "attributes keyword-only"),
        (lambda: custom_op("test.own", "Swish2")(blend), "defined already.*swish2"),
    ],
)
def test_definitions_are_checked(define: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        define()


@custom_op("test.own", "Raises")
def raises(e: Any, x: Any, *, kind: str = "") -> Any:
    return {"div": lambda: 1 / 0, "none": lambda: 3}[kind]()


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("test.own.Swish2(x, x)", "wrong number of inputs.*expected: 1; got: 2"),
        ("test.own.Blend()", "wrong number of inputs.*expected: 1 to 2; got: 0"),
        ("test.own.Swish2 <gamma=1.0> (x)", "unknown attribute.*beta.*gamma"),
        ("test.own.Swish2 <beta=\"big\"> (x)", "'beta' is of the wrong kind.*float.*big"),
        ("test.own.Blend <weights=1.0> (x)", "'weights' is of the wrong kind.*list of float"),
        ("test.own.Within <low=1.0> (x)", "required attribute 'high'"),
        ("test.own.Raises <kind=\"div\"> (x)", "raised ZeroDivisionError"),
        ("test.own.Raises <kind=\"typo\"> (x)", "raised KeyError: 'typo'"),
        ("test.own.RunningMax(x)", r"of matrices.*f32\[n\]"),
        ("test.own.Nowhere(x)", "not a registered function or operator"),
    ],
)  # fmt: skip
def test_nodes_are_checked_when_a_model_is_loaded(node: str, message: str) -> None:
    with pytest.raises((InvalidGraph, InvalidArgument, Fail), match=message) as error:
        session(f"g (float[n] x) => (y) {{ y = {node} }}")
    assert node.partition("(")[0].partition(" ")[0] in str(error.value)


def test_types_are_checked() -> None:
    with pytest.raises(InvalidGraph, match=r"does not take input 0.*f32, i32; got: f64") as error:
        session("g (double[n] x) => (y) { y = test.own.Within <low=0.0, high=1.0> (x) }")
    assert "test.own.Within" in str(error.value)


def test_a_size_that_is_text_is_refused() -> None:
    text = register("Twice", np.ravel, infer=lambda x: TensorType(x.dtype, (x.shape[0] * 2,)))
    with pytest.raises(InvalidArgument, match=r"invalid size.*'nn'"):
        session(text)


# -- other threads, processes and caches


def test_sessions_run_in_many_threads() -> None:
    made = session("g (float[n, m] x) => (y) { a = test.own.RunningMax(x) y = test.own.Swish2(a) }")
    x = normal(40, 9)
    want, got = by_hand(np.maximum.accumulate(x, axis=1), 1), list[np.ndarray]()
    threads = [threading.Thread(target=lambda: got.extend(made.run(None, {"x": x}))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 4
    for y in got:
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


DEFINITION = """
import sardonyx
FACTOR = {factor}
@sardonyx.custom_op("test.own.file", "Scale")
def scale(e, x):
    return x * FACTOR
"""
IMPORTS = '<ir_version: 10, opset_import: ["": 21, "test.own.file": 1]>'
SCALE = (
    f"{IMPORTS} g (float[2] x) => (y) <float[2] c = {{{{1, 2}}}}> {{{{ a = test.own.file.Scale(c) y = Add(x, a) }}}}"
)
RUN = "import sys, pickle; print(pickle.load(sys.stdin.buffer).run(None, {'x': __import__('numpy').zeros(2, 'f')})[0])"


def test_files_of_operators_travel_with_pickled_options(tmp_path: Path) -> None:
    file = tmp_path / "scale_ops.py"
    file.write_text(DEFINITION.format(factor=3))
    options = sardonyx.SessionOptions()
    options.register_custom_ops_library(str(file))
    source = onnx.parser.parse_model(SCALE.format().replace("Scale(c)", "Scale(x)"))
    made = sardonyx.InferenceSession(source, options)
    np.testing.assert_array_equal(made.run(None, {"x": np.array([1, 2], "f")})[0], [4, 8])
    done = subprocess.run([sys.executable, "-c", RUN], input=pickle.dumps(made), capture_output=True, check=False)
    assert done.stdout == b"[0. 0.]\n", done.stderr.decode()


def test_modules_of_operators_are_imported_where_a_session_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scale_module.py").write_text(DEFINITION.format(factor=5).replace("Scale", "Scale5"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    __import__("scale_module")
    made = sardonyx.InferenceSession(onnx.parser.parse_model(SCALE.format().replace("Scale(c)", "Scale5(x)")))
    done = subprocess.run([sys.executable, "-c", RUN], input=pickle.dumps(made), capture_output=True, check=False)
    assert done.stdout == b"[0. 0.]\n", done.stderr.decode()


def test_a_broken_file_of_operators_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broken_ops.py"
    file.write_text("1 / 0")
    with pytest.raises(Fail, match=r"Failed to load library .*broken_ops.py with error: division by zero"):
        sardonyx.SessionOptions().register_custom_ops_library(str(file))


@pytest.mark.usefixtures("unverified")
def test_a_changed_definition_is_not_served_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(SCALE.format().replace(".file", ".cached")).SerializeToString())
    kept = []
    for factor in (2, 2, 7):
        definition = DEFINITION.format(factor=factor).replace(".file", ".cached")
        exec(definition, {"__name__": "cached_ops"})
        engine = build(path, BuildOptions())
        kept.append("optimize" not in engine.phases)
        (y,) = engine.run({"x": np.zeros(2, "f")}, ["y"], RunContext())
        np.testing.assert_array_equal(y, [factor, 2 * factor])
    assert kept == [False, True, False]


def test_a_changed_kernel_is_another_object() -> None:
    def made(factor: int) -> Any:
        @kernel(y=(dtypes.f32,))
        def constant(k: Any, y: Any) -> None:
            y.store(0, k.const(factor, dtypes.f32))

        return constant()

    assert made(1).digest == made(1).digest != made(2).digest
    for factor in (1, 2):
        y = np.zeros(1, np.float32)
        Launch(made(factor), {"y": y})()
        assert y[0] == factor
    assert jit.key(made(1), jit.current(), False) != jit.key(made(2), jit.current(), False)
