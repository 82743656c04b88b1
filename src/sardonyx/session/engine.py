"""A model made ready to run: load, normalize, optimize, partition, compile, once; then run from any thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx import knobs
from sardonyx.errors import Fail, InvalidArgument, InvalidGraph, ModelLoadCanceled
from sardonyx.interpret.bind import is_runnable
from sardonyx.interpret.context import Held
from sardonyx.ir import types
from sardonyx.ir.dims import is_fresh
from sardonyx.ir.graph import Graph, Model, Node, Value
from sardonyx.ir.sparse import SparseTensor
from sardonyx.ir.spec import verify
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import SparseTensorType, TensorType, ValueType
from sardonyx.model.load import load
from sardonyx.model.save import save
from sardonyx.ops import limits
from sardonyx.ops.infer import OPSETS
from sardonyx.optimize.report import Report
from sardonyx.optimize.shapes import fix_dimensions
from sardonyx.partition.assign import Owner, assign
from sardonyx.partition.parts import Bodies, Parts
from sardonyx.partition.provider import Memory, Planned, Provider, Quick, RunContext
from sardonyx.providers.reference import ReferenceProvider
from sardonyx.session import cache
from sardonyx.session.cache import Prepared
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


class Engine:
    """Immutable once built; any number of threads may run it."""

    def __init__(
        self,
        model: Model,
        inputs: list[Value],
        outputs: list[Value],
        parts: Parts,
        explanation: Explanation,
        phases: dict[str, float],
        weights_nbytes: int,
    ) -> None:
        """``weights_nbytes`` is what the model's file holds; constants made by the optimizer are not counted."""
        self.model, self.inputs, self.outputs, self.phases = model, inputs, outputs, phases
        self.overridable = [v for v in model.graph.inputs if v.overridable]
        self._explanation = explanation
        self.parts = parts
        self._positions = {name: i for i, name in enumerate(model.graph.output_names)}
        self._names = tuple(v.name for v in model.graph.inputs)
        self._weights_nbytes = weights_nbytes
        self._whole = parts.whole
        quick = self._whole if not model.sparse_outputs else None
        self.quick = quick if isinstance(quick, Quick) else None
        """The only part, if it can be run without this engine's help."""
        self.again = parts.again if not model.sparse_outputs else None
        """All outputs for shapes that ran before, as ``Quick.run_again`` gives them."""

    def run(self, feeds: dict[str, Any], wanted: Sequence[str], context: RunContext) -> list[Any]:
        """The wanted outputs. Arrays in the result are the caller's own: nothing else refers to their memory."""
        args = [feeds[name] if name in feeds else self._default(i) for i, name in enumerate(self._names)]
        held = limits.hold(self._weights_nbytes + sum(getattr(a, "nbytes", 0) for a in args))
        try:
            results = (self._whole or self.parts).run(args, context)
        finally:
            limits.release(held)
        picked = [results[self._positions[name]] for name in wanted]
        if self.model.sparse_outputs:
            picked = [_sparse(v) if n in self.model.sparse_outputs else v for n, v in zip(wanted, picked, strict=True)]
        return picked if self.quick is not None and len(set(wanted)) == len(picked) else own(picked, args)

    def _default(self, i: int) -> Any:
        value = self.model.graph.inputs[i]
        return None if value.const is None else value.numpy()

    def places(self, arrays: dict[str, Any]) -> dict[int, Any]:
        """Arrays for outputs by name, as a context takes them; none where more than one part has a hand in them."""
        return {self._positions[name]: a for name, a in arrays.items()} if self.quick is not None else {}

    def held(self, states: Iterable[tuple[str, str, int, Any]]) -> tuple[Held, ...]:
        """States (input, output, axis, memory) as a context takes them; none where more than one part has a hand in."""
        if self.quick is None:
            return ()
        return tuple(Held(self._names.index(i), self._positions[o], axis, at) for i, o, axis, at in states)

    def memory(self, shapes: Mapping[str, Sequence[int]]) -> Memory:
        """What a run of these input shapes takes."""
        executable = self._whole
        if not isinstance(executable, Planned):
            raise Fail("only a model that is compiled as a whole has a plan", hint="explain() says what runs where")
        missing = [name for name in self._names if name not in shapes]
        if missing:
            raise InvalidArgument("a plan needs the shape of every input", expected=list(self._names), got=list(shapes))
        return executable.memory([tuple(shapes[name]) for name in self._names])

    def explain(self) -> Explanation:
        return self._explanation


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


