"""``explain(stage="cpu")`` names the kernels of every compiled part and the variants that were chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

import sardonyx
from sardonyx.errors import InvalidArgument


def test_every_step_of_a_model_is_named(root: Path) -> None:
    session = sardonyx.InferenceSession(root / "demo" / "digits.onnx")
    steps = session.explain(stage="cpu")
    (rows,) = steps.parts
    assert all(row.kernel and row.nodes for row in rows)
    convolutions = [row for row in rows if row.kernel.startswith("conv")]
    assert len(convolutions) == 3 and all(row.variant for row in convolutions)
    text = str(steps)
    assert text.startswith(f"part 0: {len(rows)} steps") and "Conv node 'conv0'" in text


def test_a_session_from_the_cache_names_them_too(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))
    first, second = (sardonyx.InferenceSession(root / "demo" / "digits.onnx").explain(stage="cpu") for _ in range(2))
    assert first == second


def test_other_stages_are_refused(root: Path) -> None:
    with pytest.raises(InvalidArgument, match="expected: cpu; got: gpu"):
        sardonyx.InferenceSession(root / "demo" / "digits.onnx").explain(stage="gpu")
