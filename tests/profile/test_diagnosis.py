"""Planted problems are found, each from what can be counted; healthy models have none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx.bench.machine import Usage
from sardonyx.profile import Diagnosis, Profile, diagnose, diagnosis, read_trace
from sardonyx.profile.environment import Environment, environment
from sardonyx.profile.findings import Fix
from sardonyx.profile.rules import placement
from sardonyx.providers.cpu.machine import isa
from tests.profile import planted
from tests.profile.planted import Feeds

QUIET = Environment(cpus=4, total_cpus=4)
Planted = Callable[[], tuple[bytes, Feeds]]


def diagnosed(made: tuple[bytes, Feeds], surroundings: Environment = QUIET, **asked: Any) -> Diagnosis:
    model, feeds = made
    return diagnose(model, feeds, surroundings=surroundings, runs=2, **asked)


def only(found: Diagnosis, code: str) -> Any:
    """The finding of this code, which must be the only problem."""
    assert [f.code for f in found.problems] == [code], str(found)
    return found.problems[0]


def threads(count: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = count
    return options


def traced(made: tuple[bytes, Feeds], feeds: list[Feeds], folder: Path, options: Any = None) -> Profile:
    """The profile of a program that runs these feeds, one after another."""
    options = options or ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "trace")
    session = ort.InferenceSession(made[0], options)
    for feed in feeds:
        session.run(None, feed)
    return read_trace(session.end_profiling())


@pytest.mark.parametrize("healthy", [planted.convnet, planted.transformer, planted.perceptron, planted.classifier])
def test_healthy_models_have_no_problem(healthy: Planted) -> None:
    assert diagnosed(healthy()).problems == ()


def test_a_trained_model_has_no_problem(demo_dir: Path) -> None:
    images = np.load(demo_dir / "heldout.npz")["images"]
    found = diagnose(str(demo_dir / "digits.onnx"), {"image": images}, surroundings=QUIET, runs=2)
    assert found.problems == () and str(found.profile).startswith(str(demo_dir))


def test_a_fallback_in_the_middle() -> None:
    finding = only(diagnosed(planted.fallback()), "fallback")
    assert finding.evidence["nodes_on_numpy"] == 1 and finding.evidence["compiled_parts"] == 2
    assert finding.nodes == ("c",) and "DeformConv" in finding.title and "not compiled" in finding.why


def test_nodes_on_numpy_inside_a_compiled_part(tmp_path: Path) -> None:
    model, feeds = planted.slices()
    profile = traced((model, {}), feeds, tmp_path)
    numpy_s = sum(n.seconds for n in profile.nodes if n.engine == "reference")
    nodes = tuple(replace(n, seconds=0.5 * profile.seconds) if n.engine == "reference" else n for n in profile.nodes)
    finding = only(diagnose(model, profile=replace(profile, nodes=nodes), surroundings=QUIET), "numpy-inside")
    assert numpy_s > 0 and finding.nodes == ("t",) and "Slice 1" in finding.title
    assert finding.evidence["nodes_on_numpy"] == 1 and finding.cost == pytest.approx(0.5)
    nodes = tuple(replace(n, seconds=0.01 * profile.seconds) if n.engine == "reference" else n for n in profile.nodes)
    quick = diagnose(model, profile=replace(profile, nodes=nodes), surroundings=QUIET)
    assert not quick.has("numpy-inside")


def test_the_reason_for_numpy_inside_a_compiled_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "INSIDE_SHARE", 0.0)
    text = """net (float[1,1,2,2] x, int64[1,1,2,2] i, int64[4] s) => (float[a,b,c,d] y)
        { y = MaxUnpool<kernel_shape = [2, 2]>(x, i, s) }"""
    feeds = {"x": np.ones((1, 1, 2, 2), "f"), "i": np.arange(4).reshape(1, 1, 2, 2), "s": np.array([1, 1, 4, 4])}
    finding = next(f for f in diagnosed((planted.built(text, {}), feeds)).problems if f.code == "numpy-inside")
    assert finding.why == "The rank of 'y' is not known." and finding.nodes == ("y",)


def test_a_layer_normalization_that_cannot_fuse() -> None:
    finding = only(diagnosed(planted.unfused_norm()), "missed-fusion")
    assert finding.evidence["pass"] == "FuseLayerNorm" and "difference of squares" in finding.why
    assert "LayerNormalization" in finding.title and "opset 17" in finding.fix.text


def test_an_expression_that_two_fusions_decline_is_one_problem() -> None:
    text = """net (float[batch, 32, 64] x, float e) => (float[batch, 32, 64] y) {
        last = Constant<value_ints = [-1]>() two = Constant<value_float = 2.0>()
        h = MatMul(x, w0) m = ReduceMean<keepdims = 1>(h, last) c = Sub(h, m) p = Pow(c, two)
        v = ReduceMean<keepdims = 1>(p, last) s = Add(v, e) r = Sqrt(s) n = Div(c, r) g = Mul(n, gamma)
        o = Add(g, beta) y = MatMul(o, w1) }"""
    weights = {"w0": (64, 64), "w1": (64, 64), "gamma": (64,), "beta": (64,)}
    feeds = {"x": planted.random_feed(2, 32, 64), "e": np.array(1e-5, np.float32)}
    finding = only(diagnosed((planted.built(text, weights), feeds)), "missed-fusion")
    assert finding.evidence["pass"] == "FuseLayerNorm" and "epsilon is not a scalar constant" in finding.why


def test_a_missed_fusion_that_costs_little_is_no_problem() -> None:
    found = diagnosed(planted.small_norm())
    assert not found.problems and next(f for f in found.opportunities if f.code == "missed-fusion").evidence


def test_too_many_threads() -> None:
    finding = only(diagnosed(planted.convnet(), options=threads(8)), "too-many-threads")
    assert finding.evidence["asked_threads"] == 8 and finding.evidence["cpus"] == 4
    assert finding.fix.options == {"intra_op_num_threads": 4}
    assert not diagnosed(planted.convnet(), options=threads(4)).problems


def cgroup(folder: Path, **files: str) -> str:
    for name, text in files.items():
        place = folder / name.replace("__", "/").replace("_DOT_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return str(folder)


def test_a_quota_of_one_cpu_with_eight_threads(tmp_path: Path) -> None:
    around = environment(cgroup(tmp_path, cpu_DOT_max="100000 100000\n"), {}, cpus=8)
    assert (around.quota, around.cores) == (1, 1)
    finding = only(diagnosed(planted.convnet(), around, options=threads(8)), "quota")
    assert finding.evidence["quota_cpus"] == 1 and finding.evidence["asked_threads"] == 8
    assert finding.fix.options == {"intra_op_num_threads": 1}
    assert not diagnosed(planted.convnet(), around).problems, "the engine reads the quota itself"


def test_a_quota_below_the_threads_of_other_libraries(tmp_path: Path) -> None:
    folder = cgroup(
        tmp_path,
        cpu__cpu_DOT_cfs_quota_us="150000",
        cpu__cpu_DOT_cfs_period_us="100000",
        cpu__cpu_DOT_stat="nr_periods 100\nnr_throttled 40\nthrottled_time 1\n",
        memory__memory_DOT_limit_in_bytes="300000",
    )
    around = environment(folder, {"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "x"}, cpus=8)
    assert (around.quota, around.cores, around.memory_nbytes) == (1.5, 2, 300_000)
    assert around.thread_variables == {"OMP_NUM_THREADS": 8, "MKL_NUM_THREADS": 2}
    found = diagnosed(planted.convnet(), around)
    assert {f.code for f in found.problems} == {"quota", "throttled", "memory"}


def test_no_limits(tmp_path: Path) -> None:
    assert environment(str(tmp_path), {}).quota is None
    limitless = cgroup(tmp_path, cpu_DOT_max="max 100000\n", memory_DOT_max="max\n")
    assert environment(limitless, {}).quota is None and environment(limitless, {}).memory_nbytes is None


@pytest.mark.skipif(isa.current().lanes < 8, reason="images stay in NCHW on this chip")
def test_a_layout_ping_pong() -> None:
    finding = only(diagnosed(planted.ping_pong()), "layouts")
    assert finding.evidence["kernels"] >= 3 and finding.evidence["transposes_in_the_graph"] == 6
    assert 0.1 < finding.evidence["share_of_bytes"] < 1


def test_a_huge_copy() -> None:
    finding = only(diagnosed(planted.huge_copy()), "copy")
    assert finding.evidence["bytes"] == 2 * 4 * 8 * 4096 * 64
    assert "bind_state('cache', 'present'" in finding.fix.text


def test_float64_by_accident() -> None:
    finding = only(diagnosed(planted.doubles()), "float64")
    assert finding.evidence["inputs_in_float64"] == 1
    assert finding.evidence["weight_bytes_in_float64"] >= 8 * (256 * 512 + 512 * 512)
    assert finding.fix.config == {"session.float64_as_float32": "1"}


def test_a_batch_of_one_called_in_a_loop(tmp_path: Path) -> None:
    made = planted.perceptron()
    rows = [{"x": planted.random_feed(1, 128)} for _ in range(40)]
    profile = traced(made, rows, tmp_path)
    finding = next(
        f for f in diagnose(made[0], profile=profile, surroundings=QUIET).problems if f.code == "batch-of-one"
    )
    assert finding.evidence["runs_with_one_row"] == 40 and finding.fix.batch == 32
    batched = traced(made, [{"x": planted.random_feed(8, 128)} for _ in range(40)], tmp_path)
    assert not diagnose(made[0], profile=batched, surroundings=QUIET).has("batch-of-one")
    assert not diagnosed((made[0], rows[0])).has("batch-of-one"), "the calls of profile_model are not judged"


def with_waits(profile: Profile) -> Profile:
    kernels = tuple(replace(k, threads=2, waited_s=3 * k.seconds, busy_s=k.seconds) for k in profile.kernels)
    return replace(profile, kernels=kernels)


def test_threads_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless others have the CPUs, for which the threads wait then."""
    real = diagnosis.profiled
    monkeypatch.setattr(diagnosis, "profiled", lambda *a, **k: (with_waits((made := real(*a, **k))[0]), made[1]))
    for others_s, is_told in ((0.0, True), (8.0 * (os.cpu_count() or 1), False)):
        looks = iter([Usage(0.0, 0.0, 0.0, 0.0, 0.0), Usage(10.0, 10.0 + others_s, 10.0, 0.0, 0.0)])
        monkeypatch.setattr(Usage, "now", lambda looks=looks: next(looks))
        found = diagnosed(planted.convnet())
        assert found.has("waiting") == is_told and not found.problems
        assert bool(found.disturbances) != is_told and found.to_json()["disturbances"] == list(found.disturbances)


