"""Samples for calibration and evaluation from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.bench.files import read_array
from sardonyx.bench.samples import read_samples
from sardonyx.errors import InvalidArgument, NoSuchFile
from sardonyx.session.metadata import NodeArg


def declared(**shapes: list[object]) -> list[NodeArg]:
    return [NodeArg(name, "tensor(float)", shape) for name, shape in shapes.items()]


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


X = declared(x=["batch", 3])


def test_an_array_is_split_along_its_first_axis(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", numbers(5, 3))
    found = read_samples(X, [str(tmp_path / "x.npy")], batch=2)
    assert [each["x"].shape for each in found] == [(2, 3), (2, 3), (1, 3)]
    assert np.array_equal(np.concatenate([each["x"] for each in found]), numbers(5, 3))
    assert len(read_samples(X, [str(tmp_path / "x.npy")], most=3)) == 3


def test_a_fixed_batch_size_is_kept(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", numbers(5, 3))
    found = read_samples(declared(x=[2, 3]), [str(tmp_path / "x.npy")], batch=7)
    assert [each["x"].shape for each in found] == [(2, 3), (2, 3)]


def test_one_axis_more_counts_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=numbers(4, 2, 3), y=numbers(4))
    found = read_samples(declared(x=["batch", 3], y=[]), [str(tmp_path / "all.npz")])
    assert len(found) == 4 and found[1]["x"].shape == (2, 3) and found[3]["y"] == 3


def test_arrays_by_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", images=numbers(4, 3), labels=np.arange(4))
    found = read_samples(X, [f"x={tmp_path / 'all.npz'}:images"])
    assert len(found) == 4 and np.array_equal(read_array(f"{tmp_path / 'all.npz'}:labels"), np.arange(4))


def test_a_folder_has_a_sample_in_each_file_or_folder(tmp_path: Path) -> None:
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", numbers(1, 3) + i)
    (tmp_path / "notes.txt").write_text("left out")
    assert [float(each["x"][0, 0]) for each in read_samples(X, [str(tmp_path)])] == [0, 1, 2]
    sets = tmp_path / "sets"
    for i in range(2):
        (sets / f"test_data_set_{i}").mkdir(parents=True)
        for name in ("input_0", "output_0"):
            tensor = onnx.numpy_helper.from_array(numbers(1, 3) + i)
            (sets / f"test_data_set_{i}" / f"{name}.pb").write_bytes(tensor.SerializeToString())
    assert [float(each["x"][0, 0]) for each in read_samples(X, [str(sets)])] == [0, 1]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (["none.npy"], NoSuchFile, "no file"),
        (["y.npz"], InvalidArgument, "no inputs"),
        (["y.npz:z"], InvalidArgument, "no such array"),
        (["x.npy:z"], InvalidArgument, "only an .npz"),
        (["two.npz:b", "two.npz:b"], InvalidArgument, "more files than inputs"),
        (["flat.npy"], InvalidArgument, "rank"),
        (["text.npy"], InvalidArgument, "cannot be read"),
        (["empty"], InvalidArgument, "no samples"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_files_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], error: type[Exception], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("y.npz", y=numbers(3))
    np.savez("two.npz", a=numbers(2, 3), b=numbers(2, 3))
    np.save("x.npy", numbers(2, 3))
    np.save("flat.npy", numbers(3))
    Path("text.npy").write_text("no array")
    Path("empty").mkdir()
    with pytest.raises(error, match=said):
        read_samples(X, given)


def test_inputs_with_different_numbers_of_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=numbers(4, 3), y=numbers(5, 3))
    with pytest.raises(InvalidArgument, match="different numbers of samples"):
        read_samples(declared(x=["batch", 3], y=["batch", 3]), [str(tmp_path / "all.npz")])
    with pytest.raises(InvalidArgument, match="several arrays"):
        read_array(str(tmp_path / "all.npz"))


def test_a_sample_that_lacks_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "0.npz", x=numbers(1, 3))
    with pytest.raises(InvalidArgument, match="lacks inputs"):
        read_samples(declared(x=["batch", 3], y=["batch", 3]), [str(tmp_path)])
