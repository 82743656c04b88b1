"""A model made ready to run; any number of threads may run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.errors import Fail, InvalidArgument
from sardonyx.interpret.context import Held
from sardonyx.ir import dims
from sardonyx.ir.graph import Model, Value
from sardonyx.ir.sparse import SparseTensor
from sardonyx.limits import Limits, current
from sardonyx.ops import limits
from sardonyx.partition.provider import Memory, Planned, Provider, RunContext, RunsPlanned
from sardonyx.session import untrusted
from sardonyx.session.metadata import ModelMetadata, model_metadata

if TYPE_CHECKING:
    from sardonyx.partition.parts import Parts
    from sardonyx.session.explain import Explanation


@dataclass
class BuildOptions:
    """Everything that shapes an engine, in plain values."""

    providers: Sequence[Provider] = ()
    """In the user's order; the reference provider stands behind them in any case."""
    level: str = "all"
    disabled_passes: frozenset[str] = frozenset()
    free_dims: dict[str, int] = field(default_factory=dict)
    free_dims_by_denotation: dict[str, int] = field(default_factory=dict)
    initializers: dict[str, Any] = field(default_factory=dict)
    external_files: dict[str, bytes] = field(default_factory=dict)
    external_folder: str | None = None
    save_path: str | None = None
    cancelled: Callable[[], bool] = lambda: False
    limits: Limits | None = None
    """Of an untrusted model; it is given as bytes."""


