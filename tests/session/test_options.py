"""Options: defaults, checks, and what they do to a session."""

from __future__ import annotations

import copy
import logging
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx.errors import Fail, InvalidArgument, ModelLoadCanceled, NotImplemented
from sardonyx.providers.cpu import CpuProvider
from sardonyx.providers.cpu.runtime.team import IDLE_US, SPIN_US
from sardonyx.session import config_keys, environment, log
from sardonyx.session.cpu_options import cpu_providers
from tests.session.models import CHAIN, MATMUL, MUL, X, model, serialized

DEFAULTS = {
    "enable_cpu_mem_arena": True,
    "enable_mem_pattern": True,
    "enable_mem_reuse": True,
    "enable_profiling": False,
    "execution_mode": ort.ExecutionMode.ORT_SEQUENTIAL,
    "execution_order": ort.ExecutionOrder.DEFAULT,
    "graph_optimization_level": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "inter_op_num_threads": 0,
    "intra_op_num_threads": 0,
    "log_severity_level": -1,
    "log_verbosity_level": 0,
    "logid": "",
    "optimized_model_filepath": "",
    "profile_file_prefix": "onnxruntime_profile_",
    "use_deterministic_compute": False,
    "use_per_session_threads": True,
}


def test_defaults() -> None:
    options = ort.SessionOptions()
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("name", "value"),
    [("intra_op_num_threads", "1"), ("intra_op_num_threads", 1.5), ("graph_optimization_level", 1), ("logid", 3)],
)
def test_wrong_types_are_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        setattr(ort.SessionOptions(), name, value)


VALUES = (
    -3,
    0,
    1,
    1 << 31,
    1 << 40,
    True,
    1.0,
    1.5,
    "1",
    "",
    None,
    b"x",
    np.int64(2),
    np.float32(2),
    np.bool_(True),
    [],
)


@pytest.mark.parametrize("kind", ["SessionOptions", "RunOptions"])
def test_values_are_taken_and_refused_as_by_onnxruntime(kind: str) -> None:
    peer = pytest.importorskip("onnxruntime")
    for name in (n for n in dir(getattr(peer, kind)()) if n in DEFAULTS or (kind == "RunOptions" and n[:1] in "lot")):
        for value in VALUES:
            ours, theirs = getattr(ort, kind)(), getattr(peer, kind)()
            try:
                setattr(theirs, name, value)
            except TypeError:
                with pytest.raises(TypeError, match=name):
                    setattr(ours, name, value)
            else:
                setattr(ours, name, value)
                assert str(getattr(ours, name)) == str(getattr(theirs, name)), (name, value)


@pytest.mark.parametrize("threads", [-1, -3])
def test_a_negative_number_of_threads_lets_the_engine_decide(threads: int) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    np.testing.assert_array_equal(ort.InferenceSession(serialized(MUL), options).run(None, {"X": X})[0], X * X)


@pytest.mark.parametrize("level", [-2, 5, 100])
def test_a_log_level_that_means_nothing_is_refused(level: int) -> None:
    options, run = ort.SessionOptions(), ort.RunOptions()
    options.log_severity_level = run.log_severity_level = level
    with pytest.raises(RuntimeError, match="log_severity_level"):
        ort.InferenceSession(serialized(MUL), options)
    with pytest.raises(Fail, match="log_severity_level"):
        ort.InferenceSession(serialized(MUL)).run(None, {"X": X}, run)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda o: o.add_free_dimension_override_by_name(3, 3), "name of a dimension"),
        (lambda o: o.add_free_dimension_override_by_name("N", "a"), "dimension 'N' must be int"),
        (lambda o: o.add_free_dimension_override_by_name("N", 1.5), "dimension 'N' must be int"),
        (lambda o: o.add_free_dimension_override_by_name("N", 1 << 70), "dimension 'N' must be int of 64 bits"),
        (lambda o: o.add_free_dimension_override_by_denotation("N", None), "dimensions 'N' must be int"),
        (lambda o: o.add_provider("CPUExecutionProvider", 3), "mapping of options"),
        (lambda o: o.add_provider(3, {}), "mapping of options"),
        (lambda o: o.register_custom_ops_library(3), "library of custom operators"),
        (lambda o: o.add_external_initializers_from_files_in_memory(["a"], [3], [4]), "external file 'a'"),
    ],
)
def test_arguments_of_wrong_types_are_named(call: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call(ort.SessionOptions())


@pytest.mark.parametrize("options", [ort.SessionOptions(), ort.RunOptions()])
def test_unknown_attributes_are_refused(options: Any) -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'log_id'\. Did you mean: 'logid'"):
        options.log_id = "x"


def test_config_entries() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("CONFIG_KEY", "value")
    assert options.get_session_config_entry("CONFIG_KEY") == "value"
    with pytest.raises(RuntimeError, match="SessionOptions does not have configuration with key: other"):
        options.get_session_config_entry("other")
    for key in ("", "k" * 1025):
        with pytest.raises(RuntimeError, match="empty or longer"):
            options.add_session_config_entry(key, "x")
    with pytest.raises(TypeError):
        options.add_session_config_entry("key", 1)  # type: ignore[arg-type]
    run = ort.RunOptions()
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert run.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    with pytest.raises(RuntimeError, match="RunOptions does not have"):
        run.get_run_config_entry("other")


@pytest.mark.parametrize(
    ("entries", "expected"),
    (
        ({}, (SPIN_US, IDLE_US)),
        ({"session.intra_op.spin_duration_us": "50"}, (50, 50)),
        ({"session.force_spinning_stop": "1"}, (SPIN_US, 0)),
        ({"session.intra_op.allow_spinning": "0", "session.intra_op.spin_duration_us": "50"}, (0, 0)),
    ),
)
def test_how_long_threads_spin_where_they_wait(entries: dict[str, str], expected: tuple[int, int]) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    (provider,) = cpu_providers(options)
    assert isinstance(provider, CpuProvider)
    assert (provider.settings.spin_us, provider.settings.idle_us) == expected
    session = ort.InferenceSession(serialized(MUL), options)
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, {"X": X})[0], X * X)


