"""Saved models whose initializers are moved to files of the caller's choice."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sardonyx.errors import Fail

if TYPE_CHECKING:
    import onnx

EXTERNAL_FILE = "session.optimized_model_external_initializers_file_name"
EXTERNAL_MINIMUM = "session.optimized_model_external_initializers_min_size_in_bytes"
PAGE = 4096
"""External data begins at multiples of this, so that it can be mapped."""

Place = Callable[["onnx.TensorProto"], "tuple[str, int, int] | None"]
"""Where an initializer goes: file, offset and bytes, already written there; None for inside the model."""


def move_weights_out(path: str, config: Mapping[str, str]) -> None:
    """Move the large initializers of the model at ``path`` to the file that the configuration names, if it does."""
    name = config.get(EXTERNAL_FILE)
    if name:
        write_external(path, name, int(config.get(EXTERNAL_MINIMUM, "1024")))


def write_external(path: str, name: str, minimum: int) -> None:
    """Move initializers of at least ``minimum`` bytes to a file beside the model."""
    import onnx

    proto = onnx.load(path)
    try:
        with open(os.path.join(os.path.dirname(path), name), "wb") as file:

            def place(tensor: onnx.TensorProto) -> tuple[str, int, int] | None:
                data = tensor.raw_data
                if len(data) < max(minimum, 1):
                    return None
                file.write(bytes(-file.tell() % PAGE))
                offset = file.tell()
                file.write(data)
                return (name, offset, len(data))

            relocate(proto, place)
        with open(path, "wb") as file:
            file.write(proto.SerializeToString())
    except OSError as error:
        raise Fail(f"the model cannot be written ({error.strerror})", where=path) from None


def relocate(proto: onnx.ModelProto, place: Place) -> None:
    """Put every initializer of the main graph where ``place`` says."""
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