def test_inputs_that_are_not_contiguous(tmp_path: Path) -> None:
    made = planted.convnet()
    x = np.asfortranarray(planted.random_feed(4, 3, 32, 32))
    found = diagnose(made[0], profile=traced(made, [{"x": x}] * 3, tmp_path), surroundings=QUIET)
    finding = next(f for f in found.problems if f.code == "strided-inputs")
    assert finding.evidence["bytes_copied_in_a_run"] == x.nbytes and finding.evidence["runs"] == 3


def shifted(folder: Path, profile_path: str, gap_us: float) -> Profile:
    """A trace whose runs begin later and later, as if the program did something between them."""
    events = json.loads(Path(profile_path).read_text())
    runs = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == "model_run")
    for event in events:
        event["ts"] += gap_us * sum(end <= event["ts"] for _, end in runs)
    path = folder / "shifted.json"
    path.write_text(json.dumps(events))
    return read_trace(path)


def test_processing_in_python_between_runs(tmp_path: Path) -> None:
    model, feeds = planted.convnet()
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    session = ort.InferenceSession(model, options)
    for _ in range(20):
        session.run(None, feeds)
    path = session.end_profiling()
    slow = shifted(tmp_path, path, gap_us=1e7)
    finding = only(diagnose(model, profile=slow, surroundings=QUIET), "python-between-runs")
    assert finding.evidence["share_between_runs"] > 0.9 and finding.evidence["runs"] == 19


