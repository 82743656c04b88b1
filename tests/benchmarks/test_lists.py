"""What the benchmarks time: nets with drawn weights, models taken over from a folder, and the tables of their steps."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import layers
from benchmarks.compare import cases, reference
from benchmarks.compare.cases import CASES, Case
from benchmarks.compare.reference import Wide
from benchmarks.zoo import light, trained
from benchmarks.zoo.fading import FADING
from sardonyx.bench import arrays
from sardonyx.interpret.context import RunContext

RNG = np.random.default_rng(11)
F32 = TensorProto.FLOAT


def test_light_nets_keep_activations_near_one(tmp_path: Path) -> None:
    feeds = light.build("shufflenet", tmp_path / "net.onnx", seed=1)
    sizes: dict[str, list[float]] = {}

    def record(node: object, _start: int, _end: int, _args: object, results: tuple[np.ndarray, ...]) -> None:
        sizes.setdefault(node.op_type, []).append(float(np.abs(results[0]).mean()))  # type: ignore[attr-defined]

    answers = Wide(tmp_path / "net.onnx").run(feeds, RunContext(record=record))
    assert len(sizes["Conv"]) == 49 and len(sizes["BatchNormalization"]) == 49
    for op in ("Conv", "BatchNormalization", "Relu", "Gemm"):
        assert min(sizes[op]) > 0.1 and max(sizes[op]) < 3, op
    assert all(np.isfinite(v).all() for v in answers.values())


def test_every_light_net_is_a_case() -> None:
    assert set(light.LIGHT) <= {case.name for case in CASES}
    assert all((light.FILES / f"{file}.onnx").exists() for file in light.LIGHT.values())


@pytest.mark.parametrize("name", FADING)
def test_fading_nets_end_as_next_to_nothing(name: str, tmp_path: Path) -> None:
    assert name in {case.name for case in CASES}
    model, feeds = FADING[name](True)
    (tmp_path / "net.onnx").write_bytes(model)
    (answer,) = Wide(tmp_path / "net.onnx").run(feeds, RunContext()).values()
    assert 1e-38 < np.abs(answer).mean() < 1e-32


@pytest.fixture
def trained_folder(tmp_path: Path) -> Path:
    """A folder with a model whose weight is an input with a default, and whose output's name has a slash."""
    w = RNG.standard_normal((4, 3, 3, 3)).astype(np.float16)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Cast", ["s"], ["net/y"], to=F32),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["n", 3, 8, 8]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT16, w.shape),
    ]
    outputs = [helper.make_tensor_value_info("net/y", F32, ["n", 4, 8, 8])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(w, "w")])
    folder = tmp_path / "trained"
    (folder / "ref").mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx")
    x = RNG.standard_normal((2, 3, 8, 8)).astype(np.float16)
    y = Wide(folder / "net.onnx").run({"x": x}, RunContext())["net/y"].astype(np.float32)
    np.savez(folder / "ref" / "net.npz", **{"in:x": x, "out:net|y": y})
    return folder


def test_a_trained_model_is_taken_over_with_its_feeds_and_answers(trained_folder: Path, tmp_path: Path) -> None:
    trained.take_over(trained_folder / "net.onnx", tmp_path)
    case = Case.of("net")
    assert case in cases.cases_in(tmp_path) and case not in CASES
    assert list(arrays.stored(case.feeds(tmp_path), "in")) == ["x"]
    costs = reference.compute(case, tmp_path)
    assert costs["flops"] == 2 * 27 * 4 * 2 * 64 and costs["weights"] == 4 * 27
    assert arrays.stored(case.reference(tmp_path), "out")["net/y"].dtype == np.float64


def test_layers_tell_time_and_share_of_every_step(trained_folder: Path, tmp_path: Path) -> None:
    trained.take_over(trained_folder / "net.onnx", tmp_path)
    pairs = layers.pairs_of(tmp_path / "net.onnx", "highest", threads=1, rounds=2)
    rows = pairs[0].rows
    assert len(pairs) == 2 * layers.PAIRS
    assert all(pair.seconds > 0 and pair.rates["f32_flops"] > 0 for pair in pairs)
    assert all(row.seconds >= 0 and row.busy_s > 0 for pair in pairs for row in pair.rows)
    assert sum(row.flops for row in rows if "Conv" in row.what) >= 2 * 27 * 4 * 2 * 64
    text = layers.document(tmp_path / "net.onnx", "highest", Namespace(threads=1, rounds=2, rows=None))
    assert f"{len(rows)} steps" in text and text.count("\n| ") >= len(rows) + 3
    assert all(0 < layers.limit_s(pair, "highest") < pair.seconds for pair in pairs)