def test_a_time_to_spin_that_is_none_is_refused() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.spin_duration_us", "long")
    with pytest.raises(InvalidArgument, match="number of microseconds"):
        ort.InferenceSession(serialized(MUL), options)


def test_unknown_keys_are_warned_about_with_the_nearest_name() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spining", "0")
    with pytest.warns(UserWarning, match="did you mean 'session.intra_op.allow_spinning'"):
        ort.InferenceSession(serialized(MUL), options)
    with pytest.raises(InvalidArgument, match="did you mean"):
        ort.InferenceSession(serialized(MUL), options, strict=True)
    run = ort.RunOptions()
    run.add_run_config_entry("gpu_graf_id", "1")
    with pytest.warns(UserWarning, match="did you mean 'gpu_graph_id'"):
        ort.InferenceSession(serialized(MUL)).run(None, {"X": X}, run)


def test_an_unknown_key_is_warned_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_keys, "_warned", set())
    options, run = ort.SessionOptions(), ort.RunOptions()
    for key in ("session.my_own_key", "gpu_graph_id"):
        options.add_session_config_entry(key, "1")
    run.add_run_config_entry("my_own_run_key", "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            session = ort.InferenceSession(serialized(MUL), options)
            session.run(None, {"X": X}, run)
    said = [str(w.message) for w in caught]
    assert len(said) == 3
    assert said[0] == "no configuration key is called 'session.my_own_key'; it is ignored"
    assert "did you mean 'gpu_graph_id' of RunOptions?" in said[1]
    assert said[2] == "no configuration key is called 'my_own_run_key'; it is ignored"


def test_known_keys_without_effect_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    key = "session.dynamic_block_base"
    assert config_keys.SESSION_KEYS[key] is None
    options = ort.SessionOptions()
    options.add_session_config_entry(key, "4")
    options.add_session_config_entry("ep.openvino.device_type", "NPU")
    with caplog.at_level(logging.INFO, "sardonyx"):
        for _ in range(2):
            ort.InferenceSession(serialized(MUL), options, strict=True)
    assert sum(key in r.message for r in caplog.records) == 1


def test_every_key_is_described() -> None:
    assert len(config_keys.SESSION_KEYS) >= 86
    assert all(value is None or value for value in (*config_keys.SESSION_KEYS.values(), *config_keys.RUN_KEYS.values()))


def test_free_dimensions() -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("N", 3)
    session = ort.InferenceSession(serialized(MATMUL), options)
    assert session.get_inputs()[0].shape == [3, 2]
    with pytest.raises(InvalidArgument, match="Got: 2 Expected: 3"):
        session.run(None, {"X": X[:2]})
    proto = model(MATMUL)
    proto.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 5)
    assert ort.InferenceSession(proto, options).get_inputs()[0].shape == [5, 2]