def test_callers_that_crowd_the_cpus(tmp_path: Path) -> None:
    model, feeds = planted.convnet()
    profile = traced((model, feeds), [feeds] * 3, tmp_path)
    runs = tuple(
        type(r)(0.0, 1.0, i, *[getattr(r, n) for n in r.__match_args__[3:]]) for i, r in enumerate(profile.runs)
    )
    together = Profile(*[runs if n == "runs" else getattr(profile, n) for n in profile.__match_args__])
    together = Profile(
        *[
            {**together.settings, "threads": 4} if n == "settings" else getattr(together, n)
            for n in profile.__match_args__
        ]
    )
    finding = only(diagnose(model, profile=together, surroundings=QUIET), "crowded")
    assert finding.evidence["callers"] == 3 and finding.fix.options == {"intra_op_num_threads": 1}


def test_denormal_weights() -> None:
    model, _ = planted.perceptron()
    tiny = {"x": np.full((32, 128), 1e-40, np.float32)}
    finding = only(diagnosed((model, tiny)), "denormals")
    assert finding.nodes == ("x",) and finding.evidence["largest_share"] == 1


def test_a_few_denormal_weights_are_no_problem() -> None:
    model = onnx.load_model_from_string(planted.perceptron()[0])
    weights = next(t for t in model.graph.initializer if t.name == "w2")
    tiny = np.full((256, 10), 1e-40, np.float32)
    weights.CopyFrom(onnx.numpy_helper.from_array(tiny, "w2"))
    found = diagnosed((model.SerializeToString(), {"x": planted.random_feed(32, 128)}))
    assert not found.problems
    assert next(f for f in found.opportunities if f.code == "denormals").nodes == ("w2",)


