"""Memory, views of it, and what every group of work tells about itself."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.tensor import Tensor

_numbers = itertools.count()


@dataclass(eq=False)
class Storage:
    """Memory that some values live in. ``kind`` says whose it is."""

    kind: str
    """``temporary`` (planned into the arena), ``input``, ``output`` (the caller's), or ``constant``."""
    dtype: DType
    elements: Known
    value: Value | None = None
    """The graph's value behind an input, an output or a constant, and the first of a temporary."""
    tensor: Tensor | None = None
    """The content of a constant."""
    number: int = field(default_factory=lambda: next(_numbers))

    def __repr__(self) -> str:
        return f"{self.kind}:{self.value.name if self.value is not None else self.number}"


@dataclass(frozen=True)
class View:
    """Where elements lie: element (i, j, ...) is at ``offset + i * strides[0] + j * strides[1] + ...`` of its storage.

    An axis along which a value is repeated has stride 0.
    """

    storage: Storage
    shape: tuple[Known, ...]
    strides: tuple[Known, ...]
    offset: Known = 0

    @property
    def dtype(self) -> DType:
        return self.storage.dtype


@dataclass(frozen=True)
class Group(ABC):
    """A piece of work on views; ``nodes`` are what it was made from."""

    nodes: tuple[Node, ...]

    @property
    @abstractmethod
    def reads(self) -> tuple[View, ...]: ...

    @property
    @abstractmethod
    def writes(self) -> tuple[View, ...]: ...

    def with_views(self, change: Callable[[View], View]) -> Group:
        """The same work on other views: each that it holds, or a tuple that it holds, as ``change`` tells."""
        changed: dict[str, Any] = {}
        for own in fields(self):
            value = getattr(self, own.name)
            if isinstance(value, View):
                made: Any = change(value)
                if made is not value:
                    changed[own.name] = made
            elif isinstance(value, tuple) and any(isinstance(v, View) for v in value):
                made = tuple(change(v) if isinstance(v, View) else v for v in value)
                if any(new is not old for new, old in zip(made, value, strict=True)):
                    changed[own.name] = made
        return replace(self, **changed) if changed else self
