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
from quantization.graphs import Feeds, Network


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
        if static:
            ours.quantize_static(self.source, self.mine, Reader(network.data), **arguments)
            theirs.quantize_static(self.source, self.other, Reader(network.data), **translated(arguments, theirs))
        else:
            ours.quantize_dynamic(self.source, self.mine, **arguments)
            theirs.quantize_dynamic(self.source, self.other, **translated(arguments, theirs))

    def check(self, *, tolerance: float = 0.02) -> None:
        """The same nodes with the same scales and integers, a legal model, and results that agree."""
        mine, other = onnx.load(self.mine), onnx.load(self.other)
        assert operators(mine) == operators(other)
        found, expected = arrays(mine), arrays(other)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            same(found[name], array, name)
        onnx.checker.check_model(self.mine)
        self.check_results(tolerance=tolerance)

    def check_results(self, *, tolerance: float = 0.02) -> None:
        import onnxruntime

        feeds = self.network.data[0]
        (expected,) = onnxruntime.InferenceSession(self.other).run(None, feeds)
        (found,) = onnxruntime.InferenceSession(self.mine).run(None, feeds)
        (here,) = ort.InferenceSession(self.mine).run(None, feeds)
        reach = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, atol=tolerance * reach)
        np.testing.assert_allclose(here, expected, atol=(tolerance + 0.02) * reach)


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
