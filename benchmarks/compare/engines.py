"""The contestants: how each opens a model and runs it. Imported in a contestant's own process.

An engine is a package, or `module:factory` of these benchmarks, where `factory(model, threads)` gives a `Runner`.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.compare.cases import Array, Feeds


@dataclass(frozen=True)
class Contestant:
    """An engine and how it is set. `isa` names a CPU to which Sardonyx holds itself."""

    engine: str
    precision: str = "highest"
    isa: str = ""
    label: str = ""
    """Its name in tables, where the engine's will not do."""

    @property
    def name(self) -> str:
        if self.label:
            return self.label
        if self.engine == "openvino":
            return f"openvino {'bf16' if self.precision == 'medium' else 'f32'}"
        default = self.precision == "highest" or self.engine == "onnxruntime"
        return self.engine + ("" if default else f" {self.precision}") + (f" @{self.isa}" if self.isa else "")

    @property
    def is_ours(self) -> bool:
        return self.engine == "sardonyx"


PEERS = (Contestant("onnxruntime"), Contestant("openvino"), Contestant("openvino", "medium"))


class Unavailable(Exception):
    """Why a contestant cannot take part."""


class Runner(Protocol):
    """A model made ready."""

    def run(self, feeds: Feeds) -> list[Array]: ...
    def names(self) -> list[set[str]]:
        """What each output is called."""
        ...

    def about(self) -> dict[str, Any]:
        """What else there is to tell of the model as it runs."""
        ...


class OrtShaped:
    """A session of onnxruntime, or of Sardonyx, whose API is the same."""

    def __init__(self, package: Any, path: str, threads: int, **more: Any) -> None:
        options = package.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = package.InferenceSession(path, options, providers=["CPUExecutionProvider"], **more)
        self._run = self._session.run

    def run(self, feeds: Feeds) -> list[Array]:
        return list(self._run(None, feeds))

    def names(self) -> list[set[str]]:
        return [{o.name} for o in self._session.get_outputs()]

    def about(self) -> dict[str, Any]:
        return {}


class Sardonyx(OrtShaped):
    def __init__(self, package: Any, path: str, threads: int, precision: str, isa: str) -> None:
        takes = "precision" in inspect.signature(package.InferenceSession.__init__).parameters
        if not takes and precision != "highest":
            raise Unavailable("this Sardonyx takes no precision=")
        if isa and not _runs_natively(isa):
            raise Unavailable(f"this machine only emulates {isa}")
        super().__init__(package, path, threads, **({"precision": precision} if takes else {}))

    def about(self) -> dict[str, Any]:
        counts = self._session.explain().counts()
        packed = sum(getattr(e, "packed_nbytes", 0) for _, e in self._session._sess.engine.parts.compiled)
        nodes = {provider: sum(ops.values()) for provider, ops in counts.items()}
        kernels = [row.kernel for part in self._session.explain(stage="cpu").parts for row in part]
        return {"nodes": nodes, "packed_nbytes": packed, "kernels": kernels}


def _runs_natively(isa: str) -> bool:
    try:
        from sardonyx.providers.cpu.machine.isa import named
    except ImportError as error:
        raise Unavailable(str(error)) from None
    return not named(isa).is_emulated


class OpenVINO:
    """The file as it is, free dimensions and all; answers are read where OpenVINO wrote them."""

    def __init__(self, package: Any, path: str, threads: int, precision: str, cache: str) -> None:
        wanted = "bf16" if precision == "medium" else "f32"
        settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
        settings |= {"INFERENCE_PRECISION_HINT": wanted} | ({"CACHE_DIR": cache} if cache else {})
        core = package.Core()
        compiled = core.compile_model(path, "CPU", settings)
        got = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        if got not in (wanted, "f32" if wanted == "f32" else "bfloat16"):
            raise Unavailable(f"asked for {wanted}, its CPU plugin takes {got} on this machine")
        self._request = compiled.create_infer_request()
        self._names = [set(o.get_names()) for o in compiled.outputs]
        self._about = {"runs_in": got}

    def run(self, feeds: Feeds) -> list[Array]:
        answers = self._request.infer(feeds, share_inputs=True, share_outputs=True)
        return [answers[i] for i in range(len(self._names))]

    def names(self) -> list[set[str]]:
        return self._names

    def about(self) -> dict[str, Any]:
        return self._about


def open_model(contestant: Contestant, package: Any, path: str, threads: int, cache: str) -> Runner:
    if ":" in contestant.engine:
        runner: Runner = getattr(package, contestant.engine.split(":")[1])(path, threads)
        return runner
    if contestant.engine == "sardonyx":
        return Sardonyx(package, path, threads, contestant.precision, contestant.isa)
    if contestant.engine == "onnxruntime":
        return OrtShaped(package, path, threads)
    return OpenVINO(package, path, threads, contestant.precision, cache)


def import_engine(engine: str) -> Any:
    try:
        return importlib.import_module(engine.split(":", maxsplit=1)[0])
    except ImportError as error:
        raise Unavailable(str(error)) from None
