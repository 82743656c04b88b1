"""quantize_static within a budget: which layers stay in float and why, what is written, and what is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.quantization.budget.damage import SessionMetric
from sardonyx.quantization.budget.goal import Budget
from sardonyx.quantization.budget.latency import Race, Stopwatch
from sardonyx.quantization.budget.report import Report
from sardonyx.quantization.budget.search import search
from sardonyx.quantization.kinds import QuantFormat
from sardonyx.quantization.quantize import quantize_static
from tests.quantization.budget_nets import Net, Readings, sqnr_db

ort = pytest.importorskip("onnxruntime", reason="onnxruntime comes with the test extra")
SETTINGS = dict(quant_format=QuantFormat.QDQ, per_channel=False, use_external_data_format=False)


class Clock:
    """Stands in for the stopwatch: a model's time is a function of the nodes that read dequantized weights."""

    def __init__(
        self, seconds: Callable[[set[str]], float], steps: dict[str, tuple[float, float]] | None = None
    ) -> None:
        self._seconds, self._steps = seconds, steps or {}

    def race(self, models: dict[str, str]) -> Race:
        return Race({name: [self._seconds(in_integers(onnx.load(path)))] * 5 for name, path in models.items()})

    def profile(self, model: str) -> dict[str, float]:
        column = 1 if in_integers(onnx.load(model)) else 0
        return {name: times[column] for name, times in self._steps.items()}


def in_integers(model: onnx.ModelProto) -> set[str]:
    made = {o: n.op_type for n in model.graph.node for o in n.output}
    heavy = (n for n in model.graph.node if n.op_type in ("Conv", "Gemm", "MatMul"))
    return {n.name for n in heavy if made.get(n.input[1]) == "DequantizeLinear"}


PAYS = Clock(lambda nodes: 1.0 - 0.1 * len(nodes), dict.fromkeys("abcd", (200.0, 100.0)))


def convolutions() -> Net:
    net = Net(["n", 6, 10, 10])
    net.conv("a", 6, 12).add("Relu", name="relu_a").conv("b", 12, 12).add("Relu", name="relu_b")
    net.conv("c", 12, 12).add("Relu", name="relu_c").conv("d", 12, 4)
    return net


def with_outlier(net: Net) -> onnx.ModelProto:
    """b never writes channel 5, for which c has weights so large that all others round to zero."""
    model = net.model()
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        if tensor.name == "b.w":
            array[5] = 0
        elif tensor.name == "b.b":
            array[5] = -1
        elif tensor.name == "c.w":
            array[:, 5] *= 1e4
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def quantized(model: onnx.ModelProto, feeds: Any, path: Path, budget: Any, **options: Any) -> Report:
    reader = feeds if feeds is None or hasattr(feeds, "get_next") else Readings(feeds)
    options = {"stopwatch": PAYS, **SETTINGS, **options}
    return search(model, path, reader, budget=budget, static=quantize_static, **options)


def outputs(model: Any, feeds: list[dict[str, np.ndarray]]) -> np.ndarray:
    """onnxruntime's, which would quantize the weights of float layers between quantized ones of its own accord."""
    session = ort.InferenceSession(
        model, providers=["CPUExecutionProvider"], disabled_optimizers=["WeightBiasQuantization"]
    )
    return np.concatenate([session.run(None, each)[0] for each in feeds])


def test_an_outlier_layer_stays_in_float(tmp_path: Path) -> None:
    net, path = convolutions(), tmp_path / "q.onnx"
    model, feeds = with_outlier(net), net.feeds(6)
    report = quantized(model, feeds, path, 25.0)
    assert report.met, report
    assert {row.name: row.decision for row in report.layers} == {"a": "int8", "b": "int8", "c": "float", "d": "int8"}
    rows = {row.name: row for row in report.layers}
    assert rows["c"].nodes == ("c", "relu_c")
    assert rows["c"].sqnr_db < 10 < rows["a"].sqnr_db
    assert "quantized alone it lowers the SQNR to" in rows["c"].reason and rows["a"].reason == "saves 100 ms"
    assert in_integers(onnx.load(path)) == {"a", "b", "d"}
    fresh = net.feeds(6, seed=9)
    assert sqnr_db(outputs(model.SerializeToString(), fresh), outputs(str(path), fresh)) > 24
    tried = {row.name: row for row in report.remedies}
    assert set(tried) == {"equalization", "per-channel weights", "SmoothQuant", "bias correction"}
    assert not tried["per-channel weights"].applied
    assert "1 of 4 layers in float" in report.statement and "c" in str(report)


