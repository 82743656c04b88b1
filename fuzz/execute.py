"""One case run by Sardonyx: what each of its runs gives, or how it ends."""

from __future__ import annotations

import math
import re
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import sardonyx
from fuzz.cases import Case, Run
from sardonyx.errors import EngineError, SardonyxError

SOFT_S = 2.0
EMULATED = 5
"""How much longer code may take whose instructions are emulated."""
LEFT_MEMORY = "left its memory"
"""What the address check says of a kernel."""
MOST_ELEMENTS = 1 << 24
"""Of memory that an output is bound to and that is larger than it; an empty result may have any other lengths."""
HEARD = ("terminate flag", "deadline")
LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


@dataclass
class Outcome:
    """How a run ended: ``ok`` with results, ``refused``, ``late``, or ``found``."""

    kind: str
    text: str = ""
    signature: str = ""
    results: list[Any] | None = None
    names: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """Of processor time."""


class Watch:
    """Raises the terminate flag of the run under way once it has taken too much processor time."""

    def __init__(self) -> None:
        from sardonyx.providers.cpu.machine.isa import current

        self.soft_s = SOFT_S * (EMULATED if current().is_emulated else 1)
        self._options: Any = None
        self._deadline = 0.0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(0.1)
            options = self._options
            if options is not None and time.process_time() > self._deadline:
                options.terminate = True

    def run(self, call: Callable[[Any], Any]) -> Any:
        options = sardonyx.RunOptions()
        self._deadline = time.process_time() + self.soft_s
        self._options = options
        try:
            return call(options)
        finally:
            self._options = None


def of_error(error: BaseException) -> Outcome:
    """What an exception amounts to: a refusal of ours, or a finding."""
    text = f"{type(error).__name__}: {error}"[:2000]
    if isinstance(error, SardonyxError) and not isinstance(error, EngineError):
        if LEFT_MEMORY in text:
            return Outcome("found", text, f"address: {plain(text)}")
        if any(word in text for word in HEARD):
            return Outcome("late", text)
        return Outcome("refused", text, plain(text))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "sardonyx" in f.filename]
    where = f"{frames[-1].filename.rpartition('sardonyx/')[2]}:{frames[-1].name}" if frames else "outside"
    trace = "".join(traceback.format_exception(error))[-4000:]
    return Outcome("found", trace, f"foreign: {type(error).__name__} in {where}")


def plain(text: str) -> str:
    """A message without what differs from case to case: numbers, names in quotes, lists."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)|0x[0-9a-f]+", "_", text)
    return re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "0", text)[:160]


def session_of(case: Case) -> Any:
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = getattr(sardonyx.GraphOptimizationLevel, LEVELS[case.options.level])
    options.intra_op_num_threads = case.options.threads
    options.precision = case.options.precision
    options.log_severity_level = 4
    extra = {} if case.options.trust is None else {"trust": case.options.trust}
    return sardonyx.InferenceSession(case.model, options, providers=["CPUExecutionProvider"], **extra)


def laid_out(array: Any, layout: str) -> Any:
    """A copy of an array with the given memory layout."""
    if not isinstance(array, np.ndarray) or array.dtype == object:
        return array
    if layout == "fortran":
        return array.copy(order="F")
    if layout == "reversed":
        return array[tuple(slice(None, None, -1) for _ in array.shape)].copy()[
            tuple(slice(None, None, -1) for _ in array.shape)
        ]
    if layout == "strided":
        wide = np.repeat(array[..., None], 2, -1)
        return wide[..., 0]
    if layout == "misaligned":
        room = np.empty(array.nbytes + 64, np.uint8)
        start = 1 + (-room.ctypes.data) % 64
        view = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        view[...] = array
        return view
    if layout == "readonly":
        twin = array.copy()
        twin.flags.writeable = False
        return twin
    if layout == "broadcast":
        return np.broadcast_to(array.reshape(-1)[0], array.shape) if array.size else array
    if layout == "big_endian" and array.dtype.kind in "iuf":
        return array.astype(array.dtype.newbyteorder(">"))
    return array


def run_once(session: Any, run: Run, entry: str, watch: Watch) -> list[Any]:
    """One call by an entry point; what is no tensor goes by ``run``."""
    feeds = {name: laid_out(v, run.layouts.get(name, "")) for name, v in run.feeds.items()}
    _share(feeds, run)
    if entry == "preallocated":
        feeds = {
            name: v.copy() if v is run.feeds[name] and isinstance(v, np.ndarray) else v for name, v in feeds.items()
        }
    before = {name: v.copy() for name, v in feeds.items() if isinstance(v, np.ndarray)}
    are_numeric = all(isinstance(v, np.ndarray) and v.dtype.kind not in "OUST" for v in feeds.values())
    results: list[Any] | None = None
    if entry == "values" and are_numeric:
        values = {name: sardonyx.OrtValue.ortvalue_from_numpy(v) for name, v in feeds.items()}
        made = watch.run(lambda o: session.run_with_ort_values(None, values, o))
        results = [v.numpy() for v in made] if all(v.is_tensor() for v in made) else None
    elif entry == "binding" and are_numeric:
        binding = session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name)
        watch.run(lambda o: session.run_with_iobinding(binding, o))
        results = fetched(session, binding)
    elif entry == "preallocated" and are_numeric:
        return bound(session, feeds, run.layouts.get("*outputs", "exact"), watch)
    if results is None:
        results = list(watch.run(lambda o: session.run(None, feeds, o)))
    for name, old in before.items():
        if old.dtype != object and feeds[name].tobytes() != old.tobytes():
            raise AssertionError(f"the run wrote into its feed {name}")
    return results


def _share(feeds: dict[str, Any], run: Run) -> None:
    """Feeds that are to share memory become windows of one block; their values allow it."""
    names = [n for n, how in run.layouts.items() if how == "shared" and isinstance(feeds.get(n), np.ndarray)]
    names = [n for n in names if feeds[n].dtype.kind in "iuf" and feeds[n].size]
    if len(names) > 1:
        block = np.frombuffer(max((feeds[n] for n in names), key=lambda v: v.nbytes).tobytes(), np.uint8).copy()
        for name in names:
            old = feeds[name]
            feeds[name] = block[: old.nbytes].view(old.dtype).reshape(old.shape)


def fetched(session: Any, binding: Any) -> list[Any]:
    """Every output of a bound run; a binding holds one that the graph lists twice only once, as onnxruntime's does."""
    names = [output.name for output in session.get_outputs()]
    by_name = dict(zip(dict.fromkeys(names), binding.copy_outputs_to_cpu(), strict=True))
    return [by_name[name] for name in names]


