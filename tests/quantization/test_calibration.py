"""Calibration beside onnxruntime's: the same ranges by every method, and tables that both read."""

from __future__ import annotations

import importlib
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx.quantization as ours
from sardonyx.quantization import CalibrationMethod
from sardonyx.quantization.calibrate import create_calibrator
from tests.quantization.graphs import NETWORKS, Feeds, convnet, perceptron
from tests.quantization.oracle import Reader, translated

theirs = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime comes with the test extra")

METHODS: list[tuple[CalibrationMethod, dict[str, Any], float]] = [
    (CalibrationMethod.MinMax, {}, 1e-6),
    (CalibrationMethod.MinMax, {"symmetric": True}, 1e-6),
    (CalibrationMethod.MinMax, {"per_channel": True}, 1e-6),
    (CalibrationMethod.MinMax, {"moving_average": True, "averaging_constant": 0.2}, 1e-6),
    (CalibrationMethod.Entropy, {}, 0.01),
    (CalibrationMethod.Entropy, {"num_bins": 512, "symmetric": True}, 0.05),
    (CalibrationMethod.Percentile, {}, 1e-3),
    (CalibrationMethod.Percentile, {"percentile": 99.0}, 2e-3),
    (CalibrationMethod.Percentile, {"num_bins": 512, "symmetric": False}, 4e-3),
    (CalibrationMethod.Distribution, {}, 1e-3),
    (CalibrationMethod.Distribution, {"num_bins": 512}, 1e-3),
]
"""Options, and how far the ends of a range may be apart, as a share of it: our histograms have other, finer bins."""


@pytest.mark.sliced(3)
@pytest.mark.parametrize("method, options, tolerance", METHODS, ids=str)
@pytest.mark.parametrize("name", ["convnet", "transformer"])
def test_ranges(
    name: str, method: CalibrationMethod, options: dict[str, Any], tolerance: float, tmp_path: Path
) -> None:
    network, source = NETWORKS[name](), tmp_path / "model.onnx"
    onnx.save(network.model, source)
    mine = create_calibrator(source, calibrate_method=method, extra_options=options)
    other = theirs.create_calibrator(
        source,
        augmented_model_path=str(tmp_path / "augmented.onnx"),
        calibrate_method=translated(method, theirs),
        extra_options=options,
    )
    again = method is CalibrationMethod.MinMax and "per_channel" not in options
    parts = [network.data[:2], network.data[2:]] if again else [network.data]
    for calibrater in (mine, other):
        for part in parts:
            calibrater.collect_data(Reader(part))
    found, expected = mine.compute_data(), other.compute_data()
    assert set(found.keys()) == set(expected.keys())
    for tensor in expected.keys():  # noqa: SIM118
        x, y = found[tensor], expected[tensor]
        assert sorted(x.to_dict()) == sorted(y.to_dict())
        reach = max(np.abs(y.highest).max(), np.abs(y.lowest).max(), 1e-9)
        for field in ("lowest", "highest", "avg", "std"):
            if hasattr(y, field):
                a, b = np.asarray(getattr(x, field)), np.asarray(getattr(y, field))
                assert (a.shape, a.dtype) == (b.shape, b.dtype), (tensor, field)
                np.testing.assert_allclose(a, b, atol=tolerance * reach, rtol=0, err_msg=f"{tensor} {field}")


@pytest.mark.parametrize("method", [CalibrationMethod.MinMax, CalibrationMethod.Percentile], ids=str)
def test_tables_of_one_are_read_by_the_other(method: CalibrationMethod, tmp_path: Path) -> None:
    network = perceptron()
    source, made = tmp_path / "model.onnx", tmp_path / "made.onnx"
    onnx.save(network.model, source)
    settings = {"calibrate_method": method, "activation_type": ours.QuantType.QUInt8}
    written: dict[str, set[bytes]] = {}
    for home in (ours, theirs):
        table = tmp_path / f"{home.__name__}.json"
        arguments = translated(settings, home)
        home.quantize_static(source, made, Reader(network.data), calibration_cache_path=table, **arguments)
        first = scales(made)
        for reader in (ours, theirs):
            arguments = translated(settings, reader)
            reader.quantize_static(source, made, None, calibration_cache_path=table, **arguments)
            again = scales(made)
            assert again.keys() == first.keys()
            for name in first:
                np.testing.assert_allclose(again[name], first[name], rtol=1e-5, err_msg=name)
        written[home.__name__] = set(json.loads(table.read_text())["data"])
    assert len({frozenset(each) for each in written.values()}) == 1


def scales(path: Path) -> dict[str, Any]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer if "_scale" in t.name}


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    for package in (ours, theirs):
        load = importlib.import_module(f"{package.__name__}.calibrate").load_tensors_data
        with pytest.raises(FileNotFoundError):
            load(tmp_path / "none.json")


def test_flatbuffers_table_is_onnxruntimes(tmp_path: Path) -> None:
    network = perceptron()
    calibrater = create_calibrator(network.model)
    calibrater.collect_data(Reader(network.data))
    found = calibrater.compute_data()
    for home in (ours, theirs):
        (tmp_path / home.__name__).mkdir()
    ours.write_calibration_table(found, str(tmp_path / ours.__name__))
    ranges = {name: theirs.TensorData(lowest=each.lowest, highest=each.highest) for name, each in found.items()}
    theirs.write_calibration_table(
        theirs.TensorsData(theirs.CalibrationMethod.MinMax, ranges), str(tmp_path / theirs.__name__)
    )
    table = pytest.importorskip("onnxruntime.quantization.CalTableFlatBuffers.TrtTable")
    pairs = []
    for home in (ours, theirs):
        content = (tmp_path / home.__name__ / "calibration.flatbuffers").read_bytes()
        root = table.TrtTable.GetRootAsTrtTable(content, 0)
        pairs.append({root.Dict(i).Key(): root.Dict(i).Value() for i in range(root.DictLength())})
        lines = (tmp_path / home.__name__ / "calibration.cache").read_text().split()
        pairs.append({k.encode(): v.encode() for k, v in zip(lines[::2], lines[1::2], strict=True)})
    assert pairs[0] == pairs[1] == pairs[2] == pairs[3] and pairs[0]


class Endless:
    """Samples that are made when they are asked for."""

    def __init__(self, count: int) -> None:
        self.left, self.random = count, np.random.default_rng(0)

    def get_next(self) -> Feeds | None:
        self.left -= 1
        return {"x": self.random.standard_normal((2, 3, 16, 16)).astype(np.float32)} if self.left >= 0 else None


@pytest.mark.parametrize("method", CalibrationMethod, ids=str)
def test_memory_does_not_grow_with_the_samples(method: CalibrationMethod) -> None:
    calibrater = create_calibrator(convnet().model, calibrate_method=method)
    calibrater.collect_data(Endless(2))
    tracemalloc.start()
    try:
        calibrater.collect_data(Endless(5))
        _, few = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        calibrater.collect_data(Endless(60))
        _, many = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert many < few + 200_000


def test_any_iterable_of_feeds_is_data(tmp_path: Path) -> None:
    network = perceptron()

    def feeds() -> Iterator[Feeds]:
        yield from network.data

    for i, data in enumerate((network.data, feeds(), Reader(network.data))):
        ours.quantize_static(network.model, tmp_path / f"{i}.onnx", data)
    contents = {(tmp_path / f"{i}.onnx").read_bytes() for i in range(3)}
    assert len(contents) == 1
