"""The accuracy guard: what quantize_static writes where the model as asked for would lose too much."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import OrtValue
from sardonyx.errors import InvalidArgument, NotImplemented
from sardonyx.quantization import guard
from sardonyx.quantization.data import feeds_of
from sardonyx.quantization.guard import MAX_SAMPLES, Recorded
from sardonyx.quantization.kinds import QuantFormat, QuantType
from sardonyx.quantization.quantize import quantize_static
from sardonyx.quantization.source import read_model
from tests.quantization.budget_nets import Feeds, Net, Readings, mobilenet_like, sqnr_db

ort = pytest.importorskip("onnxruntime", reason="onnxruntime comes with the test extra")
OFF = {"AccuracyGuard": 0}


def images() -> Net:
    net = Net(["n", 6, 10, 10])
    return net.conv("a", 6, 12).add("Relu").conv("b", 12, 4)


def one_large_weight() -> Net:
    """A weight that takes the range of all others, and meets an operand that is always zero."""
    net, width = Net(["n", 128]), 128
    net.matmul("a", width, width)
    alive = np.ones(width)
    alive[5] = 0
    net.add("Mul", net.constant("alive", alive), name="cut")
    weight = net.rng.standard_normal((width, width)) / np.sqrt(width)
    weight[5, 2] = 100
    net.add("MatMul", net.constant("b.w", weight), name="b")
    return net.add("Relu").matmul("c", width, 8)


def residual() -> Net:
    """Blocks whose sums have channels that are far larger than the others, as trained transformers have, until a
    normalization shrinks them.
    """
    net, width = Net(["n", 8, 32]), 32
    outliers = np.zeros(width)
    outliers[3] = 500
    for i in range(2):
        before = net.last
        net.matmul(f"up{i}", width, 64).add("Relu").matmul(f"down{i}", 64, width)
        net.add("Add", before, name=f"sum{i}")
        net.add("Add", net.constant(f"outliers{i}", outliers), name=f"grow{i}")
        net.add("Sub", net.constant(f"center{i}", outliers), name=f"shrink{i}")
        net.add("LayerNormalization", net.constant(f"g{i}", np.ones(width)), net.constant(f"h{i}", np.zeros(width)))
    return net.matmul("head", width, 8)


def one_bad_layer() -> Net:
    """A chain in which no scale fits the operand of ``bad``, whose large channel meets weights of nearly zero."""
    net, width = Net(["n", 32]), 32
    sizes = np.ones(width)
    sizes[5] = 3000
    net.matmul("a", width, width).add("Relu").matmul("b", width, width)
    net.add("Mul", net.constant("sizes", sizes), name="grow")
    net.rng = np.random.default_rng(7)
    weight = net.rng.standard_normal((width, width)) / np.sqrt(width)
    weight[5] /= 3000
    net.add("MatMul", net.constant("bad.w", weight), name="bad")
    return net.add("Relu").matmul("c", width, 8)


def quantized(
    net: Net, tmp_path: Path, caplog: pytest.LogCaptureFixture, **settings: Any
) -> tuple[onnx.ModelProto, float, str]:
    """The model, its ratio of signal to noise in onnxruntime on new data, and the warnings."""
    model, path = net.model(), tmp_path / "q.onnx"
    caplog.clear()
    with caplog.at_level(logging.WARNING, "sardonyx.quantization"):
        assert quantize_static(model, path, Readings(net.feeds(16)), **settings) is None
    fresh = net.feeds(8, seed=5)
    expected, got = (
        np.concatenate([session.run(None, feeds)[0].reshape(-1) for feeds in fresh])
        for session in (ort.InferenceSession(m.SerializeToString()) for m in (model, onnx.load(path)))
    )
    return onnx.load(path), sqnr_db(expected, got), "\n".join(r.getMessage() for r in caplog.records)


def readers_of_integers(model: onnx.ModelProto) -> set[str]:
    made = {o: n.op_type for n in model.graph.node for o in n.output}
    return {n.name for n in model.graph.node if any(made.get(name) == "DequantizeLinear" for name in n.input)}


def test_a_model_that_is_good_as_asked_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    guarded, db, said = quantized(images(), tmp_path, caplog)
    plain, _, _ = quantized(images(), tmp_path, caplog, extra_options=OFF)
    assert guarded == plain and db > 20
    assert "signal to noise" not in said


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_weights_whose_channels_differ_get_scales_of_their_own(
    form: QuantFormat, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, lost, _ = quantized(one_large_weight(), tmp_path, caplog, quant_format=form, extra_options=OFF)
    made, db, said = quantized(one_large_weight(), tmp_path, caplog, quant_format=form)
    assert lost < 10 < 17 < db
    assert "instead" in said and "a scale for each channel of weights:" in said and "AccuracyGuard" in said
    assert next(tuple(t.dims) for t in made.graph.initializer if t.name == "b.w_scale") == (128,)


def test_sums_and_normalizations_stay_in_float(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, lost, _ = quantized(residual(), tmp_path, caplog, extra_options=OFF)
    made, db, said = quantized(residual(), tmp_path, caplog)
    assert lost < 10 < 17 < db
    assert "float between products" in said and "in float (" not in said
    assert readers_of_integers(made) >= {f"{name}{i}" for name in ("up", "down") for i in range(2)}
    assert not any(name.startswith(("sum", "shrink", "layernorm")) for name in readers_of_integers(made))


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_the_layer_that_does_the_damage_stays_in_float(
    form: QuantFormat, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, db, said = quantized(one_bad_layer(), tmp_path, caplog, quant_format=form)
    assert "1 of 4 layers in float (bad)" in said
    assert db > 17
    kept = next(node for node in made.graph.node if node.name == "bad")
    assert kept.op_type == "MatMul" and kept.input[1] == "bad.w"


def test_the_limit_is_the_options(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, plain, _ = quantized(images(), tmp_path, caplog)
    _, better, said = quantized(images(), tmp_path, caplog, extra_options={"AccuracyGuard": plain + 3})
    assert better > plain and "quantized as asked" in said
    _, _, said = quantized(images(), tmp_path, caplog, extra_options={"AccuracyGuard": 200})
    assert "no more than" in said and "check the accuracy" in said


CASES: dict[str, dict[str, Any]] = {
    "scales of the user's": {"extra_options": {"TensorQuantOverrides": {"x": [{"quant_type": QuantType.QUInt8}]}}},
    "off": {"extra_options": OFF},
    "four bits": {"weight_type": QuantType.QInt4},
}


@pytest.mark.parametrize("case", CASES)
def test_where_the_guard_stays_out(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, db, said = quantized(mobilenet_like(), tmp_path, caplog, **CASES[case])
    assert db < 10 and "signal to noise" not in said


def test_ranges_from_a_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a reader the first samples are read for the comparison alone; without one there is nothing to compare on."""
    net, table, path = one_large_weight(), tmp_path / "ranges.json", tmp_path / "q.onnx"
    quantize_static(net.model(), path, Readings(net.feeds(16)), calibration_cache_path=table)
    assert "a scale for each channel" in caplog.text
    caplog.clear()
    quantize_static(net.model(), path, Readings(net.feeds(16)), calibration_cache_path=table)
    assert "a scale for each channel" in caplog.text
    caplog.clear()
    quantize_static(net.model(), path, None, calibration_cache_path=table)
    assert "a scale for each channel" not in caplog.text


