"""A smaller case that shows the same finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import onnx

from fuzz.cases import Case, Options

TRIES = 40


def reduced(case: Case, run: int, still: Callable[[Case], bool]) -> Case:
    """The case with one run, plain options and no more outputs, nodes and statements than ``still`` needs."""
    tries = TRIES
    progress = True
    if run < len(case.runs):
        case = _first([replace(case, runs=(case.runs[run],))], still) or case
    while progress and tries > 0:
        progress = False
        for smaller in candidates(case):
            tries -= 1
            if tries < 0:
                break
            if still(smaller):
                case, progress = smaller, True
                break
    return case


def _first(cases: list[Case], still: Callable[[Case], bool]) -> Case | None:
    return next((c for c in cases if still(c)), None)


def candidates(case: Case) -> Iterator[Case]:
    simple = Options(cpu=case.options.cpu, trust=case.options.trust)
    for name in ("entry", "threads", "precision", "level"):
        if getattr(case.options, name) != getattr(simple, name):
            yield case.with_options(**{name: getattr(simple, name)})
    try:
        model = onnx.load_from_string(case.model)
    except Exception:
        return
    outputs = list(model.graph.output)
    if len(outputs) > 1:
        for output in outputs:
            yield _with(case, pruned(model, [output]))
        for i in range(len(outputs)):
            yield _with(case, pruned(model, outputs[:i] + outputs[i + 1 :]))
    if model.graph.value_info:
        yield _with(case, pruned(model, outputs, keep_infos=False))
        for i in range(len(model.graph.value_info)):
            twin = _copied(model)
            del twin.graph.value_info[i]
            yield _with(case, twin)
    for i, output in enumerate(outputs):
        if output.HasField("type"):
            twin = _copied(model)
            twin.graph.output[i].ClearField("type")
            yield _with(case, twin)
    made = {o: n for n in model.graph.node for o in n.output}
    for i, output in enumerate(outputs):
        for name in made[output.name].input if output.name in made else ():
            if name in made:
                before = onnx.ValueInfoProto(name=name)
                yield _with(case, pruned(model, [*outputs[:i], before, *outputs[i + 1 :]]))


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    return twin


def pruned(model: onnx.ModelProto, outputs: list[onnx.ValueInfoProto], *, keep_infos: bool = True) -> onnx.ModelProto:
    """The model with these outputs and nothing that they do not need."""
    twin = _copied(model)
    kept = [onnx.ValueInfoProto.FromString(o.SerializeToString()) for o in outputs]
    needed = {o.name for o in kept}
    nodes = []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= _read(node)
    graph = twin.graph
    del graph.node[:], graph.output[:]
    graph.node.extend(reversed(nodes))
    graph.output.extend(kept)
    for field in (graph.input, graph.initializer, graph.value_info):
        held = [v for v in field if v.name in needed]
        del field[:]
        field.extend(held)
    if not keep_infos:
        del graph.value_info[:]
    return twin


def _read(node: onnx.NodeProto) -> set[str]:
    """What a node and its bodies read."""
    names = set(node.input)
    for a in node.attribute:
        for graph in (*([a.g] if a.HasField("g") else []), *a.graphs):
            for inner in graph.node:
                names |= _read(inner)
            names |= {o.name for o in graph.output}
    return names


def _with(case: Case, model: onnx.ModelProto) -> Case:
    names = {v.name for v in model.graph.input}
    runs = tuple(replace(r, feeds={k: v for k, v in r.feeds.items() if k in names}) for r in case.runs)
    operators = sorted({n.op_type for n in model.graph.node if n.op_type != "Constant"})
    return replace(case, model=model.SerializeToString(), runs=runs, operator="+".join(operators)[:80])