def test_everything_in_integers_where_that_is_accurate_enough(tmp_path: Path) -> None:
    net, path = convolutions(), tmp_path / "q.onnx"
    report = quantized(net.model(), net.feeds(6), path, 15.0)
    assert report.met and report.chosen is not None and report.chosen.layers_in_float == 0
    assert all(r.reason.startswith("not needed") for r in report.remedies)
    assert in_integers(onnx.load(path)) == set("abcd")
    assert [trial.label for trial in report.frontier] == ["int8", "float"]


def test_a_layer_that_loses_time_stays_in_float(tmp_path: Path) -> None:
    slow_b = Clock(
        lambda nodes: 1.0 - 0.1 * len(nodes) + 0.3 * ("b" in nodes),
        {"a": (200, 100), "b": (200, 400), "c": (200, 100), "d": (200, 100)},
    )
    net, path = convolutions(), tmp_path / "q.onnx"
    report = quantized(net.model(), net.feeds(6), path, 15.0, stopwatch=slow_b)
    row = next(row for row in report.layers if row.name == "b")
    assert report.met and row.decision == "float" and "faster with it in float" in row.reason
    assert in_integers(onnx.load(path)) == set("acd")


def test_where_integers_do_not_pay_nothing_is_written(tmp_path: Path) -> None:
    slower = Clock(lambda nodes: 1.0 + 0.1 * len(nodes), dict.fromkeys("abcd", (100.0, 200.0)))
    net, path = convolutions(), tmp_path / "q.onnx"
    report = quantized(net.model(), net.feeds(6), path, 15.0, stopwatch=slower)
    assert not report.met and "int8 does not pay on this machine" in report.statement
    assert not path.exists()
    wanted = quantized(net.model(), net.feeds(6), path, Budget(min_sqnr_db=15, must_be_faster=False), stopwatch=slower)
    assert wanted.met and path.exists() and wanted.chosen is not None and wanted.chosen.speedup < 1
    assert "0.71 times as fast" in wanted.statement and "It is slower than the float model" in wanted.statement


def test_the_race_decides_where_layers_promise_a_gain(tmp_path: Path) -> None:
    """Profiles in which each layer saves time, of models that take longer as a whole."""
    promising = Clock(lambda nodes: 1.0 + 0.1 * len(nodes), dict.fromkeys("abcd", (200.0, 100.0)))
    net, path = convolutions(), tmp_path / "q.onnx"
    report = quantized(net.model(), net.feeds(6), path, 15.0, stopwatch=promising)
    assert not report.met and not path.exists() and "int8 does not pay" in report.statement
    assert any("save 400 ms" in note and "the races decide" in note for note in report.notes)


def test_what_is_not_told_from_float_is_not_called_faster(tmp_path: Path) -> None:
    same = Clock(lambda nodes: 1.0, dict.fromkeys("abcd", (200.0, 100.0)))
    net, path = convolutions(), tmp_path / "q.onnx"
    assert not quantized(net.model(), net.feeds(6), path, 15.0, stopwatch=same).met and not path.exists()
    wanted = quantized(net.model(), net.feeds(6), path, Budget(min_sqnr_db=15, must_be_faster=False), stopwatch=same)
    assert wanted.met and path.exists() and "No race shows it to be faster" in wanted.statement


def test_rounds_that_disagree_show_nothing(tmp_path: Path) -> None:
    """Races on a machine so busy that the faster model in the median loses many rounds."""

    class Busy(Clock):
        def race(self, models: dict[str, str]) -> Race:
            ours = [0.4, 2.5, 0.5, 3.0, 0.6, 2.0, 0.7, 0.8, 4.0, 0.9]
            return Race({name: [1.0] * 10 if name == "float" else ours for name in models})

    net, path = convolutions(), tmp_path / "q.onnx"
    report = quantized(net.model(), net.feeds(6), path, 15.0, stopwatch=Busy(lambda nodes: 1.0))
    assert not report.met and not path.exists()
    assert "no race shows int8 to be faster" in report.statement and "disagree too much" in report.statement


