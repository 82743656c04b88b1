"""Engines kept between starts: the same answers without the model, and everything else as if they had been built."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx import entries, writing
from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.program import constants
from sardonyx.providers.cpu.runtime import deferred
from sardonyx.session import cache_key, cache_writer, compiled_cache, part_entries
from sardonyx.session.compiled_cache import CachedEngine

pytestmark = pytest.mark.usefixtures("unverified")

TEXT = """
<ir_version: 10, opset_import: ["": 21], producer_name: "us", metadata_props: ["colour": "red"]>
g (float[batch, 8] x, int64[2] i) => (float[batch, 4] y, float[2, 4] z)
<float[8, 4] w, float[4] c = {1.0, 2.0, 3.0, 4.0}>
{
    p = MatMul(x, w)
    y = Add(p, c)
    z = Gather(w, i)
}
"""


def write(path: Path, seed: int = 0) -> None:
    model = onnx.parser.parse_model(TEXT)
    w = np.random.default_rng(seed).standard_normal((8, 4)).astype("f")
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    path.write_bytes(model.SerializeToString())


def feed(batch: int = 3, second: int = 5) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((batch, 8)).astype("f"), "i": np.array([0, second])}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path, folder: Path) -> Path:
    write(tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def written(folder: Path) -> Path:
    """The folder, after entries that are written in the background."""
    cache_writer.wait()
    return folder


def was_kept(session: sx.InferenceSession) -> bool:
    return isinstance(session._sess.engine, CachedEngine)


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


def test_a_second_start_answers_the_same(model: Path) -> None:
    first, second = sx.InferenceSession(model), sx.InferenceSession(model)
    assert not was_kept(first) and was_kept(second)
    for batch in (0, 1, 3, 17):
        assert same(first.run(None, feed(batch)), second.run(None, feed(batch)))
    assert first.get_inputs() == second.get_inputs() and first.get_outputs() == second.get_outputs()
    assert first.get_modelmeta() == second.get_modelmeta()
    assert str(first.explain()).split("seconds")[0] == str(second.explain()).split("seconds")[0]


def test_a_warm_start_loads_no_more_than_it_needs(model: Path) -> None:
    program = (
        "import sys, numpy as np, sardonyx as sx\n"
        f"s = sx.InferenceSession({str(model)!r})\n"
        "print(s.run(['z'], {'x': np.ones((2, 8), 'f'), 'i': np.array([1, 2])})[0].shape)\n"
        "heavy = 'onnx', 'llvmlite.binding', 'llvmlite.ir', 'sardonyx.lower', 'logging', 'concurrent.futures'\n"
        "profiling = 'sardonyx.session.trace', 'sardonyx.session.trace_events', 'sardonyx.interpret.profile'\n"
        "print([m for m in (*heavy, *profiling) if m in sys.modules])"
    )
    told = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout for _ in range(2)]
    assert told[0].startswith("(2, 4)\n['onnx'") and told[1] == "(2, 4)\n[]\n"


def test_a_warm_start_imports_few_modules(model: Path) -> None:
    program = (
        "import sys, sardonyx as sx\n"
        "options, session, before = sx.SessionOptions(), sx.InferenceSession, set(sys.modules)\n"
        f"session({str(model)!r}, options)\n"
        "print([m for m in sys.modules if m.startswith('sardonyx') and m not in before])"
    )
    told = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout for _ in range(2)]
    assert "sardonyx.lower" in told[0] and told[1] == "[]\n"


MAPS = """
<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 5]>
g (float[n, 3] x) => (int64[n] label, maps, float[n, 3] again)
{
    scores = Softmax(x)
    label = ArgMax<axis = 1, keepdims = 0>(scores)
    maps = ai.onnx.ml.ZipMap<classlabels_strings = ["a", "b", "c"]>(scores)
    again = Identity(x)
}
"""


def maps() -> onnx.ModelProto:
    """Two parts: one is compiled, one makes maps; and an input that is an output."""
    model = onnx.parser.parse_model(MAPS.replace("maps, float", "float[1] maps, float"))
    of = onnx.helper.make_map_type_proto(onnx.TensorProto.STRING, onnx.helper.make_tensor_type_proto(1, []))
    model.graph.output[1].type.CopyFrom(onnx.helper.make_sequence_type_proto(of))
    return model


PROGRAM = """
<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 5]>
g (float[n] x, int64 i) => (float[n] y)
<float[2] c = {5.0, 6.0}>
{
    e = Exp(x)
    s = SequenceConstruct(e, x)
    t = SequenceInsert(s, c)
    y = SequenceAt(t, i)
}
"""
SUPPRESSION = """
<ir_version: 10, opset_import: ["": 21]>
g (float[1, n, 4] boxes, float[1, 1, n] scores, int64[1] most, float[1] iou, float[1] least) => (float[k, 4] kept)
<int64[2] from = {0, 2}, int64[1] flat = {-1}>
{
    grown = Exp(scores)
    chosen = NonMaxSuppression(boxes, grown, most, iou, least)
    two = Constant<value = int64 {2}>()
    which = Gather<axis = 1>(chosen, two)
    row = Reshape(which, flat)
    all = Squeeze(boxes, zero)
    kept = Gather<axis = 0>(all, row)
}
""".replace("<int64[2] from = {0, 2}, ", "<int64[1] zero = {0}, ")


def boxes(most: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    corners = rng.random((1, 20, 2), "f")
    return {
        "boxes": np.concatenate([corners, corners + 0.4], axis=-1).astype("f"),
        "scores": rng.random((1, 1, 20), "f"),
        "most": np.array([most]),
        "iou": np.array([0.5], "f"),
        "least": np.array([1.1], "f"),
    }


BRANCHES = """
<ir_version: 10, opset_import: ["": 21]>
g (float[n, 4] x, bool p) => (float[k, 4] y, float[2] z, float[j] w)
<float zero = {0.0}, int64[1] flat = {-1}, float[2] c = {3.0, 4.0}, int64 trips = {3}>
{
    y, z = If(p) <
        then_branch = t () => (a, c) {
            m = Abs(x) e = Exp(m) s = ReduceSum<keepdims = 0>(x, flat) q = Greater(s, zero) r = Compress<axis = 0>(e, q)
            a = Mul(r, r) },
        else_branch = f () => (b, d) {
            s2 = ReduceMax<keepdims = 0>(x, flat) q2 = Greater(s2, zero) b = Compress<axis = 0>(x, q2)
            d = Neg(c) }>
    rows = ReduceSum<keepdims = 0>(x, flat)
    w = Loop(trips, , rows) <body = l (int64 t0, bool c0, float[r0] s0) => (bool d0, float[r1] s1) {
        d0 = Constant<value = bool {1}>() e0 = Exp(s0) f0 = Tanh(e0) g0 = Neg(f0) s1 = Concat<axis = 0>(s0, g0) }>
}
"""


def branches() -> onnx.ModelProto:
    """Branches whose sizes depend on the data, one of a constant; and a state that grows: bodies that Python calls."""
    return onnx.parser.parse_model(BRANCHES)


PARTS = {
    "maps": (maps(), {"x": np.random.default_rng(2).standard_normal((5, 3)).astype("f")}),
    "program": (onnx.parser.parse_model(PROGRAM), {"x": np.linspace(-1, 1, 7, dtype="f"), "i": np.array(2)}),
    "pieces": (onnx.parser.parse_model(SUPPRESSION), boxes()),
    "branch": (branches(), {"x": np.linspace(-1, 1, 20, dtype="f").reshape(5, 4), "p": np.array(True)}),
    "other branch": (branches(), {"x": np.linspace(-1, 1, 20, dtype="f").reshape(5, 4), "p": np.array(False)}),
}
OPERATORS = {
    "maps": "ZipMap", "program": "SequenceAt", "pieces": "NonMaxSuppression", "branch": "Compress",
    "other branch": "Compress",
}  # fmt: skip
SECOND = (
    "import sys, pickle, sardonyx as sx\n"
    "path, feeds = pickle.load(sys.stdin.buffer)\n"
    "s = sx.InferenceSession(path)\n"
    "results = [s.run(None, f) for f in feeds]\n"
    "loaded = [m for m in ('onnx', 'llvmlite.binding', 'sardonyx.lower', 'sardonyx.model') if m in sys.modules]\n"
    "sys.stdout.buffer.write(pickle.dumps((results, loaded)))"
)


def in_a_process(path: Path, *feeds: Any) -> tuple[list[list[Any]], list[str]]:
    """Results of a new process, and what heavy modules it has loaded."""
    given = pickle.dumps((str(path), feeds))
    return pickle.loads(subprocess.run([sys.executable, "-c", SECOND], input=given, stdout=subprocess.PIPE).stdout)


@pytest.mark.parametrize("name", PARTS)
def test_models_of_several_parts_are_cached(name: str, tmp_path: Path, folder: Path) -> None:
    model, given = PARTS[name]
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    (expected,), loaded = in_a_process(path, given)
    assert "onnx" in loaded
    results, loaded = in_a_process(path, given, given, given)
    assert all(equal(r, expected) for r in results) and loaded == []
    session, built = sx.InferenceSession(path), sx.InferenceSession(model.SerializeToString())
    assert was_kept(session) and equal(session.run(None, given), built.run(None, given))
    assert session.get_inputs() == built.get_inputs() and session.get_outputs() == built.get_outputs()
    assert set(session.explain().counts()) == set(built.explain().counts())


def equal(a: Any, b: Any) -> bool:
    """Whether two results are the same, maps and sequences included."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def kept_of(name: str, tmp_path: Path) -> tuple[Path, dict[str, Any], sx.InferenceSession, sx.InferenceSession]:
    """A model of several parts, a feed, the session that was built for it, and one that was kept."""
    model, given = PARTS[name]
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    built = sx.InferenceSession(path)
    session = sx.InferenceSession(path)
    assert was_kept(session) and not was_kept(built)
    return path, given, built, session


