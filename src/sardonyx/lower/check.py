"""Conditions on symbolic sizes that are checked for every new set of input shapes."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node


@dataclass(frozen=True)
class Check:
    """``size`` must be one of ``allowed``, or at least ``least``; ``what`` is the message where it is not."""

    node: Node
    what: str
    size: Known
    allowed: tuple[Known, ...] = ()
    least: int | None = None
