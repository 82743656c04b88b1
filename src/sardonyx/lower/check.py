"""Conditions on symbolic sizes that are checked for every new set of input shapes."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.records import Record


class Check(Record):
    """``size`` must be one of ``allowed``, or at least ``least``; ``what`` is the message where it is not."""

    node: Node
    what: str
    size: Known
    allowed: tuple[Known, ...] = ()
    least: int | None = None
