"""Engines: compiled models that any number of threads may run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import folders
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.folders import Place
from sardonyx.forks import cached_property
from sardonyx.interpret.context import Held
from sardonyx.ir import dims
from sardonyx.ir.graph import Model, Value
from sardonyx.ir.sparse import SparseTensor
from sardonyx.limits import Limits, current
from sardonyx.ops import limits
from sardonyx.partition.chain import PlannedRun
from sardonyx.partition.provider import Memory, Planned, Provider, RunContext, RunsPlanned
from sardonyx.partition.shared import copy_shared
from sardonyx.session import untrusted
from sardonyx.session.metadata import ModelMetadata, model_metadata

if TYPE_CHECKING:
    from sardonyx.partition.parts import Parts
    from sardonyx.session.explain import Explanation


@dataclass
class BuildOptions:
    """All options that an engine depends on, as plain values."""

    providers: Sequence[Provider] = ()
    """In the user's order; the reference provider is always added as the last."""
    level: str = "all"
    disabled_passes: frozenset[str] = frozenset()
    free_dims: dict[str, int] = field(default_factory=dict)
    free_dims_by_denotation: dict[str, int] = field(default_factory=dict)
    narrow_doubles: bool = False
    """Whether what the model computes in f64 is computed in f32."""
    separate_dims: bool = False
    """Whether dimensions of inputs may differ although the model gives them one name."""
    initializers: dict[str, Any] = field(default_factory=dict)
    external_files: dict[str, bytes] = field(default_factory=dict)
    external_folder: str | None = None
    save_path: str | None = None
    cancelled: Callable[[], bool] = lambda: False
    limits: Limits | None = None
    """The limits of an untrusted model, which is given as bytes."""
    is_cached: bool = True
    """Whether the compiled model may be read from the cache and written to it."""
    cache: Place | None = field(default_factory=folders.place)
    """The cache, whatever ``SARDONYX_CACHE`` names later."""


