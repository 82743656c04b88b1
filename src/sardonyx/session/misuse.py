"""Mistakes for which onnxruntime raises a Python exception instead of one of its own.

Each is ours and Python's at once, so that handlers written for either catch it.
"""

from __future__ import annotations

from sardonyx.errors import InvalidArgument, SardonyxError


class Misuse(InvalidArgument, RuntimeError):
    """A call that cannot mean anything: an object of no known kind, a wrong count, a missing device."""


class MissingInputs(InvalidArgument, ValueError):
    """A required input is not in the feed."""


class ExecutionError(SardonyxError, RuntimeError):
    """A bound run failed; the cause is chained."""


class Unsupported(InvalidArgument, RuntimeError):
    """The request names something that is not there on this machine."""