def test_specializations_are_cached_when_they_are_compiled(tmp_path: Path, folder: Path) -> None:
    path, _, built, _ = kept_of("pieces", tmp_path)
    feeds = [boxes(most) for most in (1, 2, 5, 2)]
    expected = [built.run(None, given) for given in feeds]
    linker._addresses.clear()
    for _ in range(2):
        results, loaded = in_a_process(path, *feeds)
        assert equal(results, expected)
    assert loaded == [] and [len(r[0]) for r in results] == [1, 2, 5, 2]


def test_the_cache_is_the_one_of_when_the_session_was_made(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for what threads in the background and later runs compile."""
    model, _ = PARTS["pieces"]
    path, feeds = tmp_path / "pieces.onnx", [boxes(most) for most in (1, 2, 5, 2)]
    path.write_bytes(model.SerializeToString())
    linker._addresses.clear()
    session = sx.InferenceSession(path)
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "other"))
    expected = [session.run(None, given) for given in feeds]
    written(folder)
    assert not (tmp_path / "other").exists()
    monkeypatch.setenv("SARDONYX_CACHE", str(folder))
    results, loaded = in_a_process(path, *feeds)
    assert equal(results, expected) and "onnx" not in loaded
    cached = sx.InferenceSession(path)
    assert was_kept(cached)
    for kernel in (folder / "kernels").glob("*.o"):
        kernel.unlink()
    linker._addresses.clear()
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "other"))
    assert equal([cached.run(None, given) for given in feeds], expected)
    cached.explain()
    written(folder)
    assert not (tmp_path / "other").exists() and any((folder / "kernels").glob("*.o"))


SQUEEZED = """
<ir_version: 10, opset_import: ["": 21]>
g (float[m, n] x) => (float[?] y)
<int64[1] one = {1}>
{
    sh = Shape<start = 1>(x)
    c = Equal(sh, one)
    s = If(c) <then_branch = t () => (p) { p = Squeeze(x, one) }, else_branch = e () => (q) { q = Neg(x) }>
    y = Exp(s)
}
"""


def test_what_sizes_outside_of_guards_need_is_cached(tmp_path: Path, folder: Path) -> None:
    model = onnx.parser.parse_model(SQUEEZED)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    path = tmp_path / "guarded.onnx"
    path.write_bytes(model.SerializeToString())
    feeds = [{"x": np.linspace(-1, 1, 6, dtype="f").reshape(shape)} for shape in ((6, 1), (3, 2), (2, 3), (3, 2))]
    expected, _ = in_a_process(path, *feeds)
    assert [r[0].shape for r in expected] == [(6,), (3, 2), (2, 3), (3, 2)]
    results, loaded = in_a_process(path, *feeds)
    assert equal(results, expected)
    results, loaded = in_a_process(path, *feeds)
    assert equal(results, expected) and loaded == []


def test_runs_that_a_cached_specialization_cannot_do_use_the_model(tmp_path: Path, folder: Path) -> None:
    path, given, built, session = kept_of("pieces", tmp_path)
    expected = built.run(None, given)
    assert equal(session.run(None, given), expected)
    options = sx.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    profiled = sx.InferenceSession(path, options)
    assert equal(profiled.run(None, given), expected)
    assert "NonMaxSuppression" in Path(profiled.end_profiling()).read_text()
    for kept in written(folder).glob("*.start"):
        if "-" not in kept.name:
            kept.unlink()
    again = sx.InferenceSession(path)
    assert not was_kept(again) and equal(again.run(None, given), expected)


def test_specializations_that_cannot_be_cached_use_the_model(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_entries.SpecializationEntries, "write", lambda *_: None)
    _, given, built, session = kept_of("pieces", tmp_path)
    for _ in range(compiled_cache.MAX_MODEL_RUNS + 2):
        assert equal(session.run(None, given), built.run(None, given))
    assert not list(written(folder).glob("*-*.start"))


def test_specializations_of_one_entry_replace_each_other(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (deferred, part_entries):
        monkeypatch.setattr(module, "MAX_SPECIALIZATIONS", 1)
    path, *_ = kept_of("pieces", tmp_path)
    for most in (1, 2, 2, 1, 3):
        session = sx.InferenceSession(path)
        assert was_kept(session) and len(session.run(None, boxes(most))[0]) == most
    assert len(list(written(folder).glob("*.start"))) == 2


STEPS = """
<ir_version: 10, opset_import: ["": 21]>
g (float[1, n] x, int64 trips) => (float[1, n] y)
<int64[1] one = {1}, int64[1] axis = {1}, int64[1] flat = {1}, bool going = {1}>
{
    y = Loop(trips, going, x) <body = b (int64 i, bool c, float[1, n] s) => (bool d, float[1, n] t) {
        d = Constant<value = bool {1}>() from = Reshape(i, flat) to = Add(from, one)
        row = Slice(s, from, to, axis) t = Add(s, row) }>
}
"""


@pytest.mark.parametrize("most", [32, 2])
def test_bodies_that_each_trip_specializes(
    most: int, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trip has an entry; if there are too few, others run on numpy, and no run loads the model. At both starts the
    session tells that they did.
    """
    for module in (deferred, part_entries):
        monkeypatch.setattr(module, "MAX_SPECIALIZATIONS", most)
    path = tmp_path / "steps.onnx"
    path.write_bytes(onnx.parser.parse_model(STEPS).SerializeToString())
    given = {"x": np.arange(20, dtype="f").reshape(1, 20), "trips": np.array(18)}
    expected = given["x"].copy()
    for i in range(18):
        expected = expected + expected[:, i : i + 1]
    for is_second in (False, True):
        session = sx.InferenceSession(path)
        assert was_kept(session) == is_second
        np.testing.assert_array_equal(session.run(None, given)[0], expected)
        if is_second:
            assert session._sess.engine._built.engine is None  # type: ignore[attr-defined]
            assert len(list(written(folder).glob("*-*.start"))) == min(most, 18)
        assert any(p.on_numpy for p in session.explain().placements) is (most < 18)


def test_errors_of_any_part_have_their_words(tmp_path: Path, folder: Path) -> None:
    _, given, *sessions = kept_of("program", tmp_path)
    messages = []
    for session in sessions:
        with pytest.raises(SardonyxError) as error:
            session.run(None, {**given, "i": np.array(9)})
        messages.append(str(error.value))
    assert messages[0] == messages[1] and "SequenceAt" in messages[0]


@pytest.mark.parametrize("name", PARTS)
def test_profiles_name_the_nodes_of_all_parts(name: str, tmp_path: Path, folder: Path) -> None:
    path, given, built, _ = kept_of(name, tmp_path)
    options = sx.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    session = sx.InferenceSession(path, options)
    assert was_kept(session) and equal(session.run(None, given), built.run(None, given))
    trace = Path(session.end_profiling()).read_text()
    assert OPERATORS[name] in trace


def test_errors_are_those_of_the_model(model: Path) -> None:
    sessions = sx.InferenceSession(model), sx.InferenceSession(model)
    assert was_kept(sessions[1])
    messages = []
    for session in sessions:
        with pytest.raises(InvalidArgument) as error:
            session.run(None, feed(second=8))
        messages.append(str(error.value))
    assert messages[0] == messages[1] and "Gather" in messages[0]
    assert same(sessions[0].run(None, feed()), sessions[1].run(None, feed()))


def test_the_model_may_be_deleted_after_the_start(model: Path) -> None:
    sx.InferenceSession(model)
    session = sx.InferenceSession(model)
    before = session.run(None, feed())
    model.unlink()
    assert "MatMul" in str(session.explain()) or "Gemm" in str(session.explain())
    with pytest.raises(InvalidArgument):
        session.run(None, feed(second=8))
    assert same(session.run(None, feed()), before)


def test_inputs_that_nobody_reads_and_initializers_that_may_be_fed(tmp_path: Path, folder: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    g (float[n] unread, float[n] x, float[1] c) => (float[n] b, float[n] a)
    <float[1] c = {3.0}>
    {
        a = Mul(x, c)
        b = Exp(a)
    }
    """
    path = tmp_path / "wired.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    sessions = sx.InferenceSession(path), sx.InferenceSession(path)
    assert [was_kept(s) for s in sessions] == [False, True]
    x = np.linspace(-1, 1, 11, dtype="f")
    for fed in ({}, {"c": np.array([2], "f")}):
        given = {"unread": x, "x": x, **fed}
        first, second = (s.run(None, given) for s in sessions)
        assert same(first, second)
        np.testing.assert_array_equal(second[1], x * fed.get("c", 3))
    for ask in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        assert getattr(sessions[0], ask)() == getattr(sessions[1], ask)()


def test_profiles_name_the_nodes(model: Path, tmp_path: Path) -> None:
    sx.InferenceSession(model)
    options = sx.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    session = sx.InferenceSession(model, options)
    session.run(None, feed())
    assert "Gather" in Path(session.end_profiling()).read_text()


def test_another_model_of_the_same_name_is_another_start(model: Path) -> None:
    first = sx.InferenceSession(model).run(["y"], feed())[0]
    write(model, seed=1)
    session = sx.InferenceSession(model)
    assert not was_kept(session) and not np.array_equal(session.run(["y"], feed())[0], first)


def test_other_options_are_other_starts(model: Path) -> None:
    sx.InferenceSession(model)
    options = sx.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = sx.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert not was_kept(sx.InferenceSession(model, options)) and was_kept(sx.InferenceSession(model, options))


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def c_of_model() -> bytes:
    return np.array([1, 2, 3, 4], "f").tobytes()


@pytest.mark.parametrize(
    "damage", ["cut", "changed", "length changed", "array changed", "another form", "objects gone", "empty"]
)
def test_damaged_entries_are_rebuilt(model: Path, folder: Path, damage: str) -> None:
    linker._addresses.clear()
    expected = sx.InferenceSession(model).run(None, feed())
    (kept,) = written(folder).glob("*.start")
    content = kept.read_bytes()
    if damage == "objects gone":
        for path in (written(folder) / "kernels").iterdir():
            path.unlink()
        linker._addresses.clear()
    else:
        told = len(entries.MARK) + 16 + 32
        at = {
            "changed": told + 9,
            "length changed": len(entries.MARK) + 7,
            "array changed": content.rindex(c_of_model()),
            "another form": len(entries.MARK) - 1,
        }
        cut = {"cut": content[:-100], "empty": b""}
        constants._packed.clear()
        kept.write_bytes(cut[damage] if damage in cut else flipped(content, at[damage]))
    session = sx.InferenceSession(model)
    assert not was_kept(session) and same(session.run(None, feed()), expected)
    assert was_kept(sx.InferenceSession(model))


def test_another_version_of_ours_is_another_start(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sx.InferenceSession(model)
    monkeypatch.setattr(cache_key, "versions", lambda: "others")
    assert not was_kept(sx.InferenceSession(model)) and was_kept(sx.InferenceSession(model))


def with_external_data(model: Path) -> Path:
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="weights", size_threshold=0)
    settle()
    return model.with_name("weights")


def settle() -> None:
    """Let file times differ from those of what is written next."""
    time.sleep(2e-9 * cache_key.SETTLED_NS)


def test_models_with_external_data_are_cached(model: Path) -> None:
    weights = with_external_data(model)
    first, second = sx.InferenceSession(model), sx.InferenceSession(model)
    assert not was_kept(first) and was_kept(second) and same(first.run(None, feed()), second.run(None, feed()))
    assert "Gather" in str(second.explain())
    content = bytearray(weights.read_bytes())
    content[-4:] = np.array([77], "f").tobytes()
    weights.write_bytes(content)
    settle()
    third = sx.InferenceSession(model)
    assert not was_kept(third) and not same(third.run(None, feed()), first.run(None, feed()))
    assert was_kept(sx.InferenceSession(model))


@pytest.mark.parametrize("how", ["missing", "link", "too short"])
def test_external_data_that_is_refused_is_refused_at_a_warm_start(model: Path, tmp_path: Path, how: str) -> None:
    weights = with_external_data(model)
    sx.InferenceSession(model)
    cache_writer.wait()
    content = weights.read_bytes()
    weights.unlink()
    if how == "link":
        (tmp_path.parent / "outside").write_bytes(content)
        weights.symlink_to(tmp_path.parent / "outside")
    elif how == "too short":
        weights.write_bytes(content[:-8])
    with pytest.raises(SardonyxError):
        sx.InferenceSession(model)


def test_models_in_memory_are_cached_by_content(model: Path) -> None:
    content = model.read_bytes()
    first, second = sx.InferenceSession(content), sx.InferenceSession(bytes(bytearray(content)))
    assert not was_kept(first) and was_kept(second) and same(first.run(None, feed()), second.run(None, feed()))
    assert "Gather" in str(second.explain())
    write(model, seed=5)
    third = sx.InferenceSession(model.read_bytes())
    assert not was_kept(third) and not same(third.run(None, feed()), first.run(None, feed()))


def test_a_session_option_turns_the_cache_off(model: Path, folder: Path) -> None:
    options = sx.SessionOptions()
    options.add_session_config_entry("session.cache", "0")
    assert not any(was_kept(sx.InferenceSession(model, options)) for _ in range(2))
    assert not list(written(folder).glob("*.start")) and not list(folder.glob("*.graph"))


def test_a_model_that_changes_in_the_same_tick_of_the_clock(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "model.onnx"
    results = []
    for seed in range(4):
        write(path, seed)
        results.append(sx.InferenceSession(path).run(["y"], feed())[0])
        os.utime(path, ns=(1, 1))
    assert len({r.tobytes() for r in results}) == 4


TWICE = """
<ir_version: 10, opset_import: ["": 21, "test.starts": 1]>
g (float[n] x) => (float[n] y) { y = test.starts.Twice(x) }
"""


@pytest.mark.parametrize("is_scalar", [True, False])
def test_models_with_custom_operators_are_cached(tmp_path: Path, folder: Path, is_scalar: bool) -> None:
    path = tmp_path / "custom.onnx"
    path.write_bytes(onnx.parser.parse_model(TWICE).SerializeToString())

    def define(factor: int) -> None:
        if is_scalar:
            sx.custom_op("test.starts", "Twice")(lambda e, x: x * factor)
        else:
            sx.custom_op("test.starts", "Twice", infer=lambda x: x)(lambda x: x * factor)

    for factor, is_kept in ((2, False), (2, True), (3, False), (3, True)):
        define(factor)
        session = sx.InferenceSession(path)
        cache_writer.wait()
        assert was_kept(session) == is_kept
        np.testing.assert_array_equal(session.run(None, {"x": np.ones(3, "f")})[0], [factor] * 3)


def test_models_with_random_numbers_are_cached(tmp_path: Path, folder: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    g (float[n] x) => (float[n] y, float[n] z) { y = RandomNormalLike(x) z = RandomNormalLike<seed = 5.0>(x) }
    """
    path = tmp_path / "random.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    given = {"x": np.zeros(9, "f")}
    sessions = [sx.InferenceSession(path) for _ in range(3)]
    assert [was_kept(s) for s in sessions] == [False, True, True]
    seeded = [[session.run(["z"], given)[0] for _ in range(2)] for session in sessions]
    assert same(seeded[0], seeded[1]) and same(seeded[0], seeded[2])
    assert not np.array_equal(*seeded[1])
    drawn = [session.run(["y"], given)[0].tobytes() for session in sessions for _ in range(2)]
    assert len(set(drawn)) == 6
    for session in sessions:
        sx.set_seed(3)
        again = session.run(["y"], given)
        sx.set_seed(3)
        assert same(again, session.run(["y"], given))


def test_a_full_disk_only_disables_caching(model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "write_in", full)
    for _ in range(2):
        session = sx.InferenceSession(model)
        assert not was_kept(session) and len(session.run(None, feed())) == 2


def test_an_unwritable_folder_only_disables_caching(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        assert len(sx.InferenceSession(model).run(None, feed())) == 2


def test_many_sessions_start_at_once(model: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(lambda _: sx.InferenceSession(model), range(8)))
        results = list(pool.map(lambda s: s.run(None, feed()), sessions))
    assert was_kept(sx.InferenceSession(model)) and all(same(r, results[0]) for r in results)


def test_many_processes_start_at_once(model: Path, folder: Path) -> None:
    program = (
        "import numpy as np, sardonyx as sx\n"
        f"s = sx.InferenceSession({str(model)!r})\n"
        "print(s.run(['y'], {'x': np.ones((2, 8), 'f'), 'i': np.array([1, 2])})[0].tobytes().hex())"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ})
        for _ in range(3)
    ]
    assert len({process.communicate()[0] for process in started}) == 1
    assert was_kept(sx.InferenceSession(model)) and len(list(written(folder).glob("*.start"))) == 1


def test_starts_share_weights(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "wide.onnx"
    model = onnx.parser.parse_model(TEXT.replace("[8, 4]", "[8, 4096]").replace("batch, 4]", "batch, 4096]"))
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(4096, "f"), "c"))
    model.graph.output[1].type.tensor_type.shape.dim[1].dim_value = 4096
    w = np.random.default_rng(0).standard_normal((8, 4096)).astype("f")
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    path.write_bytes(model.SerializeToString())
    places = []
    sessions = [sx.InferenceSession(path) for _ in range(3)]
    for session in sessions:
        found = session._sess.engine.planned.constants  # type: ignore[union-attr]
        places.append([a.ctypes.data for a in found if a.nbytes > 1 << 16])
    assert places[0] and places[0] == places[1] == places[2] and was_kept(sessions[2])


def test_sources_that_are_no_files_fail_as_ever(tmp_path: Path, folder: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "pipe", tmp_path, tmp_path / "nothing", "a\0b"):
        with pytest.raises(SardonyxError):
            sx.InferenceSession(source)
