"""The contestants: how each opens a model and runs it. Imported in a contestant's own process.

An engine is a package, or ``module:factory``, where ``factory(model, threads)`` gives a ``Runner``.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from sardonyx.records import Record

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
OURS = "sardonyx"


class Contestant(Record):
    """An engine and how it is set."""

    engine: str
    precision: str = "highest"
    isa: str = ""
    """A CPU to which Sardonyx holds itself."""
    label: str = ""
    """Its name in tables, where the engine's will not do."""
    model: str = ""
    """The file that it opens, where it is not that of the others (torch's own format, say)."""
    threads: int = 0
    """0: as many as the benchmark says."""
    providers: tuple[str, ...] = ()
    """Execution providers of Sardonyx."""

    @property
    def name(self) -> str:
        if self.label:
            return self.label
        if self.engine == "openvino":
            return f"openvino {'bf16' if self.precision == 'medium' else 'f32'}"
        default = self.precision == "highest" or not self.is_ours
        return self.engine + ("" if default else f" {self.precision}") + (f" @{self.isa}" if self.isa else "")

    @property
    def is_ours(self) -> bool:
        return self.engine == OURS


PEERS = (Contestant("onnxruntime"), Contestant("openvino"), Contestant("openvino", "medium"))


class Unavailable(Exception):
    """Why a contestant cannot take part."""


class Runner(Protocol):
    """A model made ready. Several threads may call ``run`` at once."""

    def run(self, feeds: Feeds) -> list[Array]: ...
    def names(self) -> list[set[str]]:
        """What each output is called."""
        ...

    def about(self) -> dict[str, Any]:
        """What else there is to tell of the model as it runs."""
        ...


class OrtShaped:
    """A session of onnxruntime, or of Sardonyx, whose API is the same."""

    def __init__(
        self, package: Any, path: str, threads: int, providers: tuple[str, ...] = ("CPUExecutionProvider",), **more: Any
    ) -> None:
        options = package.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = package.InferenceSession(path, options, providers=list(providers), **more)
        self._run = self._session.run

    def run(self, feeds: Feeds) -> list[Array]:
        return list(self._run(None, feeds))

    def names(self) -> list[set[str]]:
        return [{o.name} for o in self._session.get_outputs()]

    def about(self) -> dict[str, Any]:
        return {}


class Sardonyx(OrtShaped):
    def __init__(self, package: Any, path: str, threads: int, asked: Contestant) -> None:
        takes = "precision" in inspect.signature(package.InferenceSession.__init__).parameters
        if not takes and asked.precision != "highest":
            raise Unavailable("this Sardonyx takes no precision=")
        if asked.isa and not _runs_natively(asked.isa):
            raise Unavailable(f"this machine only emulates {asked.isa}")
        providers = asked.providers or ("CPUExecutionProvider",)
        super().__init__(package, path, threads, providers, **({"precision": asked.precision} if takes else {}))

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
        settings = {"PERFORMANCE_HINT": "LATENCY"} | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
        settings |= {"INFERENCE_PRECISION_HINT": wanted} | ({"CACHE_DIR": cache} if cache else {})
        self._compiled = package.Core().compile_model(path, "CPU", settings)
        got = self._compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        if got not in (wanted, "f32" if wanted == "f32" else "bfloat16"):
            raise Unavailable(f"asked for {wanted}, its CPU plugin takes {got} on this machine")
        self._requests = threading.local()
        self._names = [set(o.get_names()) for o in self._compiled.outputs]
        self._about = {"runs_in": got}

    def run(self, feeds: Feeds) -> list[Array]:
        request = getattr(self._requests, "own", None)
        if request is None:
            request = self._requests.own = self._compiled.create_infer_request()
        answers = request.infer(feeds, share_inputs=True, share_outputs=True)
        return [answers[i] for i in range(len(self._names))]

    def names(self) -> list[set[str]]:
        return self._names

    def about(self) -> dict[str, Any]:
        return self._about


class Torch:
    """A module that ``torch.export.save`` wrote, run eagerly; feeds are its arguments in order."""

    def __init__(self, package: Any, path: str, threads: int) -> None:
        self._torch = package
        if threads:
            package.set_num_threads(threads)
        self._module = package.export.load(path).module()

    def run(self, feeds: Feeds) -> list[Array]:
        with self._torch.inference_mode():
            answers = self._module(*map(self._torch.from_numpy, feeds.values()))
        return [answer.numpy() for answer in _flat(answers) if isinstance(answer, self._torch.Tensor)]

    def names(self) -> list[set[str]]:
        return []

    def about(self) -> dict[str, Any]:
        return {}


def _flat(answers: Any) -> list[Any]:
    if isinstance(answers, Mapping):
        return _flat(list(answers.values()))
    return [one for each in answers for one in _flat(each)] if isinstance(answers, (list, tuple)) else [answers]


def open_model(contestant: Contestant, package: Any, path: str, threads: int, cache: str) -> Runner:
    path, threads = contestant.model or path, contestant.threads or threads
    if ":" in contestant.engine:
        runner: Runner = getattr(package, contestant.engine.split(":")[1])(path, threads)
        return runner
    if contestant.is_ours:
        return Sardonyx(package, path, threads, contestant)
    if contestant.engine == "openvino":
        return OpenVINO(package, path, threads, contestant.precision, cache)
    if contestant.engine == "torch":
        return Torch(package, path, threads)
    return OrtShaped(package, path, threads)


def import_engine(engine: str) -> Any:
    name = engine.split(":", maxsplit=1)[0]
    try:
        package = importlib.import_module(name)
        if name == OURS:
            package.InferenceSession  # noqa: B018  the package imports its parts when they are used
    except ImportError as error:
        raise Unavailable(str(error)) from None
    return package
