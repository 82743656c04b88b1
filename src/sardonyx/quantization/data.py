"""Where calibration data comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sardonyx.quantization.misuse import Misuse

Feeds = Mapping[str, Any]


class CalibrationDataReader(ABC):
    """Gives the feeds of one run after the other; any object with a ``get_next`` method counts as one."""

    @classmethod
    def __subclasshook__(cls, subclass: type) -> Any:
        return callable(getattr(subclass, "get_next", None)) or NotImplemented

    @abstractmethod
    def get_next(self) -> Feeds | None:
        """The feeds of the next run, by name of the input; None at the end."""

    def __iter__(self) -> Iterator[Feeds]:
        return self

    def __next__(self) -> Feeds:
        feeds = self.get_next()
        if feeds is None:
            raise StopIteration
        return feeds

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} does not say how many samples it has")

    def set_range(self, start_index: int, end_index: int) -> None:
        """Give only the samples from ``start_index`` to before ``end_index``; ``CalibStridedMinMax`` calls it."""
        raise NotImplementedError


def feeds_of(source: object) -> Iterator[Feeds]:
    """The feeds of a reader, or of any iterable of dictionaries, one by one."""
    if callable(getattr(source, "get_next", None)):
        return _read(source)
    if isinstance(source, Iterable) and not isinstance(source, (str, bytes, Mapping)):
        return iter(source)
    raise Misuse(
        "calibration data comes from a CalibrationDataReader",
        expected="an object with get_next(), or an iterable of dictionaries from input names to arrays",
        got=type(source).__name__,
    )


def _read(reader: Any) -> Iterator[Feeds]:
    while True:
        feeds = reader.get_next()
        if not feeds:
            return
        yield feeds