class Engine:
    """Immutable once built; any number of threads may run it."""

    _bounds: Limits | None = None
    as_written: Callable[[], Engine] | None = None
    """The model without our rewrites, which take sizes of one name to be one."""
    source: Any = None
    """What the same model can be built from once more, whatever lies at its path by then."""

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
        """``weights_nbytes`` is what the model's file holds; constants made by the optimizer are not counted.
        ``bounds`` are those of an untrusted model, and hold in every run.
        """
        self._bounds = bounds
        budget = current()
        self._held_nbytes = weights_nbytes + (0 if budget is None else budget.held_nbytes)
        """What runs find taken: weights, and constants made of them in the build that ends here."""
        self.model, self.inputs, self.outputs, self.phases = model, inputs, outputs, phases
        self.overridable = [v for v in model.graph.inputs if v.overridable]
        self._explanation = explanation
        self.parts = parts
        self._positions = {name: i for i, name in enumerate(model.graph.output_names)}
        self.names = tuple(v.name for v in model.graph.inputs)
        """Of all inputs, in the order in which runs take them; those that may be left out among them."""
        self._defaults: dict[int, Any] = {}
        self._weights_nbytes = weights_nbytes
        self._sparse_outputs = model.sparse_outputs
        self._whole = parts.whole
        planned = self._whole if not model.sparse_outputs and bounds is None else None
        self.is_in_one_file = False
        """Whether all of the model, and nothing of the user's beside it, is known to lie in one file."""
        self.planned = planned if isinstance(planned, RunsPlanned) else None
        """The only part, if it can be run without this engine's help."""
        self.planned_run = parts.planned_run if not model.sparse_outputs and bounds is None else None
        """All outputs, as ``RunsPlanned.run_planned`` gives them."""

    def run(self, feeds: dict[str, Any], wanted: Sequence[str], context: RunContext) -> list[Any]:
        """The wanted outputs. Arrays in the result are the caller's own: nothing else refers to their memory."""
        if self._bounds is None:
            return self._run(feeds, wanted, context)
        with untrusted.running(self._bounds, self._held_nbytes, context):
            return self._run(feeds, wanted, context)

    def _run(self, feeds: dict[str, Any], wanted: Sequence[str], context: RunContext) -> list[Any]:
        args = [feeds[name] if name in feeds else self._default(i) for i, name in enumerate(self.names)]
        if self.as_written is not None and self._contradicts(feeds):
            context.places, context.held = {}, ()
            return self.as_written().run(feeds, wanted, context)
        held = limits.hold(self._weights_nbytes + sum(getattr(a, "nbytes", 0) for a in args))
        try:
            results = (self._whole or self.parts).run(args, context)
        finally:
            limits.release(held)
        picked = self.picked(results, wanted)
        if self._sparse_outputs:
            picked = [_sparse(v) if n in self._sparse_outputs else v for n, v in zip(wanted, picked, strict=True)]
        return picked if self.planned is not None and len(set(wanted)) == len(picked) else own(picked, args)

    def picked(self, results: Sequence[Any], wanted: Iterable[str]) -> list[Any]:
        """Outputs by name, out of all of them."""
        return [results[self._positions[name]] for name in wanted]

    def _contradicts(self, feeds: Mapping[str, Any]) -> bool:
        """Whether sizes that the model gives one name differ. ("?" is none.)"""
        sizes: dict[str, int] = {}
        for v in self.inputs:
            given = getattr(feeds.get(v.name), "shape", ())
            for name, size in zip(v.shape or (), given, strict=False):
                if isinstance(name, str) and sizes.setdefault(name, size) != size and dims.known(name) is not None:
                    return True
        return False

    def _default(self, i: int) -> Any:
        if i not in self._defaults:
            value = self.model.graph.inputs[i]
            self._defaults[i] = None if value.const is None else value.numpy()
        return self._defaults[i]

    def places(self, arrays: dict[str, Any]) -> dict[int, Any]:
        """Arrays for outputs by name, as a context takes them; none where more than one part has a hand in them."""
        return {self._positions[name]: a for name, a in arrays.items()} if self.planned is not None else {}

    def held(self, states: Iterable[tuple[str, str, int, Any]]) -> tuple[Held, ...]:
        """States (input, output, axis, memory) as a context takes them; none where more than one part has a hand in."""
        if self.planned is None:
            return ()
        return tuple(Held(self.names.index(i), self._positions[o], axis, at) for i, o, axis, at in states)

    def memory(self, shapes: Mapping[str, Sequence[int]]) -> Memory:
        """What a run of these input shapes takes."""
        executable = self._whole
        if not isinstance(executable, Planned):
            raise Fail("only a model that is compiled as a whole has a plan", hint="explain() says what runs where")
        missing = [name for name in self.names if name not in shapes]
        if missing:
            raise InvalidArgument("a plan needs the shape of every input", expected=list(self.names), got=list(shapes))
        return executable.memory([tuple(shapes[name]) for name in self.names])

    def explain(self) -> Explanation:
        return self._explanation

    @property
    def metadata(self) -> ModelMetadata:
        return model_metadata(self.model)


def _sparse(value: Any) -> Any:
    return SparseTensor.from_dense(value) if type(value) is np.ndarray else value


def own(results: list[Any], args: Sequence[Any]) -> list[Any]:
    """The results, copied where they share memory with an argument, a constant or an earlier result."""
    seen: set[int] = set()
    for arg in args:
        _note(arg, seen)
    return [_owned(value, seen) for value in results]


def _note(value: Any, seen: set[int]) -> None:
    if type(value) is np.ndarray:
        seen.add(id(_root(value)))
    elif isinstance(value, list):
        for item in value:
            _note(item, seen)


def _root(array: np.ndarray[Any, Any]) -> Any:
    """The object that owns an array's memory."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base


def _owned(value: Any, seen: set[int]) -> Any:
    if type(value) is np.ndarray:
        root = _root(value)
        if (
            type(root) is not np.ndarray
            or id(root) in seen
            or not root.flags.writeable
            or not value.flags.writeable
            or not value.flags.c_contiguous
        ):
            return value.copy(order="C")
        seen.add(id(root))
        return value
    if isinstance(value, list):
        return [_owned(item, seen) for item in value]
    if isinstance(value, dict):
        return dict(value)
    return value