def bound(session: Any, feeds: dict[str, Any], how: str, watch: Watch) -> list[Any]:
    """A run with outputs bound to caller's memory, with the sizes of an ordinary run."""
    expected = list(watch.run(lambda o: session.run(None, feeds, o)))
    if not all(isinstance(e, np.ndarray) and e.dtype != object for e in expected):
        return expected
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    guards, places = [], []
    for output, like in zip(session.get_outputs(), expected, strict=True):
        if how == "device":
            binding.bind_output(output.name)
            continue
        shape, dtype, stated = like.shape, like.dtype, like.dtype
        if how == "larger":
            grown = tuple(n + 1 for n in shape)
            shape = grown if math.prod(grown) <= MOST_ELEMENTS else shape
        elif how == "smaller":
            shape = tuple(max(n - 1, 0) for n in shape)
        elif how == "dtype":
            stated = np.dtype(np.float64 if dtype == np.float32 else np.float32)
        elif how == "input" and feeds:
            places.append(next(iter(feeds.values())))
        count = int(np.prod(shape, dtype=np.int64))
        block = np.full(max(count, like.size) * 8 + 256, 0xA5, np.uint8)
        start = 64 + (-block.ctypes.data) % 64
        guards.append((block, start, count * dtype.itemsize))
        address = block.ctypes.data + start
        if how == "input" and places and places[-1].nbytes >= like.nbytes and places[-1].flags.c_contiguous:
            guards.pop()
            address = places[-1].ctypes.data
        if how == "ortvalue":
            guards.pop()
            value = sardonyx.OrtValue.ortvalue_from_shape_and_type(list(shape), dtype, "cpu")
            binding.bind_ortvalue_output(output.name, value)
        else:
            binding.bind_output(output.name, "cpu", 0, stated, list(shape), address)
    watch.run(lambda o: session.run_with_iobinding(binding, o))
    for block, start, nbytes in guards:
        if (block[:start] != 0xA5).any() or (block[start + max(nbytes, 0) :] != 0xA5).any():
            raise AssertionError(f"the run wrote outside of the memory that its output is bound to ({how})")
    results = fetched(session, binding)
    return expected if how == "input" else results


def execute(
    case: Case, watch: Watch, on_phase: Callable[[int, str], None] = lambda i, p: None
) -> tuple[list[Outcome], set[str]]:
    """The outcome of each run, and what the case reached: kernels, reasons, refusals."""
    reached: set[str] = set()
    start = time.process_time()
    on_phase(0, "build")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            session = session_of(case)
        except BaseException as error:
            outcome = of_error(error)
            outcome.seconds = time.process_time() - start
            reached.add(outcome.signature)
            return [outcome] * len(case.runs), reached
        built_s = time.process_time() - start
        reached |= placements(session)
        names = [o.name for o in session.get_outputs()]
        outcomes = []
        for i, run in enumerate(case.runs):
            on_phase(i, "run")
            start = time.process_time()
            try:
                results = run_once(session, run, case.options.entry, watch)
                outcome = Outcome("ok", results=results, names=names)
            except BaseException as error:
                outcome = of_error(error)
                reached.add(outcome.signature)
            outcome.seconds = time.process_time() - start + (built_s if i == 0 else 0)
            outcomes.append(outcome)
        reached |= placements(session)
    return outcomes, reached


def placements(session: Any) -> set[str]:
    """Operators with who runs them and why not the compiler, and the kernels of compiled parts."""
    try:
        rows = session.explain().placements
    except Exception:
        return set()
    return {f"{p.op_type}@{p.provider}: {plain(p.reason)}" for p in rows}
