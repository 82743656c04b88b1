"""Inputs from files of every kind, and files that are no inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.bench.arrays import store
from sardonyx.bench.files import read_inputs
from sardonyx.errors import InvalidArgument, InvalidProtobuf, NoSuchFile
from sardonyx.session.metadata import NodeArg

X, Y = NodeArg("x", "tensor(float)", [2, 3]), NodeArg("y=z", "tensor(int64)", ["n"])
A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 2, 3])


def test_arrays_by_name_and_by_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", **{"x": A, "y=z": B})
    np.save(tmp_path / "a.npy", A)
    (tmp_path / "b.pb").write_bytes(onnx.numpy_helper.from_array(B, "other").SerializeToString())
    store(tmp_path / "kept.npz", **{"in": {"x": A, "y=z": B}, "out": {"w": A}})
    np.savez(tmp_path / "keyed.npz", first=A, second=B)
    named = ["y=z=b.pb", "x=a.npy"], ["y=z=b.pb", "a.npy"], ["keyed.npz:first", "y=z=keyed.npz:second"]
    for given in (["all.npz"], ["kept.npz"], ["a.npy", "b.pb"], *named):
        paths = [
            f"{g.rpartition('=')[0]}={tmp_path / g.rpartition('=')[2]}" if "=" in g else str(tmp_path / g)
            for g in given
        ]
        found = read_inputs([X, Y], paths)
        assert np.array_equal(found["x"], A) and np.array_equal(found["y=z"], B)
    assert list(read_inputs([X, Y], [str(tmp_path / "a.npy")])) == ["x"]


@pytest.mark.parametrize(
    ("declared", "shape"),
    [
        (["n", 3, 4, 6], (1, 3, 4, 6)),
        (["n", 4, 6, 3], (1, 4, 6, 3)),
        (["n", 3, "h", "w"], (1, 3, 8, 10)),
        ([3, 4, 6], (3, 4, 6)),
        (["n", 1, 4, 6], (1, 1, 4, 6)),
        (["n", 4, 6], (1, 4, 6)),
    ],
)
@pytest.mark.parametrize("kind", ["uint8", "float"])
def test_images(tmp_path: Path, declared: list[int | str | None], shape: tuple[int, ...], kind: str) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 10, 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "photo.png")
    found = read_inputs([NodeArg("image", f"tensor({kind})", declared)], [str(tmp_path / "photo.png")])["image"]
    assert found.shape == shape and found.dtype == ("uint8" if kind == "uint8" else "float32")
    if kind == "float":
        assert 0 <= found.min() < found.max() <= 1
    if declared[-1] == "w" and kind == "uint8":
        assert np.array_equal(found[0].transpose(1, 2, 0), pixels)


def test_files_that_are_no_inputs(tmp_path: Path) -> None:
    for name in ("text.npy", "text.npz", "text.png", "text.pb", "text.txt"):
        (tmp_path / name).write_text("this is text")
    np.savez(tmp_path / "other.npz", w=A)
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    image = NodeArg("image", "tensor(uint8)", ["n", 3, 4, 4])
    for name, error, words in (
        ("nothing.npy", NoSuchFile, "no file"),
        ("text.npy", InvalidArgument, "cannot be read"),
        ("text.npz", InvalidArgument, "cannot be read"),
        ("text.png", InvalidArgument, "cannot be read"),
        ("text.pb", InvalidProtobuf, "TensorProto"),
        ("text.txt", InvalidArgument, "an input is read from"),
        ("other.npz", InvalidArgument, "no inputs"),
        ("objects.npy", InvalidArgument, "cannot be read"),
    ):
        with pytest.raises(error, match=words):
            read_inputs([image], [str(tmp_path / name)])


def test_files_that_do_not_fit_the_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", A)
    path = str(tmp_path / "a.npy")
    for given, words in (
        ([path] * 3, "more files"),
        ([f"q={path}"], "no such input"),
        ([f"x={path}"] * 2, "two values"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            read_inputs([X, Y], given)
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("RGB", (4, 4)).save(tmp_path / "photo.png")
    with pytest.raises(InvalidArgument, match="takes no image"):
        read_inputs([X], [str(tmp_path / "photo.png")])
