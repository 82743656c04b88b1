"""Files that are no models are called what they are."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest

import sardonyx
from sardonyx.errors import InvalidArgument, InvalidProtobuf


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", "x" * 100)
    return file.getvalue()


def _safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


FILES = {
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "HTML page": b"\n<!DOCTYPE html>\n<html><head><title>404</title></head></html>",
    "zip archive": _zip(),
    "safetensors": _safetensors(),
    "TFLite": b"\x1c\0\0\0TFL3" + bytes(100),
    "ORT format": b"\x1c\0\0\0ORTM" + bytes(100),
    "pickle": pickle.dumps({"a": [1, 2, 3] * 20}, protocol=2),
    "gzip": gzip.compress(b"abc" * 100),
    "JPEG": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(50),
    "PNG": b"\x89PNG\r\n\x1a\n" + bytes(50),
    "PDF": b"%PDF-1.7\n" + bytes(50),
    "GGUF": b"GGUF\3\0\0\0" + bytes(50),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(50),
    "begins with 'resnet readme": "resnet readme: größer\nplease read".encode(),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("is_path", [True, False])
def test_messages_name_the_kind_of_file(kind: str, is_path: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(FILES[kind])
    with pytest.raises((InvalidProtobuf, InvalidArgument)) as caught:
        sardonyx.InferenceSession(str(path) if is_path else FILES[kind])
    said = str(caught.value)
    assert kind in said
    assert (str(path) in said) is is_path
    assert "wire type" not in said


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.touch()
    with pytest.raises(InvalidArgument, match="No graph was found in the protobuf; it is empty") as caught:
        sardonyx.InferenceSession(path)
    assert str(path) in str(caught.value)


def test_a_folder_names_the_models_in_it(tmp_path: Path) -> None:
    (tmp_path / "encoder.onnx").touch()
    with pytest.raises(InvalidProtobuf, match=r"it is a folder.*name a file in it: encoder\.onnx"):
        sardonyx.InferenceSession(tmp_path)


def test_a_truncated_model_is_reported_as_such(tmp_path: Path, demo_dir: Path) -> None:
    whole = (demo_dir / "digits.onnx").read_bytes()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidProtobuf, match=r"truncated or corrupt.*and all of it\?") as caught:
        sardonyx.InferenceSession(path)
    assert str(path) in str(caught.value)