def test_nodes_without_names_can_stay_in_float(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = one_bad_layer()
    for node in net.nodes:
        node.name = ""
    made, db, said = quantized(net, tmp_path, caplog)
    assert db > 17 and "1 of 4 layers in float (MatMul_bad:0)" in said
    assert any(node.input[1] == "bad.w" for node in made.graph.node if node.op_type == "MatMul")


def test_nodes_of_one_name_stay_in_float_one_by_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Sardonyx takes names that occur twice; onnxruntime does not."""
    net = one_bad_layer()
    for node in net.nodes:
        node.name = "layer"
    quantize_static(net.model(), tmp_path / "q.onnx", Readings(net.feeds(16)))
    assert "1 of 4 layers in float (layer_5)" in caplog.text
    products = [node for node in onnx.load(tmp_path / "q.onnx").graph.node if node.op_type == "MatMul"]
    assert [node.name for node in products if "bad.w" in node.input] == ["layer_5"] and len(products) == 4


@pytest.mark.parametrize("chosen", [{}, {"nodes_to_quantize": ["grow"]}])
def test_a_model_is_never_float_altogether(
    chosen: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a product among the chosen nodes nothing would be quantized if only products were."""
    net, sizes = Net(["n", 32]), np.ones(32)
    sizes[3] = 1e4
    net.add("Mul", net.constant("sizes", sizes), name="grow").add("Div", net.constant("same", sizes))
    if chosen:
        net.matmul("a", 32, 8)
    made, db, said = quantized(net, tmp_path, caplog, **chosen)
    assert db < 10 and "no more than" in said and "check the accuracy" in said
    assert "grow" in readers_of_integers(made)


def test_an_attempt_that_fails_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second quantized model, with a scale for each channel, does not run; the next one does."""
    opened, count = guard.open_session, itertools.count()

    def opening(model: Any) -> Any:
        if next(count) == 2:
            raise NotImplemented("no such kernel")
        return opened(model)

    monkeypatch.setattr(guard, "open_session", opening)
    with caplog.at_level(logging.INFO, "sardonyx.quantization"):
        quantize_static(one_bad_layer().model(), tmp_path / "q.onnx", Readings(one_bad_layer().feeds(16)))
    assert "not quantized with a scale for each channel of weights: no such kernel" in caplog.text
    assert "1 of 4 layers in float (bad)" in caplog.text


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("opened", [0, 1], ids=["float", "quantized"])
def test_a_model_that_cannot_be_compared_is_written_as_asked(
    error: Exception, opened: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, opening, count = one_bad_layer(), guard.open_session, itertools.count()
    quantize_static(net.model(), tmp_path / "plain.onnx", net.feeds(4), extra_options=OFF)

    def failing(model: Any) -> Any:
        if next(count) == opened:
            raise error
        return opening(model)

    monkeypatch.setattr(guard, "open_session", failing)
    quantize_static(net.model(), tmp_path / "q.onnx", net.feeds(4))
    assert (tmp_path / "q.onnx").read_bytes() == (tmp_path / "plain.onnx").read_bytes()
    assert f"was not checked: it cannot be compared here ({str(error) or 'MemoryError'})" in caplog.text


def test_a_machine_without_room_for_temporary_files_quantizes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    net = one_bad_layer()
    quantize_static(net.model(), tmp_path / "q.onnx", net.feeds(4))
    assert (tmp_path / "q.onnx").exists() and "was not checked" in caplog.text


def test_layers_that_are_not_measured_for_want_of_time_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MEASURED_S", -1)
    with caplog.at_level(logging.INFO, "sardonyx.quantization"):
        quantize_static(one_bad_layer().model(), tmp_path / "q.onnx", Readings(one_bad_layer().feeds(16)))
    assert "the damage of layers is no longer measured: a and later" in caplog.text


def test_a_layer_in_float_has_its_weight_in_float(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A weight that another layer reads too, as integers."""
    net, width = Net(["n", 32]), 32
    weight = net.rng.standard_normal((width, width)) / np.sqrt(width)
    weight[5] /= 3000
    sizes = np.ones(width)
    sizes[5] = 3000
    net.matmul("a", width, width).add("Mul", net.constant("sizes", sizes), name="grow")
    net.add("MatMul", net.constant("bad.w", weight), name="bad")
    net.add("Relu").add("MatMul", "bad.w", name="again").matmul("c", width, 8)
    made, db, said = quantized(net, tmp_path, caplog)
    assert db > 17 and "1 of 4 layers in float (bad)" in said
    assert {node.name for node in made.graph.node if "bad.w" in node.input} == {"bad"}
    assert readers_of_integers(made) == {"a", "again", "c"}


def test_random_outputs_are_not_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = Net(["n", 32]).matmul("a", 32, 32).add("RandomNormalLike")
    for path, options in (("q.onnx", {}), ("plain.onnx", OFF)):
        quantize_static(net.model(), tmp_path / path, net.feeds(4), extra_options=options)
    assert (tmp_path / "q.onnx").read_bytes() == (tmp_path / "plain.onnx").read_bytes()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "the accuracy of the quantized model was not checked: an output of the model is random"
    ]


