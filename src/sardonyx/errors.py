"""Every exception that Sardonyx raises.

    SardonyxError                      all of ours; carries where, expected, got, hint
    ├── Fail                           a run or a load went wrong in a way no other class names
    │   └── OutOfBudget                a size or time limit was reached before memory was taken
    │       └── UntrustedRefusal       an untrusted model exceeds a limit, or has what only trusted ones may have
    ├── InvalidArgument                a caller's value is wrong: name, type, rank, shape
    ├── InvalidGraph                   the model breaks ONNX's rules: unknown operator, bad attribute, wrong arity
    │   ├── BrokenGraph                a name, type, order or stored tensor is wrong; also a Fail
    │   └── DanglingName               a node reads a name that nothing makes; also an InvalidArgument
    ├── InvalidProtobuf                the bytes are not a model
    ├── NoSuchFile                     the path is not there
    ├── NoModel                        there is nothing to load
    ├── NotImplemented                 a valid request that this build cannot serve
    ├── RuntimeException               a kernel stopped on bad data
    ├── EPFail                         an execution provider failed
    ├── EngineError                    a broken invariant of the engine: a defect of ours, with its cause chained
    ├── ModelLoaded                    a second model for one session
    ├── ModelLoadCanceled              the load was cancelled by its flag
    ├── ModelRequiresCompilation       the model must be compiled ahead, and is not
    ├── NotFound                       a named thing (key, adapter, library) is not there
    └── DeviceReset                    the device was reset underneath

The names are onnxruntime's, so that ``except`` clauses written for it keep their meaning. Where it calls a broken model
``Fail`` or ``InvalidArgument``, the exception here is that and an ``InvalidGraph`` as well.
A message is made from the fields; code that wants to react reads the fields. ``Reporting`` turns whatever else is
raised while a model is built or run into an EngineError.
"""

from __future__ import annotations

from types import TracebackType

RUN = "the run"
"""The phase of errors in runs."""


class SardonyxError(Exception):
    """What went wrong, and, where known: where, what was expected, what came, and what to do."""

    phase: str | None = None
    """What was going on, ``the run`` or ``building the session``; None elsewhere, as while arguments are checked."""

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: object = None,
        got: object = None,
        hint: str | None = None,
    ) -> None:
        self.what, self.where, self.expected, self.got, self.hint = what, where, expected, got, hint
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what]
        if self.where is not None:
            parts.append(f"at {self.where}")
        if self.expected is not None:
            parts.append(f"expected: {_short(self.expected)}")
        if self.got is not None:
            parts.append(f"got: {_short(self.got)}")
        if self.hint is not None:
            parts.append(self.hint)
        return "; ".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        fields = {k: getattr(self, k) for k in ("where", "expected", "got", "hint", "phase")}
        return (_rebuild, (type(self), self.what, fields))


def _short(value: object, limit: int = 1000) -> str:
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _rebuild(cls: type[SardonyxError], what: str, fields: dict[str, object]) -> SardonyxError:
    error = cls(what)
    error.__dict__.update(fields)
    return error


class Fail(SardonyxError): ...


class OutOfBudget(Fail): ...


class UntrustedRefusal(OutOfBudget):
    """``limit`` names the field of ``sardonyx.Limits`` that was reached; None where the thing is not allowed at all."""

    def __init__(
        self,
        what: str,
        *,
        limit: str | None = None,
        where: str | None = None,
        expected: object = None,
        got: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what, where=where, expected=expected, got=got, hint=hint)
        self.limit = limit

    def __reduce__(self) -> tuple[object, ...]:
        fields = {k: getattr(self, k) for k in ("limit", "where", "expected", "got", "hint", "phase")}
        return (_rebuild, (type(self), self.what, fields))


def no_more_threads(error: RuntimeError) -> OutOfBudget:
    """The error of a thread that Python could not start."""
    return OutOfBudget(
        "no more threads can be started in this process",
        got=error,
        hint="set intra_op_num_threads to fewer, or raise the limit of the process (ulimit -u, the cgroup's pids.max)",
    )


class InvalidArgument(SardonyxError): ...


class InvalidGraph(SardonyxError): ...


class BrokenGraph(InvalidGraph, Fail): ...


class DanglingName(InvalidGraph, InvalidArgument): ...


class InvalidProtobuf(SardonyxError): ...


class NoSuchFile(SardonyxError): ...


class NoModel(SardonyxError): ...


class NotImplemented(SardonyxError): ...


class RuntimeException(SardonyxError): ...


class EPFail(SardonyxError): ...


class EngineError(SardonyxError): ...


class ModelLoaded(SardonyxError): ...


class ModelLoadCanceled(SardonyxError): ...


class ModelRequiresCompilation(SardonyxError): ...


class NotFound(SardonyxError): ...


class DeviceReset(SardonyxError): ...


REPORT = (
    "this is a defect of Sardonyx, not of your program: please report it with this message, its cause and the model"
)


class Reporting:
    """``with Reporting("normalize", node):`` no exception of Python's or of a library's leaves the block as it is.

    One of the operating system becomes a Fail, any other an EngineError that names the phase and the place. Errors of
    ours, MemoryError and warnings pass; so does what a caller inside of Sardonyx catches: exceptions that our own
    modules define and OverflowError, unless it is the ``outermost``, which also tells errors of ours their phase.
    """

    __slots__ = ("outermost", "phase", "where")

    def __init__(self, phase: str, where: object = None, *, outermost: bool = False) -> None:
        """``where`` is a text, or a node: an object with a ``label``."""
        self.phase, self.where, self.outermost = phase, where, outermost

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.outermost and isinstance(error, SardonyxError):
            error.phase = error.phase or self.phase
        if not isinstance(error, Exception) or isinstance(error, (SardonyxError, MemoryError, Warning)):
            return
        if self.outermost or not _is_caught_inside(error):
            made = self._ours(error)
            made.phase = self.phase
            raise made from error

    def _ours(self, error: Exception) -> SardonyxError:
        where = None if self.where is None else str(getattr(self.where, "label", self.where))
        if isinstance(error, OSError):
            return Fail(f"{self.phase} failed: {error}", where=where)
        said = _short(error, 300)
        return EngineError(
            f"{self.phase} failed with {type(error).__name__}{f': {said}' if said else ''}", where=where, hint=REPORT
        )


def _is_caught_inside(error: Exception) -> bool:
    return isinstance(error, OverflowError) or type(error).__module__.startswith(f"{__package__}.")
