"""From a model's file to an engine: load, normalize, optimize, partition, compile."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sardonyx import knobs
from sardonyx.errors import InvalidGraph, ModelLoadCanceled, Reporting
from sardonyx.ir import dims, types
from sardonyx.ir.dims import Dim
from sardonyx.ir.graph import Graph, Model, Value
from sardonyx.ir.spec import verify
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import SparseTensorType, TensorType, ValueType
from sardonyx.limits import Budget, check_time, in_force
from sardonyx.model.load import Scanned, load, scan
from sardonyx.model.save import save
from sardonyx.optimize.report import Report
from sardonyx.optimize.shapes import fix_dimensions, separate_dimensions
from sardonyx.partition.assign import assign
from sardonyx.partition.parts import Bodies, Parts
from sardonyx.providers.reference import ReferenceProvider
from sardonyx.session import graph_cache, untrusted
from sardonyx.session.engine import BuildOptions, Engine
from sardonyx.session.explain import Explanation
from sardonyx.session.graph_cache import Prepared
from sardonyx.session.unclaimed import refuse_unclaimed


def build(source: Any, options: BuildOptions, *, import_s: float = 0.0) -> Engine:
    """Load a model and build its engine. ``import_s`` is what importing this module took."""
    phases = _Phases(options, import_s)
    if options.limits is None:
        return _build(source, options, phases)
    untrusted.warm_up()
    with in_force(Budget(options.limits, time_limit="build_time_s")) as budget:
        try:
            return _build(source, options, phases)
        except (MemoryError, RecursionError) as error:
            budget.check_time()
            raise InvalidGraph(f"the model cannot be built: {type(error).__name__}") from None


def _build(source: Any, options: BuildOptions, phases: _Phases) -> Engine:
    changes = options.save_path or options.initializers or options.external_files or options.limits
    scanned = scan(source, folder=options.external_folder, in_memory=options.external_files, limits=options.limits)
    kept = graph_cache.entry(scanned, _settings(options), options.cache) if options.is_cached and not changes else None
    prepared = None if kept is None else kept.read()
    if prepared is None:
        prepared = _prepare(scanned, options, phases)
        if kept is not None:
            kept.write(prepared)
    model, report, graph = prepared.model, prepared.report, prepared.model.graph
    phases.graph = graph
    with phases.phase("partition"):
        bodies = Bodies([])
        bodies.providers = [*options.providers, ReferenceProvider(bodies)]
        owners = assign(graph, bodies.providers)
        refuse_unclaimed(model, owners)
    with phases.phase("compile"):
        parts = Parts(graph, owners, bodies.providers[-1])
    report.extend(parts.report)
    report.extend(bodies.report)
    for provider in options.providers:
        phases.add(getattr(provider, "seconds", {}))
    explanation = Explanation.of(graph, {**owners, **bodies.owners}, report, phases.seconds)
    inputs, outputs = [v for v in graph.inputs if not v.overridable], _outputs(prepared)
    made = Engine(model, inputs, outputs, parts, explanation, phases.seconds, prepared.weights_nbytes, options.limits)
    made.source = scanned
    made.on_numpy = [getattr(provider, "on_numpy", {}) for provider in options.providers]
    return made


class _Phases:
    """The phases of a build: each is timed, may be cancelled before it begins, and leaves a legal graph."""

    def __init__(self, options: BuildOptions, import_s: float) -> None:
        self.seconds = {"import": import_s}
        self.graph: Graph | None = None
        """The graph as the phases so far have left it."""
        self._cancelled, self._is_verified = options.cancelled, knobs.VERIFY.get()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self._cancelled():
            raise ModelLoadCanceled("loading was cancelled", where=f"before {name}")
        check_time()
        start = time.perf_counter()
        with Reporting(name):
            yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        if self._is_verified and self.graph is not None:
            verify(self.graph, name)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what a provider reports of phases inside a phase: each is named with that phase in front."""
        for name, taken in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + taken


def _prepare(scanned: Scanned, options: BuildOptions, phases: _Phases) -> Prepared:
    """Load, normalize and optimize."""
    with phases.phase("load"):
        model = load(scanned, initializers=options.initializers, limits=options.limits)
        if options.limits is not None:
            untrusted.refuse_operators(model.graph)
        phases.graph = graph = model.graph
        if options.separate_dims:
            separate_dimensions(graph, options.free_dims)
        written = dict(model.opsets)
        weights_nbytes = sum(_constants_nbytes(graph))
        stated = [model.declared_outputs.get(name) for name in graph.output_names]
    with phases.phase("import"):
        from sardonyx.normalize.run import normalize  # imported late: a cached graph needs neither
        from sardonyx.optimize.pipelines import optimize

    with phases.phase("normalize"):
        normalize(model)
        fix_dimensions(graph, options.free_dims, options.free_dims_by_denotation)
        if options.narrow_doubles:
            from sardonyx.optimize.narrow import narrow_doubles

            narrow_doubles(graph)
    with phases.phase("optimize"):
        report = optimize(graph, options.level, options.disabled_passes)
        if options.save_path is not None:
            _save(model, written, report, options)
    return Prepared(model, stated, report, weights_nbytes)


def _outputs(prepared: Prepared) -> list[Value]:
    """The outputs with the types that a session shows: inferred, and completed by what the model states."""
    graph, sparse = prepared.model.graph, prepared.model.sparse_outputs
    names = _names(graph.inputs)
    outputs = []
    for name, stated, value in zip(graph.output_names, prepared.stated, graph.outputs, strict=True):
        known = types.described(_shown(value.type, names), stated)
        outputs.append(Value(name, _as_sparse(known) if name in sparse else known))
    return outputs


def _names(inputs: Sequence[Value]) -> dict[Dim, str]:
    """The symbolic dimensions of inputs, by the names that the model gives them."""
    declared = (d for v in inputs for d in v.shape or () if isinstance(d, str))
    return {known: d for d in declared if isinstance(known := dims.known(d), str)}


def _shown(t: ValueType | None, names: Mapping[Dim, str]) -> ValueType | None:
    """A type as onnxruntime displays it: a dimension is a number, the name of an input's dimension, or None."""
    if not isinstance(t, TensorType) or t.shape is None:
        return t
    return TensorType(t.dtype, tuple(d if isinstance(d, int) else names.get(dims.known(d)) for d in t.shape))


def _as_sparse(t: ValueType | None) -> ValueType | None:
    return SparseTensorType(t.dtype, t.shape) if isinstance(t, TensorType) else t


def _save(model: Model, written: dict[str, int], report: Report, options: BuildOptions) -> None:
    """Write the optimized model; with onnxruntime's operators if the level's fusions use them."""
    from sardonyx.optimize.spelling.spell import spell

    assert options.save_path is not None
    level, disabled = options.level, options.disabled_passes
    spelling = "portable" if level in ("disabled", "basic") else "contrib"
    save(spell(model, spelling, written, level=level, report=report, disabled=disabled), options.save_path)


def _settings(options: BuildOptions) -> Any:
    """The options that the optimized graph depends on."""
    fixed = [sorted(options.free_dims.items()), sorted(options.free_dims_by_denotation.items())]
    return [options.level, sorted(options.disabled_passes), fixed, options.separate_dims, options.narrow_doubles]


def _constants_nbytes(graph: Graph) -> Iterator[int]:
    for value in graph.initializers.values():
        yield value.const.nbytes if value.const is not None else 0
    for node in graph.nodes:
        yield from (attr.nbytes for attr in node.attrs.values() if isinstance(attr, Tensor))
        for _, sub in node.subgraphs():
            yield from _constants_nbytes(sub)
