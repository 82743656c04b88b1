"""Graphs of several operators, with shapes and types that are open, stated correctly or stated wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from fuzz import flow
from fuzz.builder import Builder, V, info
from fuzz.cases import Case
from fuzz.drafts import NAMES, Statement, an_option, runs_of
from fuzz.draws import Draw
from fuzz.steps import CASTS, STEPS

DTYPES = (
    np.float32,
    np.float32,
    np.float32,
    np.float32,
    np.float64,
    np.int64,
    np.int32,
    np.float16,
    np.uint8,
    np.bool_,
)


def case(seed: int, index: int, mutation: int | None = None) -> Case:
    """The graph of an index; its mutations state other things of it and feed it otherwise."""
    name = f"graphs/{seed}/{index}"
    b = built(Draw(name))
    name = name if mutation is None else f"{name}+{mutation}"
    return dressed(b, Draw(name, "dress"), name)


def built(draw: Draw) -> Builder:
    b = Builder(draw)
    for _ in range(draw.int(1, 3)):
        dtype = draw.one(DTYPES)
        shape = draw.shape(0, 4, large=0.1)
        if draw.maybe(0.3):
            dtype, shape = (
                np.float32,
                [draw.one((0, 1, 1, 2)), draw.one((1, 3, 4, 8, 16, 32)), draw.int(1, 9), draw.int(1, 9)],
            )
        b.feed(draw.values(shape, dtype))
    for _ in range(draw.int(1, 9)):
        draw.one(STEPS)(b)
    if not b.nodes:
        b.add("Identity", [b.values[0]], b.values[0].dtype, b.values[0].shape)
    return b


def dressed(b: Builder, draw: Draw, name: str) -> Case:
    statement = Statement(draw)
    statement.is_odd = draw.maybe(0.25)
    inputs = []
    for x, operand in b.fed.items():
        if x not in b.overridable:
            inputs.append(onnx.ValueInfoProto(name=x, type=statement.stated(operand.tensor_type())))
    known = {t.name: t for t in b.initializers}
    for x in sorted(b.overridable):
        kind = helper.make_tensor_type_proto(known[x].data_type, list(known[x].dims))
        inputs.append(onnx.ValueInfoProto(name=x, type=statement.stated(kind)))
    produced = {n for node in b.nodes for n in node.output}
    read = {n for node in b.nodes for n in node.input}
    made = [v for v in b.values if v.name in produced]
    results = [v for v in made if v.name not in read] or made[-1:]
    results += [v for v in made if v.name in read and draw.maybe(0.1)]
    lies = draw.one((0.0, 0.0, 0.1, 0.5))
    outputs = [said(draw, v, lies, statement) or onnx.ValueInfoProto(name=v.name) for v in dict.fromkeys(results)]
    infos = [s for v in made if v not in results and draw.maybe(0.4) and (s := said(draw, v, lies, statement))]
    graph = helper.make_graph(b.nodes, "g", inputs, outputs, b.initializers, value_info=infos)
    imports = [helper.make_opsetid("", flow.OPSET), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=b.functions, ir_version=10)
    operators = sorted({n.op_type for n in b.nodes if n.op_type != "Constant"})
    return Case(
        name,
        model.SerializeToString(),
        runs_of(draw, b.fed, is_open=statement.style != "static"),
        an_option(draw),
        "+".join(operators)[:80],
    )


def said(draw: Draw, v: V, lies: float, statement: Statement) -> onnx.ValueInfoProto | None:
    """The stated type of a value: none, its type, its shape in the statement's style, or a wrong one."""
    if v.is_sequence:
        return None
    if draw.maybe(lies):
        return lie(draw, v)
    roll = draw.rng.random()
    if roll < 0.3:
        return None
    if roll < 0.5 or v.shape is None:
        return info(v, None)
    made = info(v)
    made.type.CopyFrom(statement.stated(made.type))
    return made


def lie(draw: Draw, v: V) -> onnx.ValueInfoProto:
    shape: Any = list(v.shape) if v.shape is not None and draw.maybe(0.8) else draw.shape()
    if shape and draw.maybe(0.8):
        at = draw.int(0, len(shape) - 1)
        shape[at] = draw.one((0, 1, 2, 4, 8, 100, 1 << 20, 1 << 40, None, draw.one(NAMES)))
    if draw.maybe(0.15):
        shape = shape[1:] if draw.maybe(0.5) else [1, *shape]
    dtype = draw.one(CASTS) if draw.maybe(0.15) else v.dtype
    return info(V(v.name, dtype, None), shape)