def test_outputs_that_are_no_floats_are_not_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = Net(["n", 32]).matmul("a", 32, 32).add("ArgMax", axis=1)
    net.nodes[-1].output[0] = "y"
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            net.nodes,
            "net",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 32])],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, ["n", 1])],
            net.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=9,
    )
    path = tmp_path / "q.onnx"
    quantize_static(model, path, Readings(net.feeds(4)))
    assert path.exists() and "signal to noise" not in caplog.text


FORMS: dict[str, Callable[[onnx.ModelProto, Path], Any]] = {
    "proto": lambda model, folder: model,
    "bytes": lambda model, folder: model.SerializeToString(),
    "path": lambda model, folder: (folder / "m.onnx", onnx.save(model, folder / "m.onnx"))[0],
    "ir": lambda model, folder: read_model(model),
}


@pytest.mark.parametrize("form", FORMS)
def test_models_in_all_forms_are_compared(form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = FORMS[form](one_large_weight().model(), tmp_path)
    quantize_static(given, tmp_path / "q.onnx", one_large_weight().feeds(4))
    assert "a scale for each channel of weights:" in caplog.text


class Ranged:
    """A reader with ``set_range``, which CalibStridedMinMax calls."""

    def __init__(self, feeds: list[Feeds]) -> None:
        self._all, self._rest = feeds, iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self._rest, None)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._rest = iter(self._all[start_index:end_index])

    def __len__(self) -> int:
        return len(self._all)