def test_initializers_are_replaced() -> None:
    options = ort.SessionOptions()
    options.add_initializer("W", ort.OrtValue.ortvalue_from_numpy(X[:, ::-1].copy()))
    with pytest.raises(RuntimeError, match="already been added: W"):
        options.add_initializer("W", ort.OrtValue.ortvalue_from_numpy(X))
    with pytest.raises(RuntimeError, match="must be an OrtValue"):
        options.add_initializer("V", X)
    session = ort.InferenceSession(serialized(MUL), options)
    np.testing.assert_array_equal(session.run(None, {"X": X})[0], X * X[:, ::-1])


def external(name: str) -> bytes:
    """A model whose padding is in a file that is not there."""
    text = """<ir_version: 8, opset_import: ["": 13]>
    pad (float[1, 1] x) => (float[a, b] y) <int64[4] pads = {0, 0, 0, 0}> { y = Pad(x, pads) }"""
    proto = model(text)
    (pads,) = proto.graph.initializer
    pads.ClearField("int64_data")
    pads.ClearField("raw_data")
    pads.data_location = onnx.TensorProto.EXTERNAL
    pads.external_data.add(key="location", value=name)
    return proto.SerializeToString()


PADS = np.array([0, 0, 1, 2], np.int64)


def test_external_files_from_memory() -> None:
    options = ort.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["pads.bin"], [PADS.tobytes()], [PADS.nbytes])
    session = ort.InferenceSession(external("pads.bin"), options)
    assert session.run(None, {"x": np.ones((1, 1), np.float32)})[0].shape == (2, 3)
    with pytest.raises(RuntimeError, match="equally many"):
        options.add_external_initializers_from_files_in_memory(["a"], [b""], [])


def test_external_initializers_by_value() -> None:
    options = ort.SessionOptions()
    options.add_external_initializers(["pads"], [ort.OrtValue.ortvalue_from_numpy(PADS)])
    session = ort.InferenceSession(external("pads.bin"), options)
    assert session.run(None, {"x": np.ones((1, 1), np.float32)})[0].shape == (2, 3)
    with pytest.raises(RuntimeError, match="equally many"):
        options.add_external_initializers(["a"], [])


def test_initializers_that_a_model_lacks_are_passed_over() -> None:
    """One set of options may serve several models."""
    options = ort.SessionOptions()
    options.add_initializer("of another model", ort.OrtValue.ortvalue_from_numpy(X))
    np.testing.assert_array_equal(ort.InferenceSession(serialized(MUL), options).run(None, {"X": X})[0], X * X)


def test_optimized_models_are_written(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "small.onnx")
    ort.InferenceSession(serialized(MUL), options)
    again = ort.InferenceSession(tmp_path / "small.onnx")
    np.testing.assert_array_equal(again.run(None, {"X": X})[0], X * X)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "10")
    ort.InferenceSession(serialized(MUL), options)
    assert (tmp_path / "weights.bin").stat().st_size == X.nbytes
    again = ort.InferenceSession(tmp_path / "small.onnx")
    np.testing.assert_array_equal(again.run(None, {"X": X})[0], X * X)


def test_disabled_optimizers_are_left_out() -> None:
    text = """<ir_version: 8, opset_import: ["": 13]>
    g (float[2] x) => (float[2] y) { a = Identity(x)  y = Relu(a) }"""
    assert len(ort.InferenceSession(serialized(text)).explain().placements) == 1
    kept = ort.InferenceSession(serialized(text), disabled_optimizers=["EliminateIdentity"])
    assert len(kept.explain().placements) == 2
    options = ort.SessionOptions()
    options.add_session_config_entry("optimization.disable_specified_optimizers", "Foo;EliminateIdentity")
    assert len(ort.InferenceSession(serialized(text), options).explain().placements) == 2
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert len(ort.InferenceSession(serialized(text), options).explain().placements) == 2


def test_settings_from_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    proto = model(MUL)
    settings = '{"session_options": {"inter_op_num_threads": 5, "graph_optimization_level": 1, "enable_profiling": 0}}'
    onnx.helper.set_model_props(proto, {"ort_config": settings})
    assert ort.InferenceSession(proto).get_session_options().inter_op_num_threads == 0
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    options = ort.InferenceSession(proto).get_session_options()
    assert options.inter_op_num_threads == 5
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    onnx.helper.set_model_props(proto, {"ort_config": "{bad"})
    with pytest.raises(RuntimeError, match="cannot be parsed"):
        ort.InferenceSession(proto)


def test_options_belong_to_the_session_once_it_is_made() -> None:
    options = ort.SessionOptions()
    session = ort.InferenceSession(serialized(MUL), options)
    options.intra_op_num_threads = 7
    assert session.get_session_options().intra_op_num_threads == 0


