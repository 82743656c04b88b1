"""A quantized model compared with its float model; the share of right answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sardonyx.errors import InvalidArgument
from sardonyx.quantization import quantize_dynamic
from sardonyx.quantization.accuracy import ShareRight
from sardonyx.quantization.outcome import Baseline, quantized_operators


def test_what_quantization_costs_is_measured(demo_dir: Path, tmp_path: Path) -> None:
    with np.load(demo_dir / "heldout.npz") as file:
        images, labels = file["images"], file["labels"]
    data = [{"image": part} for part in np.split(images, 10)]
    model, output = demo_dir / "digits.onnx", tmp_path / "q.onnx"
    baseline = Baseline(model, data, ShareRight(labels))
    quantize_dynamic(model, output)
    found = baseline.compare(output)
    assert found.metric is not None and found.metric[0] == 359 / 360 and found.metric[1] > 0.98
    assert found.nbytes == (model.stat().st_size, output.stat().st_size) and found.samples == 10
    assert found.operators["Conv"] == (3, 0) and found.operators["ConvInteger"] == (0, 3)
    assert 10 < found.sqnr_db < 60 and found.cosine > 0.95 and found.is_finite
    assert quantized_operators(output) == 8 and quantized_operators(model) == 0
    same = baseline.compare(model)
    assert same.sqnr_db == np.inf and same.operators == {} and same.metric == (359 / 360, 359 / 360)


SCORES = np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]


@pytest.mark.parametrize(
    ("outputs", "output", "share"),
    [
        ([{"label": np.array([0, 2])}, {"label": np.array([1, 0])}], None, 0.75),
        ([{"scores": SCORES}], None, 1.0),
        ([{"scores": SCORES, "label": np.array([0, 0, 0, 0])}], None, 0.25),
        ([{"scores": SCORES, "label": np.array([0, 0, 0, 0])}], "scores", 1.0),
        ([{"count": np.array([4]), "scores": SCORES}], None, 1.0),
        ([{"scores": SCORES[i]} for i in range(4)], None, 1.0),
        ([{"words": [{"a": 1}], "scores": SCORES}], None, 1.0),
    ],
)
def test_share_of_right_answers(outputs: list[dict[str, object]], output: str | None, share: float) -> None:
    assert ShareRight(np.array([0, 2, 1, 1]), output)(outputs) == share


def test_words_as_labels() -> None:
    assert ShareRight(np.array(["a", "b"]))([{"label": np.array(["a", "c"], object)}]) == 0.5


@pytest.mark.parametrize(
    ("outputs", "output", "said"),
    [
        ([{"label": np.array([0, 2, 1])}], None, "no output has an answer for each label"),
        ([{"label": np.array([0, 2, 1, 1])}], "class", "no such output"),
    ],
)
def test_outputs_that_do_not_fit(outputs: list[dict[str, object]], output: str | None, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        ShareRight(np.array([0, 2, 1, 1]), output)(outputs)
    with pytest.raises(InvalidArgument, match="no labels"):
        ShareRight([])