class Reused:
    """A reader that writes each sample over the one before."""

    def __init__(self, feeds: list[Feeds], wrap: Callable[[Any], Any] = lambda array: array) -> None:
        self._rest, self._array = iter(feeds), feeds[0]["x"].copy()
        self._value = wrap(self._array)

    def get_next(self) -> Feeds | None:
        feeds = next(self._rest, None)
        if feeds is None:
            return None
        self._array[...] = feeds["x"]
        return {"x": self._value}


READERS: dict[str, Callable[[list[Feeds]], Any]] = {
    "get_next": Readings,
    "set_range": Ranged,
    "list": list,
    "iterator": iter,
    "one array": Reused,
    "one OrtValue": lambda feeds: Reused(feeds, OrtValue.ortvalue_from_numpy),
    "one list": lambda feeds: Reused(feeds, lambda array: [array]),
}


@pytest.mark.parametrize("reader", READERS)
def test_the_first_samples_are_remembered(reader: str) -> None:
    feeds = images().feeds(MAX_SAMPLES + 3)
    recorded = Recorded(READERS[reader](feeds))
    assert sum(1 for _ in feeds_of(recorded)) == len(feeds)
    assert [np.asarray(s["x"]).tobytes() for s in recorded.samples] == [f["x"].tobytes() for f in feeds[:MAX_SAMPLES]]
    assert recorded.samples[0]["x"] is not feeds[0]["x"]


def test_samples_past_the_limit_of_bytes_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = images().feeds(4)
    for limit, count in ((0, 1), (2 * feeds[0]["x"].nbytes, 2)):
        monkeypatch.setattr(guard, "MAX_NBYTES", limit)
        recorded = Recorded(feeds)
        assert len(list(recorded)) == 4 and len(recorded.samples) == count


@pytest.mark.parametrize("samples", [[np.ones((1, 32), np.float32)], [None], [{}]])
def test_samples_that_are_no_feeds_of_the_model_are_refused_as_without_the_guard(
    samples: list[Any], tmp_path: Path
) -> None:
    net, said = one_bad_layer(), []
    for options in ({}, OFF):
        with pytest.raises(InvalidArgument) as refused:
            quantize_static(net.model(), tmp_path / "q.onnx", [*samples, *net.feeds(2)], extra_options=options)
        said.append(str(refused.value))
    assert said[0] == said[1] and "sample 1" in said[0]


def test_samples_read_in_ranges(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = one_large_weight()
    quantize_static(
        net.model(), tmp_path / "q.onnx", Ranged(net.feeds(16)), extra_options={"CalibStridedMinMax": 4}
    )  # fmt: skip
    assert "a scale for each channel" in caplog.text
