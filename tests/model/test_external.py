"""External data: read from where it may lie, and never before it is needed. Escapes are among the hostile cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from sardonyx import errors
from sardonyx.model.load import load
from tests.model.hostile.cases import model, node, untyped
from tests.model.hostile.outside import WEIGHT, stored


def weight(source: Any, **options: Any) -> list[float]:
    return load(source, **options).graph.initializers["c"].numpy().tolist()


def test_a_file_is_not_read_before_it_is_needed(tmp_path: Path) -> None:
    """Over 2 GB of weights in sparse files: loading costs nothing, and one element can be read."""
    nbytes = 3 << 30
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(nbytes)
        file.seek(nbytes - 4)
        file.write(np.float32(7).tobytes())
    made = stored("big.bin", dims=(nbytes // 4,))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    tensor = load(tmp_path / "m.onnx").graph.initializers["c"].const
    assert tensor is not None and not tensor.is_loaded and tensor.nbytes == nbytes
    (tmp_path / "m.onnx").write_bytes(stored("big.bin", dims=(1,), offset=nbytes - 4).SerializeToString())
    assert load(tmp_path / "m.onnx").graph.initializers["c"].numpy() == [7]


def test_a_model_file_over_2_gb(tmp_path: Path) -> None:
    """protobuf itself ends at 2 GB; the scan does not."""
    from sardonyx.model.wire import varint

    def field(number: int, content: bytes, nbytes: int | None = None) -> bytes:
        return varint(number << 3 | 2) + varint(len(content) if nbytes is None else nbytes) + content

    payload = 3 << 30
    head = field(8, b"c") + b"\x08" + varint(payload // 4) + b"\x10\x01" + varint(9 << 3 | 2) + varint(payload)
    tensor = varint(5 << 3 | 2) + varint(len(head) + payload) + head
    rest = model(node("Add", "x c"), outputs=[untyped()])
    graph = rest.graph.SerializeToString()
    rest.ClearField("graph")
    start = rest.SerializeToString() + varint(7 << 3 | 2) + varint(len(graph) + len(tensor) + payload) + graph + tensor
    with (tmp_path / "m.onnx").open("wb") as file:
        file.write(start)
        file.truncate(len(start) + payload)
    constant = load(tmp_path / "m.onnx").graph.initializers["c"].const
    assert constant is not None and constant.nbytes == payload and not constant.is_loaded


def test_offsets_and_alignment(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_bytes(b"abc" + WEIGHT + b"tail")
    (tmp_path / "m.onnx").write_bytes(stored("d.bin", offset=3, length=8).SerializeToString())
    assert weight(tmp_path / "m.onnx") == [3, 5]


def test_sub_byte_types(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_bytes(bytes([0x21, 0x43, 0x05]))
    (tmp_path / "m.onnx").write_bytes(stored("d.bin", dims=(5,), data_type=TensorProto.UINT4).SerializeToString())
    assert load(tmp_path / "m.onnx", infer=False).graph.initializers["c"].numpy().astype(int).tolist() == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_many_tensors_share_one_file(tmp_path: Path) -> None:
    arrays = {f"w{i}": np.full(1000, i, np.float32) for i in range(5)}
    made = model(
        [node("Sum", "x " + " ".join(arrays))], *(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    )
    onnx.save_model(made, tmp_path / "m.onnx", save_as_external_data=True, location="all.bin", size_threshold=0)
    graph = load(tmp_path / "m.onnx").graph
    assert all((graph.initializers[n].numpy() == a).all() for n, a in arrays.items())


def test_a_folder_for_bytes(tmp_path: Path) -> None:
    (tmp_path / "here.bin").write_bytes(WEIGHT)
    data = stored("here.bin").SerializeToString()
    assert weight(data, folder=str(tmp_path)) == [3, 5]
    with pytest.raises(errors.Fail):
        load(data, folder=str(tmp_path / "elsewhere"))


def test_files_in_memory() -> None:
    data = stored("anywhere/at all.bin").SerializeToString()
    assert weight(data, in_memory={"anywhere/at all.bin": WEIGHT}) == [3, 5]
    with pytest.raises(errors.Fail, match="beyond"):
        load(data, in_memory={"anywhere/at all.bin": b""})


def test_the_hugging_face_cache(tmp_path: Path) -> None:
    """snapshots/REV/model.onnx and its data are links to blobs/HASH."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "rev"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "aaa").write_bytes(stored("model.onnx_data").SerializeToString())
    (blobs / "bbb").write_bytes(WEIGHT)
    (tmp_path / "secret.bin").write_bytes(WEIGHT)
    (snapshot / "model.onnx").symlink_to("../../blobs/aaa")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/bbb")
    assert weight(snapshot / "model.onnx") == [3, 5]
    (snapshot / "model.onnx_data").unlink()
    (snapshot / "model.onnx_data").symlink_to("../../secret.bin")
    with pytest.raises(errors.InvalidGraph, match="out of the model's folder"):
        load(snapshot / "model.onnx")


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "here.bin").write_bytes(WEIGHT)
    (real / "m.onnx").write_bytes(stored("here.bin").SerializeToString())
    (tmp_path / "link").symlink_to("real")
    assert weight(tmp_path / "link" / "m.onnx") == [3, 5]


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here.bin").write_bytes(WEIGHT)
    (tmp_path / "m.onnx").write_bytes(stored("here.bin").SerializeToString())
    monkeypatch.chdir(tmp_path)
    assert weight("m.onnx") == [3, 5]
