"""What is found out about a model."""

from __future__ import annotations

from sardonyx.records import Record


class Port(Record):
    """An input or output."""

    name: str
    type: str
    """As onnxruntime names it: ``tensor(float)``."""
    shape: tuple[int | str | None, ...] | None
    """None if it is no tensor, or the model does not tell the number of its axes."""


class Share(Record):
    """The constants of one element type."""

    type: str
    parameters: int
    nbytes: int


class Risk(Record):
    """Something that can make a model fail, run slowly or surprise elsewhere."""

    kind: str
    """A name that stays the same from version to version."""
    what: str
    nodes: tuple[str, ...] = ()


class Inspection(Record):
    """A model at a glance. ``str()`` is a report for people."""

    path: str | None
    nbytes: int
    """Of the file and its external data."""
    ir_version: int
    producer: str
    opsets: dict[str, int]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    nodes: int
    """Those of bodies included."""
    parameters: int
    weight_nbytes: int
    precisions: tuple[Share, ...]
    """The largest first."""
    operators: dict[str, int]
    """How many nodes, by operator, the most frequent first."""
    dimensions: tuple[str, ...]
    """Symbolic dimensions of inputs."""
    flops: int
    """Operations of a run; a multiply-add is two. Bodies of control flow count once."""
    flops_by_operator: dict[str, int]
    uncounted: int
    """Nodes whose sizes are not known before a run, which are not in ``flops``."""
    sizes: tuple[str, ...]
    """What was assumed of symbolic dimensions to count operations."""
    risks: tuple[Risk, ...]

    def __str__(self) -> str:
        from sardonyx.inspection.text import inspection_text

        return inspection_text(self)
