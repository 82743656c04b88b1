"""Untrusted models: every limit refuses and says so, what is forbidden is refused, ordinary models run as ever."""

from __future__ import annotations

import io
import os
import pickle
import stat
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx import limits
from sardonyx.errors import Fail, InvalidArgument, NoSuchFile, OutOfBudget, UntrustedRefusal
from sardonyx.interpret import work
from sardonyx.ir.graph import Graph, Node, Value
from tests.session.models import CHAIN, LOOP, MATMUL, MUL, OVERRIDABLE, SEQUENCE, X, model, serialized
from tests.waiting import let_threads_end

ROOT = Path(__file__).resolve().parent.parent.parent
AMPLE = ort.Limits(build_time_s=300.0, run_time_s=300.0)
"""Time that does not run out on a busy machine."""


def refused(limit: str | None, source: Any, feed: dict[str, Any] | None = None, **asked: Any) -> UntrustedRefusal:
    """The refusal of a model, in its load or its run."""
    with pytest.raises(UntrustedRefusal) as caught:
        session = ort.load_untrusted(source, limits=replace(AMPLE, **asked))
        session.run(None, feed or {})
    assert caught.value.limit == limit
    if limit is not None:
        assert f"limits.{limit}" in str(caught.value) and f"Limits({limit}=...)" in str(caught.value)
    return caught.value


