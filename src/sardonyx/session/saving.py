"""Optimized models on disk, with weights inside or in files of the caller's choice."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from sardonyx.errors import Fail
from sardonyx.ir.tensor import Tensor
from sardonyx.session.engine import Engine

EXTERNAL_FILE = "session.optimized_model_external_initializers_file_name"
EXTERNAL_MINIMUM = "session.optimized_model_external_initializers_min_size_in_bytes"

PAGE = 4096
"""External data begins at multiples of this, so that it can be mapped."""

Place = Callable[[str, Tensor], "tuple[str, int, int] | None"]
"""Where an initializer goes: file, offset and bytes, the caller having written it there; None for inside the model."""


def write_optimized(engine: Engine, path: str, config: Mapping[str, str]) -> None:
    """Write the model, large initializers beside it when the configuration names a file for them."""
    name = config.get(EXTERNAL_FILE)
    if not name:
        engine.save(path)
        return
    write_with_external_file(engine, path, name, int(config.get(EXTERNAL_MINIMUM, "1024")))


def write_with_external_file(engine: Engine, path: str, name: str, minimum: int) -> None:
    """Write the model, and initializers of at least ``minimum`` bytes to a file beside it."""
    from sardonyx.model.save import tensor_to_proto

    try:
        with open(os.path.join(os.path.dirname(path), name), "wb") as file:

            def place(_: str, tensor: Tensor) -> tuple[str, int, int] | None:
                if tensor.nbytes < max(minimum, 1):
                    return None
                file.write(bytes(-file.tell() % PAGE))
                offset = file.tell()
                file.write(tensor_to_proto(tensor).raw_data)
                return (name, offset, tensor.nbytes)

            content = serialized(engine, place)
        with open(path, "wb") as file:
            file.write(content)
    except OSError as error:
        raise Fail(f"the model cannot be written ({error.strerror})", where=path) from None


def serialized(engine: Engine, place: Place) -> bytes:
    """The optimized model, each initializer where ``place`` puts it."""
    import onnx

    from sardonyx.model.save import Names, model_to_proto, tensor_to_proto
    from sardonyx.normalize.run import lowest_opset

    model = replace(engine.model, opsets={**engine.model.opsets, "": lowest_opset(engine.model)})
    proto = model_to_proto(model, weights=False)
    names = Names(model.graph)
    for value in model.graph.initializers.values():
        if value.const is None:
            continue
        where = place(names(value), value.const)
        if where is None:
            proto.graph.initializer.append(tensor_to_proto(value.const, names(value)))
            continue
        tensor = proto.graph.initializer.add(
            name=names(value),
            data_type=value.const.dtype.onnx,
            dims=value.const.shape,
            data_location=onnx.TensorProto.EXTERNAL,
        )
        for key, text in zip(("location", "offset", "length"), where, strict=True):
            tensor.external_data.add(key=key, value=str(text))
    return proto.SerializeToString()
