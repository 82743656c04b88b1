"""The CPU provider: what it claims of a graph, how it rewrites that, and how it compiles parts."""

from __future__ import annotations

import math
import platform
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sardonyx import folders, forks, knobs
from sardonyx.errors import NotImplemented
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.limits import current
from sardonyx.partition.provider import Claims, Declined, Executable, Part
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.variants import ANY_KERNEL, KernelPolicy
from sardonyx.providers.cpu.runtime.arenas import Arenas
from sardonyx.providers.cpu.runtime.team import Settings, limit

if TYPE_CHECKING:
    from sardonyx.lower.analysis.facts import GraphFacts
    from sardonyx.optimize.report import Report


CONVOLUTIONS = ("ConvInteger", "ConvTransposeInteger")
FEW_ROWS = 4
"""Rows up to which a product takes as long as its weights are read, of which bytes are a quarter of f32."""


def slower_as_integers(node: Node) -> str | None:
    """Why the product of integers takes longer than one of f32 numbers on this chip; None if it does not."""
    chip = isa.current()
    if node.op_type not in ("MatMulInteger", *CONVOLUTIONS) or chip.byte_dot or chip.amx:
        return None
    if node.op_type in CONVOLUTIONS:
        return f"{chip.name} has no dot product of bytes: f32 convolutions are quicker"
    a = node.inputs[0]
    rows = [None] if a is None or a.shape is None else [d if isinstance(d, int) else None for d in a.shape[:-1]]
    known = [d for d in rows if d is not None]
    is_few = len(known) == len(rows) and math.prod(known) <= FEW_ROWS
    return None if is_few else f"{chip.name} has no dot product of bytes: f32 products are quicker"


def _with_bodies(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes, and those of their bodies."""
    for node in nodes:
        yield node
        for _, body in node.subgraphs():
            yield from body.all_nodes()


class CpuProvider:
    """Claims what lowering can express; compiles it for one precision and thread team."""

    name = "cpu"

    def __init__(
        self,
        *,
        precision: str = "highest",
        threads: int = 0,
        settings: Settings | None = None,
        max_memory: int | None = None,
        policy: KernelPolicy = ANY_KERNEL,
        baseline: bool = True,
    ) -> None:
        """``threads`` 0 takes what the machine allows; ``max_memory`` is in bytes; ``baseline``: whether the first run
        may use baseline code."""
        allowed = limit()
        self.precision, self.max_memory, self.policy = precision, max_memory, policy
        self._baseline = baseline
        self.threads = min(threads, allowed.threads) if threads else allowed.threads
        self.settings = settings or Settings()
        self.cache = folders.place()
        """Where kernels are kept, also those that are compiled later."""
        self.said: set[str] = set()
        """Warnings that executables have logged."""
        self.on_numpy: dict[str, str] = {}
        """Nodes, by name, that this provider owns and runs on numpy, and why; runs add to them."""
        self.seconds: dict[str, float] = {}
        """What the phases of compilation took, all parts together."""
        self._arenas: weakref.ref[Arenas] | None = None
        self._lock = forks.lock()
        self._facts: tuple[Graph, GraphFacts] | None = None

    def probe(self) -> str | None:
        """None where the compiler was tested: Linux on x86-64 and on 64-bit Arm."""
        if platform.system() != "Linux" or not (isa.is_x86() or isa.is_arm()):
            return f"the compiler is not tested on {platform.system()} {platform.machine()}"
        return None

    @property
    def uses_baseline_code(self) -> bool:
        """Whether kernels may have baseline code at first. Models with a budget of time do no work after a run."""
        return self._baseline and knobs.BASELINE.get() and current() is None

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add what this takes to the seconds of a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds(phase, time.perf_counter() - start)

    def add_seconds(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def claims(self, graph: Graph) -> Claims:
        with self.timed("partition/import"):
            from sardonyx.lower.claims import DeferredRefusal, refusals

        reasons = refusals(graph, self.facts(graph))
        claims = {node: None if isinstance(why, DeferredRefusal) else why for node, why in reasons.items()}
        if current() is None:
            return claims
        from sardonyx.providers.cpu.runtime.bounds import unbounded

        return {node: why or unbounded(node) for node, why in claims.items()}

    def compiled_in_runs(self, graph: Graph) -> dict[Node, str]:
        """Nodes that it claims and cannot compile before a run, and what only a run tells."""
        from sardonyx.lower.claims import DeferredRefusal, refusals

        reasons = refusals(graph, self.facts(graph))
        return {node: str(why) for node, why in reasons.items() if isinstance(why, DeferredRefusal)}

    def facts(self, graph: Graph) -> GraphFacts:
        """Shapes and small contents of all values, analyzed once for a graph and its bodies."""
        from sardonyx.lower.analysis.facts import GraphFacts

        root = graph
        while root.parent is not None and root.parent.graph is not None:
            root = root.parent.graph
        known = self._facts
        if known is None or known[0] is not root:
            known = self._facts = root, GraphFacts.of(root)
        return known[1]

    def prepare(self, graph: Graph, owned: list[Node]) -> Report | None:
        """Rewrites for this provider: quantized products become integer products, windows lose taps that read padding
        alone, small convolutions of one image are merged, images are convolved before they are upsampled, and
        Transposes are moved past data-dependent sizes.
        """
        from sardonyx.optimize import manager, pipelines
        from sardonyx.providers.cpu.layout.deferred_transpose import defer_transposes

        if made := defer_transposes(graph, owned):
            self._facts = None
            owned = [*owned, *made]
        mine, captured = set(_with_bodies(owned)), set(graph.captures())
        kinds = {node.op_type for node in mine}
        passes: tuple[str, ...] = pipelines.INTEGERS if "DequantizeLinear" in kinds else ()
        passes += pipelines.IMAGES if "Conv" in kinds else ()
        if not passes:
            return None

        def judge(old: Sequence[Value], new: Sequence[Value], made: Sequence[Node]) -> str | None:
            if not mine.issuperset(value.producer for value in old if value.producer is not None):
                return "another provider runs it"
            given = () if graph.parent is None else (v for v in graph.captures() if v not in captured)
            if missing := next((v.name for v in given if not v.is_const), None):
                return f"its body is not given {missing!r}"
            if why := next((found for found in map(slower_as_integers, made) if found), None):
                return why
            mine.update(made)
            return None

        report = manager.run(graph, passes, judge=judge)
        if report.rewrites:
            self._facts = None
        return report

    @property
    def arenas(self) -> Arenas:
        """The arenas of the session. Executables own them, because a provider may outlive its session until the garbage
        collector runs."""
        with self._lock:
            found = None if self._arenas is None else self._arenas()
            if found is None:
                found = Arenas()
                self._arenas = weakref.ref(found)
            return found

    def release(self) -> None:
        """Return idle run memory to the system."""
        arenas = None if self._arenas is None else self._arenas()
        if arenas is not None:
            arenas.release()

    def compile(self, part: Part) -> Executable:
        with self.timed("compile/import"):
            from sardonyx.lower.sizes import DataDependent, Refused
            from sardonyx.plan.sizes import Unplannable
            from sardonyx.providers.cpu.compile import compile_part
            from sardonyx.providers.cpu.dynamic_partition import DynamicPartition, specialized_by_shape

        try:
            try:
                return compile_part(part, self, specialized_by_shape)
            except DataDependent:
                return DynamicPartition(part, self)
        except (Refused, Unplannable, NotImplemented) as why:
            raise Declined(str(why)) from why
        except OverflowError as why:
            raise Declined("a size has more than 64 bits") from why