def test_a_race_by_its_interval() -> None:
    rounds = [1.0, 1.1, 0.9, 1.0, 1.2, 1.0, 0.95, 1.05]
    mostly = Race({"float": rounds, "it": [0.8 * x for x in rounds[:5]] + [2.0, 1.9, 2.1]})
    assert mostly.is_faster("it", "float") is False and mostly.speedup("it", "float") > 1.2
    assert Race({"float": rounds, "it": [0.8 * x for x in rounds[:7]] + [1.1]}).is_faster("it", "float")
    assert Race({"float": [1.0] * 4, "it": [0.9] * 4}).is_faster("it", "float"), "too few rounds for an interval"


def test_another_model_that_wins_is_taken_where_the_first_choice_loses_its_last_race(tmp_path: Path) -> None:
    """A layer that stops paying while the search goes on."""

    class Turning(Clock):
        def race(self, models: dict[str, str]) -> Race:
            found = super().race(models)
            if in_integers(onnx.load(models["it"])) == set("abcd"):
                self._seconds = lambda nodes: 1.0 + 0.2 * (len(nodes) == 4) - 0.1 * (0 < len(nodes) < 4)
            return found

    turning = Turning(lambda nodes: 1.0 - 0.1 * len(nodes), {**dict.fromkeys("abc", (200, 100)), "d": (100, 200)})
    net, path = convolutions(), tmp_path / "q.onnx"
    report = quantized(net.model(), net.feeds(6), path, 15.0, stopwatch=turning)
    assert report.met and report.chosen is not None and report.chosen.speedup > 1
    assert in_integers(onnx.load(path)) == set("abc")


def test_an_impossible_budget_is_said_to_be_one(tmp_path: Path) -> None:
    net, path = convolutions(), tmp_path / "q.onnx"
    report = quantized(net.model(), net.feeds(4), path, 150.0)
    assert not report.met and report.chosen is None
    assert report.statement.startswith("No model meets the budget") and "accurate enough" in report.statement
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_anything_to_quantize(tmp_path: Path) -> None:
    net = Net(["n", 4])
    net.add("Sin").add("Cos")
    report = quantized(net.model(), net.feeds(2), tmp_path / "q.onnx", 10.0)
    assert not report.met and "Nothing is quantized" in report.statement


def with_loud_channels() -> tuple[Net, onnx.ModelProto]:
    """Products that read a channel 400 times as large as the others, for which their weights are small."""
    net = Net(["n", 8, 32])
    net.matmul("first", 32, 32).add("Relu").matmul("second", 32, 32).add("Relu").matmul("third", 32, 16)
    model = net.model()
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        if tensor.name != "third.w":
            array[:, 5] *= 400
        if tensor.name != "first.w":
            array[5] /= 400
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return net, model


FASTER = Clock(lambda nodes: 1.0 - 0.1 * len(nodes))


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_outliers_of_activations_are_smoothed(tmp_path: Path, form: QuantFormat) -> None:
    net, model = with_loud_channels()
    path, options = tmp_path / "q.onnx", {**SETTINGS, "quant_format": form, "stopwatch": FASTER}
    without = quantized(model, net.feeds(6), path, Budget(min_sqnr_db=25, remedies=(), must_be_faster=False), **options)
    assert without.chosen is None or without.chosen.layers_in_float > 1
    budget = Budget(min_sqnr_db=25, remedies=("SmoothQuant",), must_be_faster=False)
    report = quantized(model, net.feeds(6), path, budget, **options)
    assert report.met and report.chosen is not None and report.chosen.layers_in_float < 2, report
    tried = {row.name: row for row in report.remedies}
    assert tried["SmoothQuant"].applied and "SmoothQuant" in report.statement
    fresh = net.feeds(6, seed=9)
    assert sqnr_db(outputs(model.SerializeToString(), fresh), outputs(str(path), fresh)) > 24


