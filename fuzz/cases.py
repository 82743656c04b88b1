"""A case: a model, the runs to make of it, and how; kept as one zip file."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

LEVELS = ("disabled", "basic", "extended", "all")
ENTRIES = ("run", "values", "binding", "preallocated")
"""How a run is asked for: arrays, OrtValues, IO binding, IO binding into memory of the caller's."""


@dataclass(frozen=True)
class Options:
    """How the session is made and called."""

    level: str = "all"
    precision: str = "highest"
    threads: int = 1
    entry: str = "run"
    cpu: str | None = None
    """What ``SARDONYX_CPU`` says; the worker's own when None."""
    trust: str | None = None


@dataclass(frozen=True)
class Run:
    """One call: values by input name, and what kind they are (``plain``, ``extreme``, ``out``, ``empty``)."""

    feeds: Mapping[str, Any]
    kind: str = "plain"
    layouts: Mapping[str, str] = field(default_factory=dict)
    """How a feed is to lie in memory, by input name; see ``execute.laid_out``."""


@dataclass(frozen=True)
class Case:
    name: str
    model: bytes
    runs: tuple[Run, ...]
    options: Options = Options()
    operator: str = ""
    """What the case is about, for reports and signatures."""

    def with_options(self, **changes: Any) -> Case:
        return replace(self, options=replace(self.options, **changes))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("model.onnx", self.model)
            runs = []
            for i, run in enumerate(self.runs):
                stored = {name: _store(file, f"run{i}/{j}", v) for j, (name, v) in enumerate(run.feeds.items())}
                runs.append({"kind": run.kind, "layouts": dict(run.layouts), "feeds": stored})
            about = {"name": self.name, "operator": self.operator, "options": asdict(self.options), "runs": runs}
            file.writestr("case.json", json.dumps(about, indent=1))
        return buffer.getvalue()


def load(path: Path) -> Case:
    return from_bytes(path.read_bytes())


def from_bytes(content: bytes) -> Case:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        about = json.loads(file.read("case.json"))
        runs = tuple(
            Run({n: _fetch(file, s) for n, s in run["feeds"].items()}, run["kind"], run["layouts"])
            for run in about["runs"]
        )
        return Case(about["name"], file.read("model.onnx"), runs, Options(**about["options"]), about["operator"])


def _store(file: zipfile.ZipFile, path: str, value: Any) -> Any:
    """The entry of a value in the index: a TensorProto's file, a list of such, null, or a map's pairs."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [_store(file, f"{path}.{i}", v) for i, v in enumerate(value)]
    if isinstance(value, dict):
        return {"map": [[k, float(v) if isinstance(v, np.generic) else v] for k, v in value.items()]}
    file.writestr(f"{path}.pb", to_tensor(np.asarray(value)).SerializeToString())
    return f"{path}.pb"


def _fetch(file: zipfile.ZipFile, stored: Any) -> Any:
    if stored is None:
        return None
    if isinstance(stored, list):
        return [_fetch(file, s) for s in stored]
    if isinstance(stored, dict):
        return dict(map(tuple, stored["map"]))
    tensor = onnx.TensorProto()
    tensor.ParseFromString(file.read(stored))
    return numpy_helper.to_array(tensor)


def to_tensor(array: Any, name: str = "") -> onnx.TensorProto:
    """A TensorProto of an array of any type, strings included."""
    if array.dtype.kind in "OSUT":
        words = np.array([v if isinstance(v, (str, bytes)) else str(v) for v in array.ravel()], object)
        return numpy_helper.from_array(words.reshape(array.shape), name)
    return numpy_helper.from_array(array, name)
