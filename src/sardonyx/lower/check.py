"""Conditions on sizes."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node


@dataclass(frozen=True)
class Check:
    """What must hold of a size before a run: that it is one of ``allowed``, or at least ``least``."""

    node: Node
    what: str
    size: Known
    allowed: tuple[Known, ...] = ()
    least: int | None = None