def build(source: Any, options: BuildOptions) -> Engine:
    """Load a model and make it ready."""
    phases: dict[str, float] = {}
    verified = knobs.VERIFY.get()

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        if options.cancelled():
            raise ModelLoadCanceled("loading was cancelled", where=f"before {name}")
        start = time.perf_counter()
        yield
        phases[name] = time.perf_counter() - start
        if verified:
            verify(graph, name)

    plain = not (options.save_path or options.initializers or options.external_files)
    kept = cache.entry(source, _settings(options), folder=options.external_folder) if plain else None
    prepared = None if kept is None else kept.read()
    if prepared is None:
        with phase("load"):
            model = load(
                source,
                folder=options.external_folder,
                in_memory=options.external_files,
                initializers=options.initializers,
            )
            graph, written = model.graph, dict(model.opsets)
            weights_nbytes = sum(_constants_nbytes(graph))
            stated = [v.type for v in graph.outputs]
        from sardonyx.normalize.run import normalize  # neither is needed, nor loaded, where the work is done already
        from sardonyx.optimize.pipelines import optimize

        with phase("normalize"):
            normalize(model)
            fix_dimensions(graph, options.free_dims, options.free_dims_by_denotation)
        with phase("optimize"):
            report = optimize(graph, options.level, options.disabled_passes)
            if options.save_path is not None:
                _save(model, written, report, options)
        prepared = Prepared(model, stated, report, weights_nbytes)
        if kept is not None:
            kept.write(prepared)
    model, stated, report, graph = prepared.model, prepared.stated, prepared.report, prepared.model.graph
    inputs = [v for v in graph.inputs if not v.overridable]
    with phase("partition"):
        bodies = Bodies([])
        bodies.providers = [*options.providers, ReferenceProvider(bodies)]
        owners = assign(graph, bodies.providers)
        _refuse_orphans(model, owners)
    with phase("compile"):
        parts = Parts(graph, owners, bodies.providers[-1])
    known = [types.merge(t, _shown(v.type)) for t, v in zip(stated, graph.outputs, strict=True)]
    known = [_as_sparse(t) if n in model.sparse_outputs else t for n, t in zip(graph.output_names, known, strict=True)]
    outputs = [Value(name, t) for name, t in zip(graph.output_names, known, strict=True)]
    explanation = Explanation.of(graph, {**owners, **bodies.owners}, report, phases)
    return Engine(model, inputs, outputs, parts, explanation, phases, prepared.weights_nbytes)


def _shown(t: ValueType | None) -> ValueType | None:
    """A type without the dimensions that only inference has names for."""
    if not isinstance(t, TensorType) or t.shape is None:
        return t
    return TensorType(t.dtype, tuple(None if is_fresh(d) else d for d in t.shape))


def _as_sparse(t: ValueType | None) -> ValueType | None:
    return SparseTensorType(t.dtype, t.shape) if isinstance(t, TensorType) else t


def _save(model: Model, written: dict[str, int], report: Report, options: BuildOptions) -> None:
    """Write the model as optimized, with onnxruntime's own operators where the level fuses into them."""
    from sardonyx.optimize.spelling.spell import spell

    assert options.save_path is not None
    level, disabled = options.level, options.disabled_passes
    spelling = "portable" if level in ("disabled", "basic") else "contrib"
    save(spell(model, spelling, written, level=level, report=report, disabled=disabled), options.save_path)


def _settings(options: BuildOptions) -> Any:
    """What decides the optimized graph, beside the model."""
    fixed = [sorted(options.free_dims.items()), sorted(options.free_dims_by_denotation.items())]
    return [options.level, sorted(options.disabled_passes), fixed]


def _constants_nbytes(graph: Graph) -> Iterator[int]:
    for value in graph.initializers.values():
        yield value.const.nbytes if value.const is not None else 0
    for node in graph.nodes:
        yield from (attr.nbytes for attr in node.attrs.values() if isinstance(attr, Tensor))
        for _, sub in node.subgraphs():
            yield from _constants_nbytes(sub)


def _refuse_orphans(model: Model, owners: dict[Node, Owner]) -> None:
    for node in model.graph.nodes:
        if node not in owners:
            inner = [node, *(n for _, sub in node.subgraphs() for n in sub.all_nodes())]
            node = next((n for n in inner if not is_runnable(n)), node)
            kind = InvalidGraph if node.domain in OPSETS else Fail
            raise kind(
                f"{node.domain or 'ai.onnx'}.{node.op_type} is not a registered function or operator",
                where=node.label,
                got=f"opset imports {model.opsets}",
                hint="check the operator's name and domain, and the model's opset imports",
            )