def graph_of(
    nodes: list[onnx.NodeProto], x: Any = ("n",), kind: int = TensorProto.FLOAT, initializers: Any = (), **more: Any
) -> bytes:
    """A model from x to y."""
    inputs = [helper.make_tensor_value_info("x", kind, None if x is None else list(x))]
    outputs = [helper.make_tensor_value_info("y", more.pop("gives", kind), None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", 20), *more.pop("opsets", ())]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, **more).SerializeToString()


def ints(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


# -- ordinary models


@pytest.mark.parametrize("text", [MUL, MATMUL, CHAIN, OVERRIDABLE], ids=["mul", "matmul", "chain", "overridable"])
def test_small_models_give_what_trusted_ones_give(text: str) -> None:
    trusted = ort.InferenceSession(serialized(text))
    session = ort.load_untrusted(serialized(text), limits=AMPLE)
    for size in (2, 3):
        feed = {}
        for arg in trusted.get_inputs():
            shape = [d if isinstance(d, int) else size for d in arg.shape]
            feed[arg.name] = np.random.default_rng(size).standard_normal(shape).astype(np.float32)
        for got, expected in zip(session.run(None, feed), trusted.run(None, feed), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_the_demo_runs_compiled_and_gives_the_same() -> None:
    images = np.load(ROOT / "demo" / "heldout.npz")["images"][:20]
    expected = ort.InferenceSession(ROOT / "demo" / "digits.onnx").run(None, {"image": images})
    session = ort.load_untrusted(ROOT / "demo" / "digits.onnx", limits=AMPLE)
    assert set(session.explain().counts()) == {"cpu"}
    for _ in range(2):
        for got, wanted in zip(session.run(None, {"image": images}), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_sequences_and_loops_run() -> None:
    session = ort.load_untrusted(serialized(SEQUENCE), limits=AMPLE)
    made = session.run(None, {"s": [np.ones(2, np.int64)], "t": np.zeros((1, 2), np.int64)})[0]
    assert [a.shape for a in made] == [(2,), (1, 2)]
    feed = {"x": np.ones(1, np.float32), "trips": np.array(5)}
    expected = ort.InferenceSession(serialized(LOOP)).run(None, feed)[0]
    np.testing.assert_allclose(ort.load_untrusted(serialized(LOOP), limits=AMPLE).run(None, feed)[0], expected)


def test_a_part_that_cannot_be_compiled_in_time_runs_on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.providers.cpu.codegen import jit

    monkeypatch.setattr(jit, "COMPILING", -1.0)
    monkeypatch.setattr("sardonyx.providers.cpu.compile.linker", jit.Linker())
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    session = ort.load_untrusted(serialized(CHAIN), limits=AMPLE)
    assert set(session.explain().counts()) == {"reference"}
    assert "too little of an untrusted model's time" in str(session.explain())
    np.testing.assert_array_equal(session.run(None, {"x": np.float32([1, 2])})[0], [4, 12])


def test_the_option_and_the_argument_say_the_same() -> None:
    options = ort.SessionOptions()
    assert options.trust == "trusted" and options.limits == ort.Limits()
    options.trust, options.limits = "untrusted", replace(AMPLE, nodes=2)
    with pytest.raises(UntrustedRefusal, match="too many nodes"):
        ort.InferenceSession(serialized(CHAIN), options)
    with pytest.raises(UntrustedRefusal, match="too many nodes"):
        ort.InferenceSession(serialized(CHAIN), trust="untrusted", limits=replace(AMPLE, nodes=2))
    ort.InferenceSession(serialized(CHAIN), options, limits=AMPLE).run(None, {"x": np.ones(2, np.float32)})
    ort.InferenceSession(serialized(CHAIN), options, trust="trusted")
    with pytest.raises(InvalidArgument, match="unknown trust"):
        ort.InferenceSession(serialized(CHAIN), trust="maybe")
    with pytest.raises(TypeError, match="limits must be Limits"):
        options.limits = 3  # type: ignore[assignment]


def test_infinity_is_no_limit(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(serialized(MATMUL))
    endless = ort.Limits(**dict.fromkeys(ort.Limits.__dataclass_fields__, float("inf")))
    np.testing.assert_array_equal(ort.load_untrusted(path, limits=endless).run(None, {"X": X})[0], X @ [[1], [2]])


def test_limits_are_numbers() -> None:
    for wrong in (-1, "many", None, True, float("nan")):
        with pytest.raises(InvalidArgument, match="the limit nodes"):
            ort.Limits(nodes=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ort.Limits(edges=3)  # type: ignore[call-arg]


def test_refusals_are_failures_of_onnxruntime_s_kind_and_can_be_pickled() -> None:
    error = refused("nodes", serialized(CHAIN), nodes=2)
    assert isinstance(error, OutOfBudget) and isinstance(error, Fail)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is UntrustedRefusal and again.limit == "nodes" and str(again) == str(error)


def test_a_session_stays_untrusted_when_it_is_pickled() -> None:
    session = ort.load_untrusted(serialized(MATMUL), limits=AMPLE)
    again = pickle.loads(pickle.dumps(session))
    assert again.get_session_options().trust == "untrusted"
    np.testing.assert_array_equal(again.run(None, {"X": X})[0], session.run(None, {"X": X})[0])


def test_files_paths_and_protos_are_models_too(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(serialized(MATMUL))
    for source in (path, str(path), io.BytesIO(serialized(MATMUL)), model(MATMUL)):
        session = ort.load_untrusted(source, limits=AMPLE)  # type: ignore[arg-type]
        np.testing.assert_array_equal(session.run(None, {"X": X})[0], X @ [[1], [2]])


def test_a_file_that_changes_later_changes_nothing(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.arange(4000, dtype=np.float32), "w")
    path = tmp_path / "m.onnx"
    path.write_bytes(graph_of([helper.make_node("Add", ["x", "w"], ["y"])], (4000,), initializers=[weights]))
    session = ort.load_untrusted(path, limits=AMPLE)
    os.truncate(path, 10)
    feed = {"x": np.zeros(4000, np.float32)}
    np.testing.assert_array_equal(session.run(None, feed)[0], np.arange(4000, dtype=np.float32))


# -- limits of the file


def test_file_size(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(serialized(CHAIN))
    assert refused("file_nbytes", path, file_nbytes=50).got == os.path.getsize(path)
    refused("file_nbytes", serialized(CHAIN), file_nbytes=50)
    refused("file_nbytes", io.BytesIO(serialized(CHAIN)), file_nbytes=50)


def test_pipes_and_folders_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "absent"):
        with pytest.raises(NoSuchFile):
            ort.load_untrusted(path)


def test_skeleton_size() -> None:
    refused("skeleton_nbytes", graph_of([helper.make_node("Abs", ["x"], ["y"], name="n" * 5000)]), skeleton_nbytes=4000)


def test_nodes_of_subgraphs_count() -> None:
    assert refused("nodes", serialized(LOOP), nodes=2).got == 3


def test_nodes_of_functions_count_where_they_are_called() -> None:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
    twice = [helper.make_node("Abs", ["a"], ["t"]), helper.make_node("Abs", ["t"], ["b"])]
    functions = [helper.make_function("f", "F0", ["a"], ["b"], twice, opsets)]
    for i in range(1, 10):
        calls = [helper.make_node(f"F{i - 1}", [a], [b], domain="f") for a, b in (("a", "t"), ("t", "b"))]
        functions.append(helper.make_function("f", f"F{i}", ["a"], ["b"], calls, opsets))
    call = [helper.make_node("F9", ["x"], ["y"], domain="f")]
    data = graph_of(call, functions=functions, opsets=opsets[1:])
    assert "functions are inlined" in str(refused("nodes", data, nodes=1000))
    ort.load_untrusted(data, limits=AMPLE)


def test_nesting() -> None:
    assert refused("nesting", nested(4), nesting=3).got == 4
    ort.load_untrusted(nested(3), limits=replace(AMPLE, nesting=3))


def nested(depth: int) -> bytes:
    body = [helper.make_node("Abs", ["x"], ["v0"])]
    for i in range(depth):
        branch = helper.make_graph(body, "b", [], [helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, None)])
        flag = helper.make_node("Constant", [], [f"c{i}"], value=numpy_helper.from_array(np.array(True)))
        out = "y" if i == depth - 1 else f"v{i + 1}"
        body = [flag, helper.make_node("If", [f"c{i}"], [out], then_branch=branch, else_branch=branch)]
    return graph_of(body)


def test_number_and_size_of_stored_tensors() -> None:
    refused("initializers", serialized(LOOP), initializers=1)
    data = graph_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        initializers=[numpy_helper.from_array(np.zeros(1000, np.float32), "w")],
    )
    assert refused("initializer_nbytes", data, initializer_nbytes=3999).got == 4000
    ort.load_untrusted(data, limits=replace(AMPLE, initializer_nbytes=4000))


def test_a_sparse_tensor_counts_as_a_dense_one() -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [1], [5]), [100_000_000])
    proto = onnx.ModelProto.FromString(graph_of([helper.make_node("Add", ["x", "w"], ["y"])]))
    proto.graph.sparse_initializer.append(sparse)
    assert refused("initializer_nbytes", proto.SerializeToString()).got == 400_000_000


# -- memory


def test_memory_of_a_plan_is_known_before_it_is_taken() -> None:
    outer = [helper.make_node("Unsqueeze", ["x", "one"], ["a"]), helper.make_node("Add", ["a", "x"], ["y"])]
    data = graph_of(outer, initializers=[ints("one", 1)])
    refused("memory_nbytes", data, {"x": np.ones(1 << 20, np.float32)})
    ort.load_untrusted(data, limits=AMPLE).run(None, {"x": np.ones(100, np.float32)})


def test_memory_of_values_whose_size_data_tell() -> None:
    nodes = [helper.make_node("ConstantOfShape", ["x"], ["y"])]
    data = graph_of(nodes, (2,), TensorProto.INT64, gives=TensorProto.FLOAT)
    refused("memory_nbytes", data, {"x": np.array([1 << 20, 1 << 20])})
    assert ort.load_untrusted(data, limits=AMPLE).run(None, {"x": np.array([2, 3])})[0].shape == (2, 3)


def test_memory_of_values_that_live_at_once_on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", "none")
    nodes = [helper.make_node("Mul", ["x", f"k{i}"], [f"v{i}"]) for i in range(12)]
    nodes.append(helper.make_node("Sum", [f"v{i}" for i in range(12)], ["y"]))
    weights = [numpy_helper.from_array(np.float32([i]), f"k{i}") for i in range(12)]
    data, feed = graph_of(nodes, initializers=weights), {"x": np.ones(1 << 18, np.float32)}
    refused("memory_nbytes", data, feed, memory_nbytes=10 << 20)
    ort.load_untrusted(data, limits=replace(AMPLE, memory_nbytes=30 << 20)).run(None, feed)


@pytest.mark.parametrize("carried", ["Concat(s, s)", "Identity(s)"], ids=["carries", "collects"])
def test_memory_that_a_loop_keeps(carried: str) -> None:
    carried = carried.replace("Concat(", "Concat <axis = 0> (")
    text = f"""<ir_version: 8, opset_import: ["": 20]>
    grows (float[n] x, int64 trips) => (float[] y, float[] rows) <bool go = {{1}}> {{
      y, rows = Loop(trips, go, x) <body = turn (int64 i, bool c, float[] s) => (bool c2, float[] s2, float[] row) {{
        c2 = Identity(c)
        s2 = {carried}
        row = Identity(x)
      }}>
    }}"""
    feed = {"x": np.ones(1 << 12, np.float32), "trips": np.array(100_000)}
    refused("memory_nbytes", serialized(text), feed, memory_nbytes=64 << 20)


def test_memory_of_constants_that_rewrites_make() -> None:
    nodes, weights = [], [numpy_helper.from_array(np.ones((64, 64, 3, 3), np.float32), "w")]
    for i in range(8):
        norm = [f"s{i}"] * 4
        nodes.append(helper.make_node("Conv", ["x", "w"], [f"c{i}"]))
        nodes.append(helper.make_node("BatchNormalization", [f"c{i}", *norm], [f"b{i}"]))
        weights.append(numpy_helper.from_array(np.full(64, i + 1, np.float32), f"s{i}"))
    nodes.append(helper.make_node("Sum", [f"b{i}" for i in range(8)], ["y"]))
    data = graph_of(nodes, (1, 64, "h", "w"), initializers=weights)
    assert "constants made of the model" in str(refused("memory_nbytes", data, memory_nbytes=500_000))


def test_text_that_doubles() -> None:
    names = ["x", *(f"v{i}" for i in range(40)), "y"]
    nodes = [helper.make_node("StringConcat", [a, a], [b]) for a, b in pairwise(names)]
    data = graph_of(nodes, kind=TensorProto.STRING)
    refused("memory_nbytes", data, {"x": np.array(["ab"], object)}, run_time_s=1e9, memory_nbytes=1 << 20)


# -- time


def test_time_of_a_build() -> None:
    error = refused("build_time_s", serialized(CHAIN), build_time_s=0.0)
    assert "building the session takes too long" in str(error)


def test_time_of_a_long_loop() -> None:
    feed = {"x": np.ones(1, np.float32), "trips": np.array(1 << 30)}
    refused("run_time_s", serialized(LOOP), feed, run_time_s=0.2)


def test_work_of_a_product_is_known_before_it_begins() -> None:
    data = graph_of([helper.make_node("MatMul", ["x", "x"], ["y"])], ("n", "n"))
    error = refused("run_time_s", data, {"x": np.ones((3000, 3000), np.float32)}, run_time_s=0.5)
    assert "would take too long" in str(error)


@pytest.mark.parametrize("op_type", ["MatMul", "NonMaxSuppression", "TopK", "Einsum", "MaxPool", "Conv", "Cast"])
def test_numpy_s_work_is_estimated_by_shapes(op_type: str) -> None:
    small, large = (work.seconds(*_call(op_type, n)) for n in (1, 40))
    assert large > 20 * small or large > 1


def _call(op_type: str, n: int) -> tuple[Node, list[Any]]:
    x = np.ones((1, n, 50 * n), np.float32)
    args: list[Any] = [x]
    attrs: dict[str, Any] = {}
    if op_type == "MatMul":
        args = [np.ones((50 * n, 50 * n), np.float32)] * 2
    elif op_type == "NonMaxSuppression":
        args = [np.ones((1, 500 * n, 4), np.float32), np.ones((1, 1, 500 * n), np.float32), np.array([10**9])]
    elif op_type == "TopK":
        args = [np.ones(20_000 * n, np.float32), np.array([5])]
    elif op_type == "Einsum":
        args, attrs = [np.ones((10 * n, 10 * n), np.float32)] * 2, {"equation": "ab, bc -> ac"}
    elif op_type == "MaxPool":
        args, attrs = [np.ones((1, 1, 10 * n, 10 * n), np.float32)], {"kernel_shape": [5, 5]}
    elif op_type == "Conv":
        args = [np.ones((1, 8, 10 * n, 10 * n), np.float32), np.ones((8, 8, 3, 3), np.float32)]
    elif op_type == "Cast":
        attrs = {"to": 8}
    node = Node(op_type, [Value(f"x{i}") for i in range(len(args))], [Value("y")], attrs)
    Graph().append(node)
    return node, args


def test_a_regular_expression_ends_with_the_run() -> None:
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern="(a|b|ab)*c")
    data = graph_of([node], kind=TensorProto.STRING, gives=TensorProto.BOOL)
    feed = {"x": np.array(["ab" * 100_000] * 100, object)}
    refused("run_time_s", data, feed, run_time_s=0.5)
    assert not ort.load_untrusted(data, limits=AMPLE).run(None, {"x": np.array(["ab"], object)})[0].any()


# -- what is forbidden


def test_external_data(tmp_path: Path) -> None:
    proto = onnx.ModelProto.FromString(
        graph_of(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            initializers=[numpy_helper.from_array(np.zeros(1000, np.float32), "w")],
        )
    )
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    ort.InferenceSession(tmp_path / "m.onnx")
    error = refused(None, tmp_path / "m.onnx")
    assert "keep data in other files" in str(error) and "w.bin" in str(error)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    with pytest.raises(UntrustedRefusal, match="external data"):
        ort.load_untrusted(serialized(MUL), options, limits=AMPLE)


def test_operators_that_a_user_has_defined() -> None:
    @ort.custom_op("untrusted.test", "Twice")
    def twice(e: Any, x: Any) -> Any:
        return x + x

    node = helper.make_node("Twice", ["x"], ["y"], domain="untrusted.test")
    data = graph_of([node], opsets=[helper.make_opsetid("untrusted.test", 1)])
    np.testing.assert_array_equal(ort.InferenceSession(data).run(None, {"x": np.ones(2, np.float32)})[0], [2, 2])
    assert "custom operators" in str(refused(None, data))


def test_images_are_not_decoded() -> None:
    node = helper.make_node("ImageDecoder", ["x"], ["y"])
    error = refused(None, graph_of([node], kind=TensorProto.UINT8))
    assert "ImageDecoder" in str(error) and "pixels" in str(error)


def test_options_out_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model(MUL)
    config = '{"session_options": {"enable_profiling": 1}}'
    helper.set_model_props(proto, {"ort_config": config})
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    session = ort.load_untrusted(proto.SerializeToString(), limits=AMPLE)
    assert not session.get_session_options().enable_profiling
    with pytest.raises(UntrustedRefusal, match="set the options of its session"):
        ort.load_untrusted(proto.SerializeToString(), read_config_from_model=1)


def test_saving_and_other_providers(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "out.onnx")
    with pytest.raises(UntrustedRefusal, match="be saved"):
        ort.load_untrusted(serialized(MUL), options, limits=AMPLE)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("unverified")
def test_no_cache_is_read_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "m.onnx"
    path.write_bytes(serialized(CHAIN))
    ort.load_untrusted(path, limits=AMPLE).run(None, {"x": np.ones(3, np.float32)})
    assert not (tmp_path / "cache").exists()
    ort.InferenceSession(path).run(None, {"x": np.ones(3, np.float32)})
    let_threads_end()
    before = sorted((tmp_path / "cache").rglob("*"))
    assert before
    other = tmp_path / "other.onnx"
    other.write_bytes(serialized(MATMUL))
    ort.load_untrusted(other, limits=AMPLE).run(None, {"X": np.ones((3, 2), np.float32)})
    let_threads_end()
    assert sorted((tmp_path / "cache").rglob("*")) == before


def test_a_process_of_untrusted_sessions_writes_no_kernels(tmp_path: Path) -> None:
    program = (
        "import sys, numpy as np, sardonyx\n"
        "limits = sardonyx.Limits(build_time_s=300.0, run_time_s=300.0)\n"
        "session = sardonyx.load_untrusted(sys.argv[1], limits=limits)\n"
        "session.run(None, {'x': np.ones(3, np.float32)})\n"
        "assert set(session.explain().counts()) == {'cpu'}\n"
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(serialized(CHAIN))
    env = {**os.environ, "SARDONYX_CACHE": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=300, env=env)
    assert not (tmp_path / "cache").exists()


def test_the_session_underneath_keeps_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.session.native import NativeSession

    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    proto = model(CHAIN)
    helper.set_model_props(proto, {"ort_config": '{"session_options": {"enable_profiling": 1}}'})
    onnx.save(proto, tmp_path / "m.onnx")
    options = ort.SessionOptions()
    options.trust, options.limits = "untrusted", AMPLE
    session = NativeSession(options, str(tmp_path / "m.onnx"), True, True)
    session.initialize_session([], [])
    assert not session.session_options.enable_profiling
    assert session.run(None, {"x": np.ones(1, np.float32)})[0] == [4]
    assert not (tmp_path / "cache").exists()


def test_a_compiler_writes_no_untrusted_model(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.trust = "untrusted"
    with pytest.raises(UntrustedRefusal, match="be saved"):
        ort.ModelCompiler(options, serialized(MUL)).compile_to_file(str(tmp_path / "out.onnx"))


def test_training_information() -> None:
    proto = model(MUL)
    proto.training_info.add().algorithm.name = "a"
    assert "training" in str(refused(None, proto.SerializeToString()))


# -- the budget


def test_nothing_is_in_force_outside_of_a_build_or_a_run() -> None:
    ort.load_untrusted(serialized(MUL), limits=AMPLE).run(None, {"X": X})
    assert limits.current() is None
    refused("build_time_s", serialized(CHAIN), build_time_s=0.0)
    assert limits.current() is None
    limits.check_time()


def test_a_budget_inside_of_another_ends_with_it() -> None:
    with limits.in_force(limits.Budget(ort.Limits(run_time_s=1.0), time_limit="run_time_s")) as outer:
        outer.hold(100, "")
        inner = limits.Budget(AMPLE, time_limit="build_time_s")
        assert inner.deadline == outer.deadline and inner.held_nbytes == 100


# -- what the documents say


def test_the_document_lists_every_limit_with_its_default() -> None:
    text = (ROOT / "docs" / "untrusted-models.md").read_text(encoding="utf-8")
    for name in ort.Limits.__dataclass_fields__:
        assert f"| `{name}` | {getattr(ort.Limits(), name)} |" in text, name


def test_constants_of_the_build_count_in_runs() -> None:
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["a"]), helper.make_node("Cos", ["a"], ["b"])]
    nodes.append(helper.make_node("Add", ["b", "x"], ["y"]))
    data = graph_of(nodes, (1,), initializers=[ints("s", 1 << 18)])
    session = ort.load_untrusted(data, limits=AMPLE)
    assert session._sess.engine._held_nbytes >= 4 << 18
    session.run(None, {"x": np.ones(1, np.float32)})
