"""Errors for which onnxruntime raises a Python exception instead of one of its own.

Each is both a SardonyxError and that Python exception, so that handlers for either catch it.
"""

from __future__ import annotations

from sardonyx.errors import InvalidArgument, SardonyxError


class Misuse(InvalidArgument, RuntimeError):
    """An invalid call: an object of an unsupported type, a wrong count, a missing device."""


class MissingInputs(InvalidArgument, ValueError):
    """A required input is not in the feed."""


class ExecutionError(SardonyxError, RuntimeError):
    """A bound run failed; the cause is chained."""


class Unsupported(InvalidArgument, RuntimeError):
    """The request names something that does not exist on this machine."""
