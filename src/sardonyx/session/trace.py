"""A run's trace in Chrome's format, with the events and fields that onnxruntime writes."""

from __future__ import annotations

import os
import threading
import time
from datetime import datetime
from typing import Any

import numpy as np

from sardonyx import dtypes, forks
from sardonyx.errors import Fail

CPU = "CPUExecutionProvider"


class Trace:
    """Events since ``start_ns`` (of ``time.monotonic_ns``), written to a file when closed."""

    def __init__(self, prefix: str) -> None:
        from json import dumps as text

        self._text = text
        self.start_ns = time.monotonic_ns()
        self._epoch_ns = time.perf_counter_ns()
        stamp = datetime.now()
        self.path = f"{prefix}_{stamp:%Y-%m-%d_%H-%M-%S}_{stamp.microsecond // 1000:03}.json"
        self._events: list[dict[str, Any]] = []
        self._closed = False
        self._lock = forks.lock()

    def add(self, category: str, name: str, start_ns: int, end_ns: int, args: dict[str, Any] | None = None) -> None:
        """One finished event; times are of ``time.perf_counter_ns``."""
        event = {
            "cat": category,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "dur": max(0, end_ns - start_ns) // 1000,
            "ts": max(0, start_ns - self._epoch_ns) // 1000,
            "ph": "X",
            "name": name,
            "args": args or {},
        }
        with self._lock:
            if not self._closed:
                self._events.append(event)

    def node(self, index: int, node: Any, start_ns: int, end_ns: int, inputs: Any, outputs: Any) -> None:
        """One node's run."""
        weights = sum(v.const.nbytes for v in node.inputs if v is not None and v.const is not None)
        total = sum(map(_nbytes, inputs))
        args = {
            "op_name": node.op_type,
            "provider": CPU,
            "node_index": str(index),
            "parameter_size": str(weights),
            "activation_size": str(max(0, total - weights)),
            "output_size": str(sum(map(_nbytes, outputs))),
            "input_type_shape": [_described(v) for v in inputs if v is not None],
            "output_type_shape": [_described(v) for v in outputs if v is not None],
        }
        self.add("Node", f"{node.name or node.outputs[0].name}_kernel_time", start_ns, end_ns, args)

    def close(self) -> str:
        """Write the file and return its path; empty if it was written before."""
        with self._lock:
            if self._closed:
                return ""
            self._closed = True
        try:
            with open(self.path, "w", encoding="utf-8") as file:
                file.write("[\n" + ",\n".join(map(self._text, self._events)) + "\n]\n")
        except OSError as error:
            raise Fail(f"the profile cannot be written ({error.strerror})", where=self.path) from None
        return self.path


def _nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return dtypes.of_numpy(value.dtype).nbytes(value.size)
    return sum(map(_nbytes, value)) if isinstance(value, list) else 0


def _described(value: Any) -> dict[str, Any]:
    if isinstance(value, np.ndarray):
        return {dtypes.of_numpy(value.dtype).ort: list(value.shape)}
    if isinstance(value, list):
        return {"seq": [_described(v) for v in value]}
    return {type(value).__name__: []}
