"""What calibration knows of tensors: ``TensorData`` and ``TensorsData``, as onnxruntime has them."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

import numpy as np

from sardonyx.quantization.kinds import CalibrationMethod
from sardonyx.quantization.misuse import Misuse

_NAMES = frozenset({"avg", "std", "lowest", "highest", "hist", "hist_edges", "bins"})
_REAL = frozenset({"avg", "std", "lowest", "highest", "hist_edges"})


class TensorData:
    """Range, histogram, mean and deviation of one tensor, as far as the method found them; each is an array."""

    lowest: Any
    highest: Any
    avg: Any
    std: Any
    hist: Any
    hist_edges: Any
    bins: Any

    def __init__(self, **values: Any) -> None:
        self._attrs = list(values)
        for name, value in values.items():
            if name not in _NAMES:
                raise ValueError(f"{name!r} is not a property of calibrated tensors; these are {sorted(_NAMES)}")
            if name in _REAL and getattr(value, "dtype", None) not in (np.float16, np.float32):
                found = getattr(value, "dtype", type(value).__name__)
                raise ValueError(f"{name!r} is an array of float32 or float16, not {found}")
            setattr(self, name, value)

    @property
    def range_value(self) -> tuple[Any, Any]:
        """The smallest and the largest value."""
        if not (hasattr(self, "lowest") and hasattr(self, "highest")):
            raise AttributeError("the range of this tensor is not known")
        return self.lowest, self.highest

    @property
    def avg_std(self) -> tuple[Any, Any]:
        """Mean and standard deviation."""
        if not (hasattr(self, "avg") and hasattr(self, "std")):
            raise AttributeError(
                "mean and deviation of this tensor are not known: they come from CalibrationMethod.Distribution"
            )
        return self.avg, self.std

    def to_dict(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self._attrs}, "CLS": type(self).__name__}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> TensorData:
        """The inverse of ``to_dict``, also after JSON."""
        return cls(**{name: _array(name, value) for name, value in stored.items() if name != "CLS"})

    def __repr__(self) -> str:
        return f"TensorData({', '.join(f'{name}={getattr(self, name)!r}' for name in self._attrs)})"


def _array(name: str, value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("CLS") == "numpy.array":
        return np.array(value["data"], np.dtype(value["dtype"]))
    return np.array(value, np.float32) if name in _REAL and isinstance(value, (int, float)) else value


class TensorsData:
    """The data of all calibrated tensors, by name, and the method that found it."""

    def __init__(self, calibration_method: CalibrationMethod, data: Mapping[str, Any]) -> None:
        """Values are ``TensorData``, or tuples: (lowest, highest), or (lowest, highest, counts, edges)."""
        self.calibration_method = calibration_method
        self.data: dict[str, TensorData] = {name: _data(name, value) for name, value in data.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __contains__(self, name: object) -> bool:
        return name in self.data

    def __getitem__(self, name: str) -> TensorData:
        return self.data[name]

    def __setitem__(self, name: str, value: TensorData) -> None:
        if name not in self.data:
            raise RuntimeError(f"only a tensor that is there can be changed; {name!r} is not")
        self.data[name] = value

    def get(self, name: str, default: Any = None) -> Any:
        return self.data.get(name, default)

    def keys(self) -> KeysView[str]:
        return self.data.keys()

    def values(self) -> ValuesView[TensorData]:
        return self.data.values()

    def items(self) -> ItemsView[str, TensorData]:
        return self.data.items()

    def to_dict(self) -> dict[str, Any]:
        return {"CLS": type(self).__name__, "data": self.data, "calibration_method": self.calibration_method}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> TensorsData:
        """The inverse of ``to_dict``, also after JSON."""
        method = stored["calibration_method"]
        if isinstance(method, Mapping):
            method = CalibrationMethod[str(method["value"]).split(".")[-1]]
        return cls(method, {name: TensorData.from_dict(value) for name, value in stored["data"].items()})


def _data(name: str, value: Any) -> TensorData:
    if isinstance(value, TensorData):
        return value
    if isinstance(value, tuple) and len(value) in (2, 4):
        return TensorData(**dict(zip(("lowest", "highest", "hist", "bins"), value, strict=False)))
    raise Misuse(
        "the data of a calibrated tensor is a TensorData, or a tuple of 2 or 4 arrays",
        where=f"tensor {name!r}",
        got=type(value).__name__,
    )