def test_smoothing_that_was_asked_for_is_done_once(tmp_path: Path) -> None:
    net, model = with_loud_channels()
    asked = {"SmoothQuant": True}
    report = quantized(model, net.feeds(6), tmp_path / "q.onnx", 25.0, extra_options=asked, stopwatch=FASTER)
    assert report.met and report.chosen is not None and report.chosen.layers_in_float == 0, report
    assert [row.name for row in report.layers] == ["first", "second", "third"]
    assert next(row for row in report.remedies if row.name == "SmoothQuant").reason == "asked for by extra_options"
    written = onnx.load(tmp_path / "q.onnx")
    assert [n.op_type for n in written.graph.node].count("Mul") == 1
    table = tmp_path / "ranges.json"
    quantize_static(model, tmp_path / "p.onnx", Readings(net.feeds(6)), calibration_cache_path=table)
    with pytest.raises(InvalidArgument, match="SmoothQuant does not apply"):
        quantized(
            model, None, tmp_path / "r.onnx", Budget(min_sqnr_db=25, evaluation=net.feeds(2)),
            extra_options=asked, calibration_cache_path=table,
        )  # fmt: skip


def test_an_accurate_model_that_is_faster_is_found_among_the_others(tmp_path: Path) -> None:
    """The fewest layers in float leave a model that is slower than float; one more layer makes a faster one."""

    class Fickle(Clock):
        """A model with both b and c in float is the faster one, in races against the float model only."""

        def race(self, models: dict[str, str]) -> Race:
            found = super().race(models)
            return Race({**found.seconds, "other": found.seconds["it"]}) if "other" in models else found

    def seconds(nodes: set[str]) -> float:
        return {frozenset("abcd"): 0.5, frozenset("ad"): 0.8}.get(frozenset(nodes), 1.0 if not nodes else 1.1)

    net, path = convolutions(), tmp_path / "q.onnx"
    clock = Fickle(seconds, {"a": (200, 100), "b": (100, 200), "c": (200, 100), "d": (200, 100)})
    report = quantized(with_outlier(net), net.feeds(6), path, 25.0, stopwatch=clock)
    assert report.met and in_integers(onnx.load(path)) == set("ad"), report
    rows = {row.name: row for row in report.layers}
    assert "faster with it in float" in rows["b"].reason and "SQNR" in rows["c"].reason


def test_a_metric_gets_the_outputs_of_all_samples(tmp_path: Path) -> None:
    net, seen = convolutions(), []
    model, feeds = with_outlier(net), net.feeds(6)
    told = [outputs(model.SerializeToString(), [each]) for each in feeds]

    def closeness(outputs_by_sample: list[dict[str, np.ndarray]]) -> float:
        seen.append(len(outputs_by_sample))
        errors = [
            np.abs(got["y"] - t).mean() / np.abs(t).mean() for got, t in zip(outputs_by_sample, told, strict=True)
        ]
        return 1 - float(np.mean(errors))

    report = quantized(model, feeds, tmp_path / "q.onnx", Budget(max_loss=0.1, samples=2), metric=closeness)
    assert report.met and set(seen) == {6}
    assert report.chosen is not None and report.chosen.loss is not None and 0 < report.chosen.loss <= 0.1
    row = next(row for row in report.layers if row.name == "c")
    assert row.decision == "float" and "loses" in row.reason and row.loss is not None and row.loss > 0.1


def test_a_metric_may_run_the_session_and_may_be_an_error(tmp_path: Path) -> None:
    net = convolutions()
    model, feeds = net.model(), net.feeds(4)
    expected = outputs(model.SerializeToString(), feeds)

    def error(session: Any) -> float:
        return float(np.abs(np.concatenate([session.run(None, each)[0] for each in feeds]) - expected).max())

    budget = Budget(max_loss=0.5 * float(np.abs(expected).max()), higher_is_better=False)
    report = quantized(model, feeds, tmp_path / "q.onnx", budget, metric=SessionMetric(error))
    assert report.met and report.chosen is not None and report.chosen.loss is not None and report.chosen.loss > 0


def test_many_layers_are_measured_in_groups(tmp_path: Path) -> None:
    net = Net(["n", 4, 6, 6])
    for i in range(16):
        net.conv(f"conv{i}", 4, 4).add("Relu")
    report = quantized(net.model(), net.feeds(2), tmp_path / "q.onnx", Budget(min_sqnr_db=1, max_trials=20))
    assert len(report.layers) <= 8 and sum(len(row.nodes) for row in report.layers) == 32
    assert ".." in report.layers[0].name


def test_a_search_without_time_says_what_it_left_out(tmp_path: Path) -> None:
    net = convolutions()
    report = quantized(net.model(), net.feeds(2), tmp_path / "q.onnx", Budget(min_sqnr_db=60, max_seconds=0))
    assert not report.met and any("no longer measured" in note for note in report.notes)


