"""Calibration tables in files: JSON as onnxruntime's ``save_tensors_data`` writes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import Fail, NoSuchFile
from sardonyx.quantization.calibrate.tensors import TensorData, TensorsData
from sardonyx.quantization.kinds import CalibrationMethod
from sardonyx.quantization.misuse import Misuse
from sardonyx.writing import write_whole

SMOOTHED = "smooth_quant"


class CalibrationCacheEncoder(json.JSONEncoder):
    """Writes calibrated tensors, arrays and numpy's numbers."""

    def default(self, value: Any) -> Any:
        if isinstance(value, (TensorData, TensorsData)):
            return value.to_dict()
        if isinstance(value, np.ndarray):
            return {"data": value.tolist(), "dtype": str(value.dtype), "CLS": "numpy.array"}
        if isinstance(value, CalibrationMethod):
            return {"CLS": type(value).__name__, "value": str(value)}
        if isinstance(value, np.generic):
            return value.item()
        return super().default(value)


class NoSuchTable(NoSuchFile, FileNotFoundError):
    """onnxruntime's functions raise FileNotFoundError for it."""


def save_tensors_data(tensors_data: TensorsData, path: str | os.PathLike[str], *, smooth_quant: bool = False) -> None:
    """Write calibrated ranges; ``smooth_quant`` records whether they are those of a smoothed model."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**tensors_data.to_dict(), SMOOTHED: smooth_quant}, cls=CalibrationCacheEncoder)
    try:
        write_whole(os.fspath(target), [text.encode()])
    except OSError as error:
        raise Fail(f"the calibration table cannot be written ({error.strerror})", where=str(target)) from None


def load_tensors_data(path: str | os.PathLike[str]) -> TensorsData:
    """Read what ``save_tensors_data``, ours or onnxruntime's, wrote."""
    return read_table(path)[0]


def read_table(path: str | os.PathLike[str]) -> tuple[TensorsData, bool]:
    """The ranges of a file, and whether they are those of a smoothed model."""
    source = Path(path)
    if not source.exists():
        raise NoSuchTable("there is no calibration table", where=str(source))
    if not source.is_file():
        raise Misuse("the calibration table is not a file", where=str(source))
    try:
        stored = json.loads(source.read_bytes())
        return TensorsData.from_dict(stored), bool(stored.get(SMOOTHED, False))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Misuse(
            "the file is no calibration table",
            where=str(source),
            got=f"{type(error).__name__}: {error}",
            hint="delete it to calibrate again",
        ) from None
