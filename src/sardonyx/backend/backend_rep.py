"""A prepared model."""

from __future__ import annotations

from typing import Any

from onnx.backend.base import BackendRep

from sardonyx.session.misuse import Misuse
from sardonyx.session.options import RunOptions
from sardonyx.session.session import InferenceSession

ALLOWED_OPTIONS = frozenset({"log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches"})


class SardonyxBackendRep(BackendRep):
    """A session behind ONNX's interface."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> list[Any]:  # type: ignore[override]  # a list, as onnxruntime gives
        """All outputs; ``inputs`` is a list in the model's order, or the only input."""
        from sardonyx.backend.backend import set_allowed

        options = RunOptions()
        set_allowed(options, kwargs, ALLOWED_OPTIONS)
        names = [arg.name for arg in self._session.get_inputs()]
        if not isinstance(inputs, (list, tuple)):
            if len(names) != 1:
                raise Misuse(f"Model expect {len(names)} inputs", got="one that is not a list")
            inputs = [inputs]
        return self._session.run(None, dict(zip(names, inputs, strict=False)), options)


OnnxRuntimeBackendRep = SardonyxBackendRep
