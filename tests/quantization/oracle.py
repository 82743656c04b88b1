"""onnxruntime's quantizer beside ours, on the same model, data and arguments."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import sardonyx as ort
import sardonyx.quantization as ours
from tests.quantization.graphs import Feeds, Network


class Reader:
    """Samples one after the other, or some of them."""

    def __init__(self, data: list[Feeds]) -> None:
        self.data, self.left = data, iter(data)

    def get_next(self) -> Feeds | None:
        return next(self.left, None)

    def __len__(self) -> int:
        return len(self.data)

    def set_range(self, start_index: int, end_index: int) -> None:
        self.left = iter(self.data[start_index:end_index])


def translated(value: Any, module: Any) -> Any:
    """Arguments with the enumerations of another module."""
    if isinstance(value, (ours.QuantType, ours.QuantFormat, ours.CalibrationMethod)):
        kinds = module if hasattr(module, type(value).__name__) else module.calibrate
        return getattr(kinds, type(value).__name__)[value.name]
    if isinstance(value, dict):
        return {key: translated(each, module) for key, each in value.items()}
    if isinstance(value, list):
        return [translated(each, module) for each in value]
    return value


class Both:
    """The files that the two quantizers write."""

    def __init__(self, network: Network, folder: Path, *, static: bool = True, **arguments: Any) -> None:
        import onnxruntime.quantization as theirs

        self.network = network
        self.source, self.mine, self.other = (str(folder / f"{name}.onnx") for name in ("float", "mine", "other"))
        onnx.save(network.model, self.source)
        given = translated(arguments, theirs)
        self.failure = ""
        """What onnxruntime's quantizer said, where it failed."""
        if static:
            ours.quantize_static(self.source, self.mine, Reader(network.data), **arguments)
        else:
            ours.quantize_dynamic(self.source, self.mine, **arguments)
        try:
            if static:
                theirs.quantize_static(self.source, self.other, Reader(network.data), **given)
            else:
                theirs.quantize_dynamic(self.source, self.other, **given)
        except Exception as error:  # of any class
            self.failure = f"{type(error).__name__}: {error}"

    def check(self, *, tolerance: float = 0.02) -> None:
        """The same nodes with the same scales and integers, a legal model, and results that agree."""
        assert not self.failure, self.failure
        mine, other = onnx.load(self.mine), onnx.load(self.other)
        assert operators(mine) == operators(other)
        found, expected = arrays(mine), arrays(other)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            same(found[name], array, name)
        assert scalar_fields(mine) >= scalar_fields(other)
        onnx.checker.check_model(self.mine)
        self.check_results(tolerance=tolerance)

    def check_results(self, *, tolerance: float = 0.02) -> None:
        """Our file and onnxruntime's give the same in onnxruntime, and ours gives it here too."""
        expected, found, here = run_there(self.other, self.data), run_there(self.mine, self.data), self.run_here()
        reach = [max(np.abs(each).max(), 1e-6) for each in expected]
        for i, array in enumerate(expected):
            np.testing.assert_allclose(found[i], array, atol=tolerance * reach[i])
            np.testing.assert_allclose(here[i], array, atol=(tolerance + 0.02) * reach[i])

    def check_better(self, *, tolerance: float = 0.03, least: float = 0.1) -> None:
        """Our file is legal, runs in both engines alike, and is no farther from the float model than onnxruntime's.

        ``least``: a distance that is always allowed, as a share of the largest number.
        """
        onnx.checker.check_model(self.mine)
        exact, there, here = run_there(self.source, self.data), run_there(self.mine, self.data), self.run_here()
        for i, array in enumerate(exact):
            reach = max(np.abs(array).max(), 1e-6)
            np.testing.assert_allclose(here[i], there[i], atol=tolerance * reach)
            assert distance(there[i], array) <= max(least, 1.2 * self._distance_of_other(i, array))

    def _distance_of_other(self, i: int, exact: Any) -> float:
        try:
            return distance(run_there(self.other, self.data)[i], exact)
        except Exception:  # the file is missing, or does not run
            return 0.0

    @property
    def data(self) -> Feeds:
        return self.network.data[0]

    def run_here(self) -> list[Any]:
        return list(ort.InferenceSession(self.mine).run(None, self.data))


def scalar_fields(model: onnx.ModelProto) -> set[str]:
    """The single scales and zero points that programs may read from ``float_data`` and ``int32_data``."""
    return {
        each.name
        for each in model.graph.initializer
        if each.name.endswith(("_scale", "_zero_point")) and len(each.float_data) + len(each.int32_data) == 1
    }


def run_there(path: str, feeds: Feeds) -> list[Any]:
    """Results of a model in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return list(onnxruntime.InferenceSession(path, options).run(None, feeds))


def distance(found: Any, exact: Any) -> float:
    """The root of the mean square difference, as a share of the largest number."""
    difference = np.asarray(found, np.float64) - exact
    return float(np.sqrt(np.mean(difference**2)) / max(np.abs(exact).max(), 1e-6))


def same(found: np.ndarray, expected: np.ndarray, name: str) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=4e-6, err_msg=name)
    else:  # a bias divided by a scale that differs in its last bit may be off by a few parts in a million
        np.testing.assert_allclose(
            found.astype(np.float64), expected.astype(np.float64), rtol=2e-6, atol=2 if expected.itemsize == 4 else 0,
            err_msg=name,
        )  # fmt: skip


def operators(model: onnx.ModelProto) -> Counter[tuple[str, str]]:
    return Counter((node.domain, node.op_type) for node in model.graph.node)


def arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
