"""quantize_dynamic beside onnxruntime's."""

from __future__ import annotations

from pathlib import Path

import pytest

from sardonyx.quantization import QuantType
from tests.quantization.graphs import NETWORKS
from tests.quantization.oracle import Both

pytest.importorskip("onnxruntime", reason="onnxruntime comes with the test extra")


@pytest.mark.sliced(3)
@pytest.mark.parametrize("weight_type", [QuantType.QInt8, QuantType.QUInt8], ids=str)
@pytest.mark.parametrize("reduce_range", [False, True], ids=["whole", "reduced"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
@pytest.mark.parametrize("name", NETWORKS)
def test_same_model(name: str, per_channel: bool, reduce_range: bool, weight_type: QuantType, tmp_path: Path) -> None:
    Both(
        NETWORKS[name](),
        tmp_path,
        static=False,
        per_channel=per_channel,
        reduce_range=reduce_range,
        weight_type=weight_type,
    ).check()
