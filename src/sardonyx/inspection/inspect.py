"""``inspect_model``: what is in a model's file, and what would become of it here; nothing is compiled or run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from sardonyx.bench.inputs import generate_inputs
from sardonyx.errors import NotImplemented, SardonyxError
from sardonyx.inspection import flops, risks
from sardonyx.inspection.records import Inspection, Port, Share
from sardonyx.inspection.risks import Placed
from sardonyx.ir.graph import Graph, Model, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType
from sardonyx.model.load import load, scan
from sardonyx.normalize.run import normalize
from sardonyx.optimize.pipelines import optimize
from sardonyx.partition.assign import assign
from sardonyx.partition.parts import Bodies
from sardonyx.providers.cpu import CpuProvider
from sardonyx.providers.reference import ReferenceProvider
from sardonyx.session.cpu_options import cpu_providers
from sardonyx.session.metadata import node_arg
from sardonyx.session.options import SessionOptions


def inspect_model(
    model: str | os.PathLike[str] | bytes,
    *,
    dimensions: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Inspection:
    """Describe a model; ``dimensions`` and ``shapes`` are the sizes for which operations are counted."""
    source = model if isinstance(model, bytes) else os.fspath(model)
    path = None if isinstance(source, bytes) else source
    scanned = scan(source)
    folder = os.path.dirname(os.path.abspath(path)) if path is not None else os.getcwd()
    external = risks.external_files(scanned.parsed().proto, folder)
    written = load(scanned)
    constants = list(parameters(written.graph))
    counted, uncounted, statements = _operations(source, dimensions, shapes)
    placed = _placed(source)
    found = risks.risks(written, external, placed)
    operators = Counter(f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in written.graph.all_nodes())
    fed = [v for v in written.graph.inputs if v.const is None]
    return Inspection(
        path=path,
        nbytes=len(scanned.data) + sum(n or 0 for n in external.values()),
        ir_version=written.ir_version,
        producer=f"{written.producer_name} {written.producer_version}".strip(),
        opsets=dict(written.imports),
        inputs=tuple(map(_port, fed)),
        outputs=tuple(
            _output(written, name, v) for name, v in zip(written.graph.output_names, written.graph.outputs, strict=True)
        ),
        nodes=sum(operators.values()),
        parameters=sum(t.size for t in constants),
        weight_nbytes=sum(t.nbytes for t in constants),
        precisions=tuple(_precisions(constants)),
        operators=dict(sorted(operators.items(), key=lambda item: (-item[1], item[0]))),
        dimensions=tuple(dict.fromkeys(d for v in fed for d in v.shape or () if isinstance(d, str))),
        flops=sum(counted.values()),
        flops_by_operator=counted,
        uncounted=uncounted,
        sizes=statements,
        risks=tuple(found),
    )


def _port(value: Value) -> Port:
    shown = node_arg(value)
    has_shape = isinstance(value.type, TensorType) and value.type.shape is not None
    return Port(shown.name, shown.type, tuple(shown.shape) if has_shape else None)


def _output(model: Model, name: str, value: Value) -> Port:
    """With the type that the file states, where it states more than is inferred."""
    stated = model.declared_outputs.get(name)
    return _port(Value(name, stated if stated is not None else value.type))


def parameters(graph: Graph) -> Iterator[Tensor]:
    """Constants of a graph and of its bodies, and numbers that trained operators (ai.onnx.ml) have as attributes."""
    for value in graph.initializers.values():
        if value.const is not None:
            yield value.const
    for node in graph.nodes:
        if node.op_type == "Constant":
            yield from (attr for attr in node.attrs.values() if isinstance(attr, Tensor))
        if node.domain == "ai.onnx.ml":
            for attr in node.attrs.values():
                if isinstance(attr, Tensor):
                    yield attr
                elif isinstance(attr, list | tuple) and attr and all(isinstance(item, float) for item in attr):
                    yield Tensor.of(np.array(attr, np.float32))
        for _, sub in node.subgraphs():
            yield from parameters(sub)


def _precisions(constants: list[Tensor]) -> Iterator[Share]:
    kinds: dict[str, list[Tensor]] = {}
    for tensor in constants:
        kinds.setdefault(tensor.dtype.ort, []).append(tensor)
    shares = [Share(name, sum(t.size for t in of), sum(t.nbytes for t in of)) for name, of in kinds.items()]
    yield from sorted(shares, key=lambda share: -share.nbytes)


def _operations(
    source: str | bytes, dimensions: Mapping[str, int] | None, shapes: Mapping[str, tuple[int, ...]] | None
) -> tuple[dict[str, int], int, tuple[str, ...]]:
    """Operations by operator, how many nodes are not counted, and what sizes were assumed."""
    model = load(source)
    try:
        given = generate_inputs(source, dimensions=dimensions, shapes=shapes)
    except NotImplemented:
        return {}, sum(1 for _ in model.graph.all_nodes()), ()
    for value in model.graph.inputs:
        fed = given.feeds.get(value.name)
        if isinstance(fed, np.ndarray) and isinstance(value.type, TensorType):
            value.type = replace(value.type, shape=fed.shape)
    try:
        normalize(model)
        optimize(model.graph, "basic")
    except SardonyxError:
        return {}, sum(1 for _ in model.graph.all_nodes()), given.statements
    counted, uncounted = flops.count(model.graph)
    return counted, uncounted, given.statements


def _placed(source: str | bytes) -> Placed:
    """Who would run which node of the optimized graph."""
    model = load(source)
    normalize(model)
    optimize(model.graph, "all")
    bodies = Bodies([])
    bodies.providers = [*cpu_providers(SessionOptions()), ReferenceProvider(bodies)]
    owners = assign(model.graph, bodies.providers)
    waiting: dict[Node, str] = {}
    for provider in bodies.providers:
        if isinstance(provider, CpuProvider):
            found = provider.compiled_in_runs(model.graph)
            waiting |= {node: why for node, why in found.items() if owners[node].provider is provider}
    return Placed(owners, [node for node in model.graph.nodes if node not in owners], waiting)
