"""Storages, views and the base class of groups."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.records import Record, replace

if TYPE_CHECKING:
    from sardonyx.ops.random import Stream

_numbers = itertools.count()


@dataclass(eq=False)
class Storage:
    """A buffer. ``kind`` says who owns it."""

    kind: str
    """``temporary`` (planned into the arena), ``input`` or ``output`` (the caller's), ``constant`` or ``indirect``."""
    dtype: DType
    elements: Known
    value: Value | None = None
    """The graph's value; for a temporary, the first that lives in it."""
    tensor: Tensor | None = None
    """The content of a constant."""
    stream: Stream | None = None
    """The stream of random numbers whose state this constant is: runs write to it."""
    number: int = field(default_factory=lambda: next(_numbers))

    def __repr__(self) -> str:
        return f"{self.kind}:{self.value.name if self.value is not None else self.number}"


class View(Record):
    """A window of a storage: element (i, j, ...) is at ``offset + i * strides[0] + j * strides[1] + ...`` of it.

    A broadcast axis has stride 0.
    """

    storage: Storage
    shape: tuple[Known, ...]
    strides: tuple[Known, ...]
    offset: Known = 0

    @property
    def dtype(self) -> DType:
        return self.storage.dtype


class Group(Record, ABC):
    """An operation on views; ``nodes`` are the graph nodes it was lowered from."""

    nodes: tuple[Node, ...]

    @property
    @abstractmethod
    def reads(self) -> tuple[View, ...]: ...

    @property
    @abstractmethod
    def writes(self) -> tuple[View, ...]: ...

    def with_views(self, change: Callable[[View], View]) -> Group:
        """A copy of the group with ``change`` applied to every view in its fields and tuples."""
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
