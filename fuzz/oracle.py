"""Answers from elsewhere: onnxruntime, onnx.reference and the reference provider, in a process that may die.

Requests and answers are pickled through a pair of pipes between a worker and the child that it forked itself.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import signal
import struct
import time
import warnings
from typing import Any

import numpy as np

from fuzz.cases import Run

LIMIT_S = 6.0
NBYTES = 3 << 30
Answer = tuple[str, Any]
"""``ok`` and results, or ``refused``, ``died`` or ``late`` and a text."""


class Oracle:
    def __init__(self) -> None:
        self._pid = 0
        self._start()

    def _start(self) -> None:
        asked, ask = os.pipe()
        answered, answer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(ask)
            os.close(answered)
            with contextlib.suppress(BaseException):
                serve(asked, answer)
            os._exit(0)
        os.close(asked)
        os.close(answer)
        self._ask, self._answered = ask, answered

    def ask(self, who: str, model: bytes, run: Run) -> Answer:
        """What ``onnxruntime``, ``onnx`` or ``reference`` makes of a run."""
        try:
            _write(self._ask, pickle.dumps((who, model, dict(run.feeds))))
            content = _read(self._answered, time.monotonic() + LIMIT_S)
        except (BrokenPipeError, EOFError):
            self.close()
            self._start()
            return "died", f"{who} died"
        except TimeoutError:
            self.close()
            self._start()
            return "late", f"{who} takes more than {LIMIT_S} s"
        answer: Answer = pickle.loads(content)
        return answer

    def close(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._ask)
            os.close(self._answered)
            self._pid = 0


def _write(fd: int, content: bytes) -> None:
    view = memoryview(struct.pack("<Q", len(content)) + content)
    while view:
        view = view[os.write(fd, view) :]


def _read(fd: int, deadline: float | None = None) -> bytes:
    size = struct.unpack("<Q", _exactly(fd, 8, deadline))[0]
    return _exactly(fd, size, deadline)


def _exactly(fd: int, count: int, deadline: float | None) -> bytes:
    parts: list[bytes] = []
    while count:
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        if not select.select([fd], [], [], left)[0]:
            raise TimeoutError
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def serve(asked: int, answer: int) -> None:
    """Answer until nobody asks any more. An alarm ends an answer that takes for ever, also where the worker is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.environ["SARDONYX_CPU"] = "none"
    os.environ.pop("SARDONYX_CHECK_ADDRESSES", None)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    resource.setrlimit(resource.RLIMIT_AS, (_used() + NBYTES,) * 2)
    warnings.simplefilter("ignore")
    last: tuple[Any, Any] = (None, None)
    while True:
        try:
            who, model, feeds = pickle.loads(_read(asked))
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S + 2)
        try:
            if last[0] != (who, model):
                last = (None, None)
                last = ((who, model), _session(who, model))
            made: Answer = "ok", _portable(last[1](feeds))
        except BaseException as error:
            made = "refused", f"{type(error).__name__}: {error}"[:500]
        try:
            content = pickle.dumps(made)
        except Exception as error:
            content = pickle.dumps(("refused", f"not portable: {error}"))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(answer, content)


def _used() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _session(who: str, model: bytes) -> Any:
    """A function of feeds."""
    if who == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return lambda feeds: session.run(None, feeds)
    if who == "reference":
        import sardonyx

        ours = sardonyx.InferenceSession(model, _quiet(sardonyx), providers=["CPUExecutionProvider"])
        return lambda feeds: ours.run(None, feeds)
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load_from_string(model))
    known = {i.name: i for i in onnx.load_from_string(model).graph.initializer}
    return lambda feeds: _evaluated(evaluator, feeds, known)


def _evaluated(evaluator: Any, feeds: dict[str, Any], known: Any) -> list[Any]:
    with np.errstate(all="ignore"):
        made: list[Any] = evaluator.run(None, feeds)
    return made


def _quiet(module: Any) -> Any:
    options = module.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = module.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return options


def _portable(value: Any) -> Any:
    """Values that can be pickled: arrays, lists, maps, numbers, text."""
    if isinstance(value, (list, tuple)):
        return [_portable(v) for v in value]
    if isinstance(value, dict):
        return {k: _portable(v) for k, v in value.items()}
    return value if value is None or isinstance(value, (str, bytes, int, float)) else np.asarray(value)