def test_options_are_copied_and_pickled() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 3
    options.add_session_config_entry("a", "b")
    for twin in (copy.copy(options), pickle.loads(pickle.dumps(options))):
        twin.add_session_config_entry("c", "d")
        assert twin.intra_op_num_threads == 3 and twin.get_session_config_entry("a") == "b"
    with pytest.raises(RuntimeError):
        options.get_session_config_entry("c")


def test_loading_can_be_cancelled() -> None:
    options = ort.SessionOptions()
    options.set_load_cancellation_flag(True)
    with pytest.raises(ModelLoadCanceled):
        ort.InferenceSession(serialized(MUL), options)


def test_native_libraries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Fail, match="Failed to load library"):
        ort.SessionOptions().register_custom_ops_library(str(tmp_path / "no.so"))
    with pytest.raises(Fail, match="Failed to load library"):
        ort.register_execution_provider_library("ep", str(tmp_path / "no.so"))
    with pytest.raises(Fail, match="was not registered"):
        ort.unregister_execution_provider_library("ep")
    options = ort.SessionOptions()
    options.add_session_config_entry("session.load_model_format", "ORT")
    with pytest.raises(NotImplemented, match="ORT format"):
        ort.InferenceSession(serialized(MUL), options)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "out.ort")
    with pytest.raises(NotImplemented, match="ORT format"):
        ort.InferenceSession(serialized(MUL), options)
    with pytest.raises(NotImplemented, match="ORT format"):
        ort.InferenceSession("model.ort")


def test_assignment_info_must_be_asked_for() -> None:
    with pytest.raises(Fail, match=r"'session.record_ep_graph_assignment_info' must be set"):
        ort.InferenceSession(serialized(CHAIN)).get_provider_graph_assignment_info()
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    parts = ort.InferenceSession(serialized(CHAIN), options).get_provider_graph_assignment_info()
    assert {p.ep_name for p in parts} == {"CPUExecutionProvider"}
    assert [(n.name, n.domain, n.op_type) for p in parts for n in p.get_nodes()] == [
        ("first", "", "Add"),
        ("second", "", "Mul"),
        ("third", "", "Add"),
    ]


def test_shared_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = ort.SessionOptions()
    shared.use_per_session_threads = False
    with pytest.raises(RuntimeError, match="no global thread pool"):
        ort.InferenceSession(serialized(MUL), shared)
    monkeypatch.setattr(environment, "_thread_pool", None)
    ort.set_global_thread_pool_sizes(2, 2)
    ort.InferenceSession(serialized(MUL), shared)
    with pytest.raises(RuntimeError, match="must be false when using a global thread pool"):
        ort.InferenceSession(serialized(MUL))


def test_the_logging_callback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(log, "_severity", log.WARNING)
    monkeypatch.setattr(log, "_callback", None)
    heard: list[tuple[int, str, str, str, str]] = []
    ort.set_default_logger_callback(lambda *message: heard.append(message), severity=0)
    options = ort.SessionOptions()
    options.logid = "mine"
    ort.InferenceSession(serialized(MUL), options)
    assert heard and all(isinstance(m[0], int) and all(isinstance(t, str) for t in m[1:]) for m in heard)
    assert {m[2] for m in heard} == {"mine"}
    heard.clear()
    options.log_severity_level = 3
    ort.InferenceSession(serialized(MUL), options)
    assert not heard

    def broken(*message: Any) -> None:
        raise ValueError("no")

    ort.set_default_logger_callback(broken, severity=0)
    ort.InferenceSession(serialized(MUL))
    assert "ValueError" in capsys.readouterr().err
    for call in (
        lambda: ort.set_default_logger_severity(5),
        lambda: ort.set_default_logger_callback(None, severity=-1),
    ):
        with pytest.raises(RuntimeError, match="Invalid logging severity"):
            call()
    with pytest.raises(RuntimeError, match="callable"):
        ort.set_default_logger_callback("no")  # type: ignore[arg-type]


def test_unknown_keywords() -> None:
    with pytest.warns(UserWarning, match="did you mean 'enable_fallback'"):
        ort.InferenceSession(serialized(MUL), enable_falback=1)
    with pytest.raises(TypeError, match="did you mean"):
        ort.InferenceSession(serialized(MUL), enable_falback=1, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ort.InferenceSession(serialized(MUL), enable_fallback=1, read_config_from_model=0, disabled_optimizers=None)