def test_dictionaries_are_told_of_where_they_take_the_time() -> None:
    model, feeds = planted.classifier()
    profile = diagnosed((model, feeds)).profile
    nodes = tuple(replace(n, seconds=profile.seconds if n.op_type == "ZipMap" else n.seconds) for n in profile.nodes)
    found = diagnose(model, profile=replace(profile, nodes=nodes), surroundings=QUIET)
    finding = next(f for f in found.opportunities if f.code == "maps")
    assert finding.nodes == ("zip",) and "zipmap=False" in finding.fix.text and finding.cost == 1


def test_a_level_below_the_default() -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("optimization.disable_specified_optimizers", "FuseGelu")
    found = diagnosed(planted.transformer(), options=options)
    assert [f.code for f in found.problems] == ["level", "disabled-passes"]
    assert found.problems[0].fix.options == {"graph_optimization_level": ort.GraphOptimizationLevel.ORT_ENABLE_ALL}


def test_a_provider_that_is_not_there() -> None:
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        found = diagnosed(planted.convnet(), providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert only(found, "missing-provider").evidence["asked"] == "CUDAExecutionProvider"


def test_a_compiler_that_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", "none")
    assert "SARDONYX_CPU" in only(diagnosed(planted.perceptron()), "not-compiled").fix.text


@pytest.mark.skipif(not (isa.current().amx or isa.current().byte_dot), reason="the chip has no dot product of bytes")
def test_a_model_that_would_gain_from_int8() -> None:
    weights = {f"w{i}": (1024, 1024) for i in range(3)}
    text = "net (float[n, 1024] x) => (float[n, 1024] y) { a = MatMul(x, w0) b = MatMul(a, w1) y = MatMul(b, w2) }"
    found = diagnosed((planted.built(text, weights), {"x": planted.random_feed(256, 1024)}))
    finding = next(f for f in found.opportunities if f.code == "int8")
    assert finding.evidence["operations"] >= 3 * 2 * 256 * 1024 * 1024 and not found.problems


def test_reports() -> None:
    found = diagnosed(planted.doubles())
    assert json.loads(json.dumps(found.to_json()))["findings"][0]["code"] == "float64"
    text = str(found)
    assert text.startswith("problem: ") and "evidence:" in text and "session.float64_as_float32" in text
    assert str(Diagnosis(found.profile, ())) == "no problem found"
    assert Fix("", batch=4).is_setting and not Fix("export again").is_setting
