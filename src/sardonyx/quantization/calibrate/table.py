"""``write_calibration_table``: ranges in the three forms that TensorRT's provider of onnxruntime reads.

``calibration.flatbuffers`` holds one table with a vector of (key, value) tables. The few rules of the FlatBuffers
format that it needs are written out here: offsets are relative and unsigned, a table starts with the distance to its
vtable, and a vtable lists its own size, the size of the table, and where each field lies in it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.errors import Fail
from sardonyx.quantization.calibrate.cache import CalibrationCacheEncoder
from sardonyx.quantization.calibrate.tensors import TensorData
from sardonyx.writing import write_together


def write_calibration_table(calibration_cache: Mapping[str, TensorData], dir: str = ".") -> None:
    """Write calibration.json, calibration.flatbuffers and calibration.cache into a folder."""
    largest = {name: str(_largest(calibration_cache[name])) for name in sorted(calibration_cache.keys())}
    data = calibration_cache.to_dict() if hasattr(calibration_cache, "to_dict") else dict(calibration_cache)
    files = {
        "calibration.json": json.dumps(data, cls=CalibrationCacheEncoder).encode(),
        "calibration.flatbuffers": flatbuffer(largest),
        "calibration.cache": "".join(f"{name} {value}\n" for name, value in largest.items()).encode(),
    }
    try:
        write_together([(os.path.join(dir, name), [content]) for name, content in files.items()])
    except OSError as error:
        raise Fail(f"the calibration table cannot be written ({error.strerror})", where=dir) from None


def _largest(data: Any) -> float:
    found = data.to_dict()
    zero = np.array(0.0)
    return max(float(found.get(end, zero).item()) for end in ("highest", "lowest"))


def flatbuffer(pairs: Mapping[str, str]) -> bytes:
    """A table whose only field is a vector of tables with two strings each."""
    out = bytearray(4)

    def word(value: int) -> int:
        out.extend(struct.pack("<I", value))
        return len(out) - 4

    def aim(at: int) -> None:
        struct.pack_into("<I", out, at, len(out) - at)

    def vtable(fields: int) -> int:
        """Every field is an offset of four bytes; returns where the vtable starts."""
        start = len(out)
        out.extend(struct.pack(f"<{2 + fields}H", 4 + 2 * fields, 4 + 4 * fields, *(4 + 4 * i for i in range(fields))))
        out.extend(bytes(-len(out) % 4))
        return start

    def table(layout: int, fields: int) -> list[int]:
        """Where the table's offsets lie, to be aimed."""
        out.extend(struct.pack("<i", len(out) - layout))
        return [word(0) for _ in range(fields)]

    def string(text: str) -> None:
        raw = text.encode()
        word(len(raw))
        out.extend(raw + bytes(1))
        out.extend(bytes(-len(out) % 4))

    root, pair = vtable(1), vtable(2)
    aim(0)
    (entries,) = table(root, 1)
    aim(entries)
    word(len(pairs))
    slots = [word(0) for _ in pairs]
    for slot, (key, value) in zip(slots, pairs.items(), strict=True):
        aim(slot)
        key_at, value_at = table(pair, 2)
        aim(key_at)
        string(key)
        aim(value_at)
        string(value)
    return bytes(out)
