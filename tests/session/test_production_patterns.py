"""The ways in which programs for onnxruntime build, tune, chain, bind and time a session, each run as written."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

import sardonyx as ort

pytestmark = pytest.mark.filterwarnings("ignore:Specified provider")

CHAIN = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("kernel", (4, 3, 7, 7)), ("dense", (4, 10)))
    ]
    nodes = [
        helper.make_node("Conv", ["input", "kernel"], ["features"], strides=[8, 8]),
        helper.make_node("Relu", ["features"], ["active"]),
        helper.make_node("GlobalAveragePool", ["active"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "dense"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    path = tmp_path / "model.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def image(batch: int = 1) -> np.ndarray:
    return np.random.default_rng(batch).random((batch, 3, 224, 224)).astype(np.float32)


@pytest.mark.parametrize("batch", [1, 16])
def test_run_by_the_names_that_the_session_tells(model: str, batch: int) -> None:
    session = ort.InferenceSession(model)
    source, target = session.get_inputs()[0].name, session.get_outputs()[0].name
    (whole,) = session.run([target], {source: image(batch)})
    assert whole.shape == (batch, 10)
    rows = [session.run([target], {source: image(batch)[i : i + 1]})[0] for i in range(batch)]
    np.testing.assert_allclose(whole, np.concatenate(rows), rtol=1e-5, atol=1e-5)


def test_pick_cuda_only_where_it_is_available(model: str) -> None:
    wanted = (
        "CUDAExecutionProvider" if "CUDAExecutionProvider" in ort.get_available_providers() else "CPUExecutionProvider"
    )
    assert ort.InferenceSession(model, providers=[wanted]).get_providers()[-1] == "CPUExecutionProvider"


def test_a_chain_of_providers_ends_on_the_cpu(model: str) -> None:
    with pytest.warns(UserWarning, match="TensorrtExecutionProvider"):
        session = ort.InferenceSession(model, providers=CHAIN)
    assert session.get_providers()[-1] == "CPUExecutionProvider"


def test_provider_options_as_dictionaries(model: str) -> None:
    cuda = {"device_id": 0, "arena_extend_strategy": "kSameAsRequested", "gpu_mem_limit": 2 << 30,
            "cudnn_conv_algo_search": "EXHAUSTIVE", "do_copy_in_default_stream": True}  # fmt: skip
    tensorrt = {
        "device_id": 0,
        "trt_max_workspace_size": 1 << 30,
        "trt_fp16_enable": True,
        "trt_engine_cache_enable": True,
    }
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(
        model,
        sess_options=options,
        providers=[(CHAIN[0], tensorrt), (CHAIN[1], cuda), (CHAIN[2], {})],
    )
    assert session.run(None, {"input": image()})[0].shape == (1, 10)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_every_level_saves_a_model_that_gives_the_same(model: str, level: str, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.enable_mem_pattern = options.enable_mem_reuse = True
    first = ort.InferenceSession(model, sess_options=options, providers=CHAIN[1:])
    again = ort.InferenceSession(options.optimized_model_filepath)
    np.testing.assert_array_equal(first.run(None, {"input": image()})[0], again.run(None, {"input": image()})[0])


def test_a_session_tuned_for_latency(model: str) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    session = ort.InferenceSession(model, sess_options=options, providers=["CPUExecutionProvider"])
    meta = session.get_inputs()[0]
    shape = [s if isinstance(s, int) else 1 for s in meta.shape]
    feeds = {meta.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    latencies = []
    for _ in range(5):
        start = time.perf_counter()
        session.run(None, feeds)
        latencies.append(time.perf_counter() - start)
    assert 0 < np.percentile(latencies, 50) <= np.percentile(latencies, 99)


def test_a_profile_adds_up_by_operator(model: str, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = ort.InferenceSession(model, sess_options=options)
    for _ in range(3):
        session.run(None, {"input": image()})
    calls: dict[str, int] = {}
    for event in json.loads(Path(session.end_profiling()).read_text()):
        if event.get("cat") == "Node":
            assert event["dur"] >= 0
            calls[event["args"]["op_name"]] = calls.get(event["args"]["op_name"], 0) + 1
    assert {"Conv", "GlobalAveragePool", "MatMul"} <= set(calls), "what is fused into another node has no event"
    assert set(calls.values()) == {3}


def test_io_binding_by_address(model: str) -> None:
    session = ort.InferenceSession(model)
    given = ort.OrtValue.ortvalue_from_numpy(image())
    binding = session.io_binding()
    binding.bind_input(
        name="input",
        device_type="cpu",
        device_id=0,
        element_type=np.float32,
        shape=given.shape(),
        buffer_ptr=given.data_ptr(),
    )
    binding.bind_output(name="output", device_type="cpu", device_id=0)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), session.run(None, {"input": image()})[0])


def test_a_missing_device_is_refused() -> None:
    with pytest.raises(Exception, match="not present"):
        ort.OrtValue.ortvalue_from_numpy(image(), "cuda", 0)
