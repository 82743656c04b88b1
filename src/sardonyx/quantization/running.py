"""A model that quantization runs: in a session of ours, from a temporary file where it is too large for memory."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sardonyx.errors import InvalidArgument
from sardonyx.quantization.edges import write_proto

if TYPE_CHECKING:
    import onnx

    from sardonyx.session.session import InferenceSession

MAX_IN_MEMORY = 500_000_000
"""Bytes from which a model is handed to its session as a file."""


def open_session(model: Any, **settings: Any) -> InferenceSession:
    """A session for a few runs: nothing of it goes to the user's cache."""
    from sardonyx.session.options import SessionOptions
    from sardonyx.session.session import InferenceSession

    options = SessionOptions()
    options.add_session_config_entry("session.cache", "0")
    for name, value in settings.items():
        setattr(options, name, value)
    return InferenceSession(model, options)


def check_feeds(session: InferenceSession, feeds: Any) -> None:
    """An error that names the inputs, if these are not feeds of the model."""
    if not isinstance(feeds, Mapping):
        raise InvalidArgument(
            "a sample is a dictionary from input names to arrays", expected="a dictionary", got=type(feeds).__name__
        )
    names = {each.name for each in session.get_inputs()}
    if missing := names - set(feeds):
        raise InvalidArgument("a sample lacks inputs", where=", ".join(sorted(missing)), got=sorted(feeds))
    optional = {each.name for each in session.get_overridable_initializers()}
    if unknown := set(feeds) - names - optional:
        raise InvalidArgument("a sample has inputs that the model lacks", where=", ".join(sorted(unknown)))


class Runner:
    """``with Runner(proto, names) as run: arrays = run(feeds)``."""

    def __init__(self, model: onnx.ModelProto, outputs: Sequence[str]) -> None:
        self._model, self._outputs = model, list(outputs)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Runner:
        source: Any = self._model
        if self._model.ByteSize() > MAX_IN_MEMORY:
            folder = self._stack.enter_context(
                tempfile.TemporaryDirectory(prefix="sardonyx-", ignore_cleanup_errors=True)
            )
            source = str(Path(folder) / "model.onnx")
            write_proto(self._model, source)
        self._session = open_session(source)
        return self

    def __call__(self, feeds: Any) -> list[Any]:
        check_feeds(self._session, feeds)
        return list(self._session.run(self._outputs, dict(feeds)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._session
        self._stack.close()
