"""The error of wrong arguments."""

from __future__ import annotations

from sardonyx.errors import InvalidArgument


class Misuse(InvalidArgument, ValueError):
    """A wrong argument; onnxruntime's quantizer raises ValueError for it."""