def test_the_report_as_json(tmp_path: Path) -> None:
    net = convolutions()
    report = quantized(net.model(), net.feeds(4), tmp_path / "q.onnx", 15.0)
    read = json.loads(report.to_json())
    assert read["met"] is True and read["statement"] == report.statement
    assert [row["name"] for row in read["layers"]] == list("abcd")
    assert read["float"]["sqnr_db"] is None and read["chosen"]["sqnr_db"] > 15
    assert {trial["label"] for trial in read["frontier"]} == {"int8", "float"}


def test_one_calibration_serves_all_trials(tmp_path: Path) -> None:
    net, table = convolutions(), tmp_path / "ranges.json"
    model, feeds = net.model(), net.feeds(4)
    calibrated = []

    def static(*args: Any, **options: Any) -> None:
        calibrated.append(args[2] is not None)
        quantize_static(*args, **options)

    options = dict(stopwatch=PAYS, static=static, calibration_cache_path=table, **SETTINGS)
    search(model, tmp_path / "q.onnx", Readings(feeds), budget=15.0, **options)
    assert calibrated[0] and not any(calibrated[1:]) and len(calibrated) > 5 and table.exists()
    again = search(model, tmp_path / "q.onnx", None, budget=Budget(min_sqnr_db=15, evaluation=feeds), **options)
    assert again.met and not any(calibrated[1:])


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("budget is text", dict(budget="small"), "how much accuracy"),
    ("budget without limit", dict(budget=Budget()), "no limit"),
    ("budget is NaN", dict(budget=float("nan")), "not a finite number"),
    ("max_loss without metric", dict(budget=Budget(max_loss=0.1)), "needs a metric"),
    ("negative max_loss", dict(budget=-1, metric=len), "negative"),
    ("unknown remedy", dict(budget=Budget(min_sqnr_db=1, remedies=("prayer",))), "no such remedy"),
    ("no samples", dict(budget=Budget(min_sqnr_db=1, samples=0)), "samples"),
    ("metric is no function", dict(budget=0.1, metric=3), "not callable"),
    ("metric without a number", dict(budget=0.1, metric=lambda o: "x"), "no number"),
    ("metric with NaN", dict(budget=0.1, metric=lambda o: float("nan")), "not finite"),
    ("exhausted reader", dict(budget=10.0, feeds=[]), "no calibration data"),
    ("no reader", dict(budget=10.0, feeds=None), "needs data"),
    ("sample is a list", dict(budget=10.0, feeds=[[1, 2]]), "no dictionary"),
    ("wrong input name", dict(budget=10.0, feeds=[{"z": np.zeros((1, 6, 10, 10), "f")}]), "lacks inputs"),
    ("NaN", dict(budget=10.0, feeds=[{"x": np.full((1, 6, 10, 10), np.nan, "f")}]), "have NaN"),
]


@pytest.mark.parametrize(("options", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_input_is_named_and_nothing_is_written(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    net = convolutions()
    given = {"feeds": net.feeds(2), **options}
    with pytest.raises(SardonyxError, match=message):
        quantized(net.model(), given.pop("feeds"), tmp_path / "q.onnx", given.pop("budget"), **given)
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_integers_needs_a_metric(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[n, 4] x) => (int64[n, 1] y)
        <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { z = MatMul(x, w)  y = ArgMax<axis = 1>(z) }"""
    with pytest.raises(InvalidArgument, match="no tensor of floats"):
        quantized(onnx.parser.parse_model(text), [{"x": np.ones((2, 4), "f")}], tmp_path / "q.onnx", 20.0)


@pytest.mark.parametrize("reasons", [(), ("Other processes took 1.9 of 2 cores.",)])
def test_a_busy_machine_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reasons: tuple[str, ...]) -> None:
    monkeypatch.setattr(Stopwatch, "disturbances", lambda self: reasons)
    net, budget = convolutions(), Budget(min_sqnr_db=15, must_be_faster=False)
    report = quantized(net.model(), net.feeds(3), tmp_path / "q.onnx", budget, stopwatch=None)
    told = [note for note in report.notes if "machine was busy" in note]
    assert told == ["the machine was busy, so that times and gains mean little: " + r.rstrip(".") for r in reasons]
