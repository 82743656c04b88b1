"""Recognizes files that are not ONNX models by their first bytes, and suggests what to do."""

from __future__ import annotations

import os

HEAD = 512
"""Bytes that are inspected."""

_MAGIC = (
    (b"version https://git-lfs", "a Git LFS pointer, which stands for the model: run `git lfs pull` to fetch it"),
    (b"PK\x03\x04", "a zip archive, such as torch.save writes: export the module with torch.onnx.export, or unpack it"),
    (b"\x1f\x8b", "compressed by gzip: decompress it"),
    (b"BZh", "compressed by bzip2: decompress it"),
    (b"\xfd7zXZ", "compressed by xz: decompress it"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: decompress it"),
    (b"\x89HDF\r\n", "HDF5, such as Keras writes: convert it with tf2onnx"),
    (b"GGUF", "GGUF, as llama.cpp reads it: export the model it was made from to ONNX"),
    (b"\x93NUMPY", "a numpy array, not a model"),
    (b"\xff\xd8\xff", "a JPEG image, not a model"),
    (b"\x89PNG", "a PNG image, not a model"),
    (b"%PDF", "a PDF document, not a model"),
)
_FLATBUFFERS = {
    b"TFL3": "a TFLite model: convert it with tf2onnx",
    b"ORTM": "a model in ORT format, which only onnxruntime reads: give the ONNX model that it was made from",
}


QUESTION = "is this an ONNX model, and all of it?"


def kind_of(head: bytes) -> str | None:
    """The kind of a file that is no ONNX model, and a hint; None if its first bytes do not tell."""
    if not head:
        return "it is empty: was a download or a copy interrupted?"
    for magic, what in _MAGIC:
        if head.startswith(magic):
            return f"it is {what}"
    if head[4:8] in _FLATBUFFERS:
        return f"it is {_FLATBUFFERS[head[4:8]]}"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "it is a Python pickle, such as torch.save writes: export the module with torch.onnx.export"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return "it is safetensors, which are weights without a graph: export the whole model to ONNX"
    if (written := _text(head)) is not None:
        if written.lower().startswith(("<!doctype html", "<html")):
            return "it is an HTML page, perhaps of a failed download: fetch the file itself"
        return f"it is text, which begins with {written[:40]!r}: is this an ONNX model?"
    return None


def hint_of_folder(path: str) -> str:
    """A hint that names the models in a folder that was given instead of a model."""
    try:
        models = sorted(name for name in os.listdir(path) if name.endswith(".onnx"))
    except OSError:
        models = []
    return f"name a file in it: {', '.join(models[:5])}" if models else "name the model's file"


def _text(head: bytes) -> str | None:
    """The first bytes as text; None where they are not."""
    try:
        written = head.decode("utf-8").lstrip("\ufeff \t\r\n")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            return None
        written = head[: error.start].decode("utf-8").lstrip("\ufeff \t\r\n")
    return written if written and all(c.isprintable() or c in "\t\r\n" for c in written) else None
