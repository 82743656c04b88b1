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


def test_sequences_and_maps_come_back(tmp_path: Path) -> None:
    half = np.array([1.5], ml_dtypes.bfloat16)
    feeds = {
        "s:1": [np.ones((2, 1)), half, np.array(["a", ""], object)],
        "m": {"b": 1.5, "a": np.arange(2)},
        "rows": [{0: 0.25, 7: 1.0}, {}],
        "x": np.ones(1),
        "empty": [],
    }
    store(tmp_path / "feeds.npz", **{"in": feeds, "out": {"m": np.zeros(1)}})
    found = stored(tmp_path / "feeds.npz", "in")
    assert list(found) == list(feeds) and found["rows"] == feeds["rows"] and found["empty"] == []
    assert found["s:1"][1].dtype == half.dtype and found["m"]["b"] == 1.5 and list(found["m"]) == ["b", "a"]
    np.testing.assert_array_equal(found["m"]["a"], np.arange(2))
    for one, other in zip(found["s:1"], feeds["s:1"], strict=True):
        assert one.dtype == other.dtype and (one == other).all()
    assert (stored(tmp_path / "feeds.npz", "out")["m"] == 0).all()


def test_other_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="only tensors"):
        store(tmp_path / "feeds.npz", **{"in": {"x": object()}})
    assert not list(tmp_path.iterdir())
