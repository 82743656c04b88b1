"""Arrays of every kind come back from a file."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from sardonyx.bench.arrays import store, stored
from sardonyx.errors import InvalidArgument

FEEDS = {
    "a/b:0": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "eighth": np.array([0.5], ml_dtypes.float8_e4m3fn),
    "words": np.array([["a", "größer"]], object),
    "flag": np.array(True),
}


def test_arrays_come_back(tmp_path: Path) -> None:
    path = tmp_path / "feeds.npz"
    store(path, **{"in": FEEDS, "out": {"y": np.ones(2)}})
    found = stored(path, "in")
    assert list(found) == list(FEEDS) and list(stored(path, "out")) == ["y"] and stored(path, "told") == {}
    for name, array in FEEDS.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert (found[name] == array).all()


def test_sequences_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="only tensors"):
        store(tmp_path / "feeds.npz", **{"in": {"x": [np.ones(2)]}})  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())
