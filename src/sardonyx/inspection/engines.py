"""Engines that a comparison runs models on, each as a function from feeds and names of outputs to values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sardonyx.errors import InvalidArgument, NotFound, SardonyxError
from sardonyx.records import Record

ENGINES = ("sardonyx", "onnxruntime", "reference")
"""Ours, the peer, and onnx's own reference evaluator."""


class Runner(Record, eq=False):
    """A loaded model."""

    engine: str
    run: Callable[[Sequence[str] | None, Mapping[str, Any]], list[Any]]
    outputs: tuple[str, ...]


def load_engine(engine: str, model: bytes | str) -> Runner:
    """Load a model on an engine by name."""
    if engine == "sardonyx":
        return _sardonyx(model)
    if engine == "onnxruntime":
        return _onnxruntime(model)
    if engine == "reference":
        return _reference(model)
    raise InvalidArgument("no engine has this name", expected=", ".join(ENGINES), got=engine)


def _sardonyx(model: bytes | str) -> Runner:
    from sardonyx.session.session import InferenceSession

    session = InferenceSession(model, providers=["CPUExecutionProvider"])
    return Runner("sardonyx", session.run, tuple(o.name for o in session.get_outputs()))


def _onnxruntime(model: bytes | str) -> Runner:
    try:
        from importlib import import_module

        onnxruntime: Any = import_module("onnxruntime")
    except ImportError:
        raise NotFound("onnxruntime is not installed", hint="pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _said("onnxruntime", "load", error) from error

    def run(names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        try:
            return list(session.run(names, dict(feeds)))
        except Exception as error:
            raise _said("onnxruntime", "run", error) from error

    return Runner("onnxruntime", run, tuple(o.name for o in session.get_outputs()))


def _reference(model: bytes | str) -> Runner:
    import onnx
    from onnx.reference import ReferenceEvaluator

    try:
        proto = onnx.load_model_from_string(model) if isinstance(model, bytes) else onnx.load(model)
        evaluator = ReferenceEvaluator(proto)
    except Exception as error:
        raise _said("onnx.reference", "load", error) from error

    def run(names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        try:
            return list(evaluator.run(None if names is None else list(names), dict(feeds)))
        except Exception as error:
            raise _said("onnx.reference", "run", error) from error

    return Runner("reference", run, tuple(o.name for o in proto.graph.output))


def _said(engine: str, verb: str, error: Exception) -> SardonyxError:
    text = " ".join(str(error).split())
    return InvalidArgument(f"{engine} cannot {verb} the model", got=text[:300] or type(error).__name__)
