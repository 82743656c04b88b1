"""onnxruntime's five severities on Python's logger ``sardonyx``, and its callback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from sardonyx.session.misuse import Misuse

LogCallback = Callable[[int, str, str, str, str], None]

VERBOSE, INFO, WARNING, ERROR, FATAL = range(5)
_LEVELS = (10, 20, 30, 40, 50)
"""The levels of Python's logging, which is imported when a message is to be logged: that takes 3 ms."""

_severity = WARNING
_callback: LogCallback | None = None
_said: set[str] = set()


def emit(severity: int, message: str, *, logid: str = "", threshold: int = -1) -> bool:
    """Log a message if its severity reaches ``threshold``, the session's or run's own level; -1 means the default
    level.
    """
    level = _LEVELS[severity]
    wanted = severity >= (_severity if threshold < 0 else threshold)
    if not wanted and "logging" not in sys.modules:
        return False
    import logging

    logger = logging.getLogger("sardonyx")
    if not wanted and not (logger.level and logger.isEnabledFor(level)):
        return False
    if _callback is None:
        logger.handle(logger.makeRecord(logger.name, level, "", 0, message, (), None, extra={"logid": logid}))
        return True
    try:
        _callback(severity, "sardonyx", logid, "", message)
    except Exception as error:  # a failing callback must not break the run
        print(f"the logging callback raised {error!r}", file=sys.stderr)
    return True


def emit_once(severity: int, message: str, *, logid: str = "", threshold: int = -1) -> None:
    """Like ``emit``, but each message at most once per process."""
    if message not in _said and emit(severity, message, logid=logid, threshold=threshold):
        _said.add(message)


def set_default_logger_severity(severity: int) -> None:
    """0 verbose, 1 info, 2 warning (the default), 3 error, 4 fatal."""
    global _severity
    if not VERBOSE <= severity <= FATAL:
        raise Misuse("Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal", got=severity)
    _severity = severity


def set_default_logger_verbosity(level: int) -> None:
    """Kept for compatibility: verbose messages have one level here."""
    int(level)


def set_default_logger_callback(callback: LogCallback | None, severity: int = WARNING) -> None:
    """Send messages to ``callback(severity, category, logid, code_location, message)``; None restores the logger."""
    global _callback
    if callback is not None and not callable(callback):
        raise Misuse("the logging callback must be callable or None", got=type(callback).__name__)
    set_default_logger_severity(severity)
    _callback = callback
