"""Faults put in on purpose: whether the fuzzers see a wrong answer, an exception of others, a hang and a crash."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from fuzz import execute
from fuzz.cases import Case, Run
from fuzz.runner import alone


def relu() -> Case:
    info = helper.make_tensor_value_info
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [info("x", 1, [4])], [info("y", 1, [4])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return Case(
        "operators/0/0", model.SerializeToString(), (Run({"x": np.arange(4, dtype=np.float32)}),), operator="Relu"
    )


def wrong(*_: Any) -> list[Any]:
    return [np.full(4, 7.0, np.float32)]


def escape(*_: Any) -> list[Any]:
    raise KeyError("x")


def crash(*_: Any) -> list[Any]:
    ctypes.string_at(8)
    return []


def hang(*_: Any) -> list[Any]:
    while True:
        pass


PLANTED: dict[str, tuple[Callable[..., list[Any]], str]] = {
    "a wrong answer": (wrong, "differs from onnxruntime"),
    "a foreign exception": (escape, "foreign: KeyError"),
    "a crash": (crash, "crash by signal 11"),
    "a hang": (hang, "hang"),
}


def check() -> list[str]:
    """What goes unseen."""
    unseen, honest = [], execute.run_once
    with tempfile.TemporaryDirectory() as folder:
        if alone(relu(), Path(folder)).kind != "ok":
            unseen.append("a right answer is a finding")
        for name, (fault, signature) in PLANTED.items():
            execute.run_once = fault
            verdict = alone(relu(), Path(folder), limit_s=3.0)
            if verdict.kind != "found" or signature not in verdict.signature:
                unseen.append(f"{name}: {verdict}")
    execute.run_once = honest
    return unseen