class Engine:
    """Any number of threads may run it; runs change nothing that one of them could see of another."""

    _bounds: Limits | None = None
    _agreeing: Sequence[Any] | None = None
    """The shapes of earlier feeds whose sizes agree."""
    as_written: Callable[[], Engine] | None = None
    """Builds the model without the assumption that dimensions of one name are equal."""
    on_numpy: Sequence[Mapping[str, str]] = ()
    """What each provider tells of its nodes that numpy runs: why, by name; runs add to it."""
    source: Any = None
    """A source from which the same model can be built again, whatever its path names by then."""

    def __init__(
        self,
        model: Model,
        inputs: list[Value],
        outputs: list[Value],
        parts: Parts,
        explanation: Explanation,
        phases: dict[str, float],
        weights_nbytes: int,
        bounds: Limits | None = None,
    ) -> None:
        """``weights_nbytes`` is the size of the file's weights, without constants that the optimizer made. ``bounds``
        are the limits of an untrusted model and apply to every run.
        """
        self._bounds = bounds
        budget = current()
        self._held_nbytes = weights_nbytes + (0 if budget is None else budget.held_nbytes)
        """Memory that is held before a run: weights, and constants made by the build."""
        self.model, self.inputs, self.outputs, self.phases = model, inputs, outputs, phases
        self.overridable = [v for v in model.graph.inputs if v.overridable]
        self._explanation = explanation
        self.parts = parts
        self._positions = {name: i for i, name in enumerate(model.graph.output_names)}
        self.names = tuple(v.name for v in model.graph.inputs)
        """The names of all inputs, in the order of runs; optional ones included."""
        self._defaults: dict[int, Any] = {}
        self._weights_nbytes = weights_nbytes
        self._sparse_outputs = model.sparse_outputs
        self._whole = parts.whole
        planned = self._whole if not model.sparse_outputs and bounds is None else None
        self.planned = planned if isinstance(planned, RunsPlanned) else None
        """The only part, if it can run without this engine."""
        self._parts_run: PlannedRun | None = None
        if not model.sparse_outputs and bounds is None:
            self._parts_run = parts.planned_run or parts.copied_run

    def run(self, feeds: dict[str, Any], wanted: Sequence[str], context: RunContext) -> list[Any]:
        """The requested outputs. Arrays in the result share memory with nothing else."""
        if self._bounds is None:
            return self._run(feeds, wanted, context)
        with untrusted.limited_run(self._bounds, self._held_nbytes, context):
            return self._run(feeds, wanted, context)

    def _run(self, feeds: dict[str, Any], wanted: Sequence[str], context: RunContext) -> list[Any]:
        args = [feeds[name] if name in feeds else self._default(i) for i, name in enumerate(self.names)]
        if self.as_written is not None and self._has_conflicting_sizes(feeds):
            context.places, context.held = {}, ()
            return self.as_written().run(feeds, wanted, context)
        held = limits.hold(self._weights_nbytes + sum(getattr(a, "nbytes", 0) for a in args))
        try:
            results = (self._whole or self.parts).run(args, context)
        finally:
            limits.release(held)
        picked = self.select_outputs(results, wanted)
        if self._sparse_outputs:
            picked = [_sparse(v) if n in self._sparse_outputs else v for n, v in zip(wanted, picked, strict=True)]
        return picked if self.planned is not None and len(set(wanted)) == len(picked) else copy_shared(picked, args)

    def select_outputs(self, results: Sequence[Any], wanted: Iterable[str]) -> list[Any]:
        """The outputs of these names, out of all outputs."""
        return [results[self._positions[name]] for name in wanted]

    @property
    def planned_run(self) -> PlannedRun | None:
        """See ``RunsPlanned.run_planned``; None if the parts lack it."""
        if self._parts_run is None or self.planned is not None:
            return self._parts_run
        return self._run_parts

    def _run_parts(self, args: Sequence[Any]) -> Sequence[Any] | None:
        """Run several parts without a context. None of them sees all inputs, so sizes are compared first."""
        assert self._parts_run is not None
        return None if self._has_conflicts(args) else self._parts_run(args)

    def _has_conflicts(self, args: Sequence[Any]) -> bool:
        """Whether dimensions with the same name differ in the inputs."""
        named = self._named_positions
        return bool(named) and self._has_conflicting_shapes([getattr(args[i], "shape", ()) for i in named])

    @cached_property
    def _named_positions(self) -> list[int]:
        """The positions, among all inputs, of those that ``_named_dims`` lists."""
        return [self.names.index(name) for name, _ in self._named_dims]

    def _has_conflicting_sizes(self, feeds: Mapping[str, Any]) -> bool:
        """Whether dimensions with the same name differ in the feeds ("?" is no name)."""
        return self._has_conflicting_shapes([getattr(feeds.get(name), "shape", ()) for name, _ in self._named_dims])

    def _has_conflicting_shapes(self, shapes: list[tuple[int, ...]]) -> bool:
        if shapes == self._agreeing:
            return False
        sizes: dict[str, int] = {}
        for (_, shape), given in zip(self._named_dims, shapes, strict=True):
            for dim, size in zip(shape, given, strict=False):
                if isinstance(dim, str) and sizes.setdefault(dim, size) != size and dims.known(dim) is not None:
                    return True
        self._agreeing = shapes
        return False

    @cached_property
    def _named_dims(self) -> list[tuple[str, tuple[Any, ...]]]:
        """The shapes of inputs with dimensions whose names occur more than once."""
        shapes = [(v.name, tuple(v.shape or ())) for v in self.inputs]
        counts = Counter(d for _, shape in shapes for d in shape if isinstance(d, str))
        return [(name, shape) for name, shape in shapes if any(isinstance(d, str) and counts[d] > 1 for d in shape)]

    def _default(self, i: int) -> Any:
        if i not in self._defaults:
            value = self.model.graph.inputs[i]
            self._defaults[i] = None if value.const is None else value.numpy()
        return self._defaults[i]

    def places(self, arrays: dict[str, Any]) -> dict[int, Any]:
        """Arrays for outputs by name, as a context takes them; empty if there are several parts."""
        return {self._positions[name]: a for name, a in arrays.items()} if self.planned is not None else {}

    def held(self, states: Iterable[tuple[str, str, int, Any]]) -> tuple[Held, ...]:
        """States (input, output, axis, memory), as a context takes them; empty if there are several parts."""
        if self.planned is None:
            return ()
        return tuple(Held(self.names.index(i), self._positions[o], axis, at) for i, o, axis, at in states)

    def memory(self, shapes: Mapping[str, Sequence[int]]) -> Memory:
        """The memory that a run of these input shapes takes."""
        executable = self._whole
        if not isinstance(executable, Planned):
            raise Fail("only a model that is compiled as a whole has a plan", hint="explain() says what runs where")
        missing = [name for name in self.names if name not in shapes]
        if missing:
            raise InvalidArgument("a plan needs the shape of every input", expected=list(self.names), got=list(shapes))
        return executable.memory([tuple(shapes[name]) for name in self.names])

    def explain(self) -> Explanation:
        return self._explanation.told({name: why for each in self.on_numpy for name, why in list(each.items())})

    @property
    def metadata(self) -> ModelMetadata:
        return model_metadata(self.model)


def _sparse(value: Any) -> Any:
    return SparseTensor.from_dense(value) if type(value) is np.ndarray else value
