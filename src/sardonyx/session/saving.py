"""Saves models with initializers in files of the caller's choice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sardonyx.errors import Fail
from sardonyx.writing import temporary_name, write_together

if TYPE_CHECKING:
    import onnx

EXTERNAL_FILE = "session.optimized_model_external_initializers_file_name"
EXTERNAL_MINIMUM = "session.optimized_model_external_initializers_min_size_in_bytes"
PAGE = 4096
"""Alignment of external data, so that it can be mapped."""

Place = Callable[["onnx.TensorProto"], "tuple[str, int, int] | None"]
"""Where an initializer was written: file, offset and size; None to leave it in the model."""


@contextmanager
def saved(path: str, config: Mapping[str, str]) -> Iterator[str | None]:
    """Prepare to write a model at ``path``, if given, with large initializers in the file that the configuration
    names.
    """
    name = config.get(EXTERNAL_FILE)
    if not name or not path:
        yield path or None
        return
    import onnx

    first = os.path.join(os.path.dirname(path), temporary_name(os.path.basename(path)))
    try:
        yield first
        write_external(onnx.load(first), path, name, int(config.get(EXTERNAL_MINIMUM, "1024")))
    except Fail as error:
        error.where = path if error.where == first else error.where
        raise
    finally:
        for each in (first, f"{first}.data"):
            with suppress(OSError):
                os.unlink(each)


def write_external(proto: onnx.ModelProto, path: str, name: str, minimum: int) -> None:
    """Write a model, with initializers of at least ``minimum`` bytes in a separate file."""
    chunks: list[bytes] = []
    end = 0

    def place(tensor: onnx.TensorProto) -> tuple[str, int, int] | None:
        nonlocal end
        data = tensor.raw_data
        if len(data) < max(minimum, 1):
            return None
        offset = end + -end % PAGE
        chunks.extend((bytes(offset - end), data))
        end = offset + len(data)
        return (name, offset, len(data))

    relocate(proto, place)
    try:
        write_together([(os.path.join(os.path.dirname(path), name), chunks), (path, [proto.SerializeToString()])])
    except OSError as error:
        raise Fail(f"the model cannot be written ({error.strerror})", where=path) from None


def relocate(proto: onnx.ModelProto, place: Place) -> None:
    """Move every initializer of the main graph to where ``place`` puts it."""
    import onnx

    for tensor in proto.graph.initializer:
        where = place(tensor)
        if where is None:
            continue
        for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
            tensor.ClearField(field)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in zip(("location", "offset", "length"), where, strict=True):
            tensor.external_data.add(key=key, value=str(value))
