"""Steps that make bodies: If, Loop, Scan and local functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from fuzz.builder import Builder, V, info
from fuzz.draws import onnx_type
from fuzz.steps import CASTS, STEPS, UNARY, step

OPSET = 21


def body_steps(b: Builder, count: int) -> None:
    """A few steps inside a body; no bodies in bodies in bodies."""
    deep = b.prefix.count("_") >= 2
    for _ in range(count):
        fn = b.draw.one(STEPS)
        if not (deep and fn in (if_, loop, scan, call)):
            fn(b)


def stated(b: Builder, v: V) -> onnx.ValueInfoProto:
    """What a body says of its result: nothing, the truth, or something else."""
    roll = b.draw.rng.random()
    if roll < 0.5:
        return onnx.ValueInfoProto(name=v.name)
    if roll < 0.75 or v.shape is None:
        return info(v, None)
    if roll < 0.92:
        return info(v)
    return info(V(v.name, b.draw.one(CASTS) if b.draw.maybe(0.3) else v.dtype, None), b.draw.shape())


@step(2)
def if_(b: Builder) -> V | None:
    x = b.pick()
    if x is None or x.shape is None:
        return None
    branches = {}
    for word in ("then", "else"):
        inner = Builder(b.draw, f"{b.prefix}{word}{len(b.nodes)}_", b)
        body_steps(inner, b.draw.int(0, 2))
        if b.draw.maybe(0.8) or not inner.values:
            y = inner.add(b.draw.one(UNARY) if x.is_float else "Identity", [x], x.dtype, x.shape)
        else:
            y = inner.values[-1]
        graph = helper.make_graph(inner.nodes, word, [], [stated(b, y)], inner.initializers)
        branches[f"{word}_branch"] = graph
    flag = b.setting(b.draw.maybe(0.5), np.bool_)
    return b.add("If", [flag], x.dtype, x.shape if b.draw.maybe(0.7) else None, **branches)


@step(2)
def loop(b: Builder) -> Any:
    """One or two states, a number of trips known only in the run, scan outputs; states may change their type."""
    x = b.pick(known=True)
    if x is None or x.shape is None or x.size > 2_000:
        return None
    inner = Builder(b.draw, f"{b.prefix}loop{len(b.nodes)}_", b)
    i, keep, state = (
        V(inner.fresh("i"), np.int64, ()),
        V(inner.fresh("k"), np.bool_, ()),
        V(inner.fresh("s"), x.dtype, x.shape),
    )
    inner.values += [i, keep, state]
    body_steps(inner, b.draw.int(0, 2))
    result = inner.add(b.draw.one(UNARY) if x.is_float else "Identity", [state], x.dtype, x.shape)
    if b.draw.maybe(0.12):
        dtype = b.draw.one(CASTS)
        result = inner.add("Cast", [result], dtype, x.shape, to=onnx_type(dtype))
    elif b.draw.maybe(0.12) and x.shape:
        result = inner.add("Concat", [result, state], x.dtype, None, axis=0)
    if b.draw.maybe(0.3):
        still = inner.add("Less", [i, inner.constant(np.int64(b.draw.int(-1, 4)))], np.bool_, ())
    else:
        still = inner.add("Identity", [keep], np.bool_, ())
    outputs = [still, result]
    collects = b.draw.maybe(0.5)
    if collects:
        outputs.append(inner.add("Identity", [result], result.dtype, result.shape))
    inputs = [info(i), info(keep), stated_input(b, state)]
    graph = helper.make_graph(inner.nodes, "body", inputs, [stated(b, v) for v in outputs], inner.initializers)
    trips = b.setting(b.draw.one((0, 1, 2, 3, 5, -1)))
    flag = b.setting(b.draw.maybe(0.9), np.bool_) if b.draw.maybe(0.4) else None
    made = [(x.dtype, x.shape if b.draw.maybe(0.8) else None)] + ([(x.dtype, None)] if collects else [])
    return b.add_many("Loop", [trips, flag, x], made, body=graph)


def stated_input(b: Builder, v: V) -> onnx.ValueInfoProto:
    roll = b.draw.rng.random()
    if roll < 0.4:
        return info(v, None)
    if roll < 0.9:
        return info(v)
    return info(V(v.name, b.draw.one(CASTS) if b.draw.maybe(0.4) else v.dtype, None), b.draw.shape())


@step()
def scan(b: Builder) -> Any:
    x = b.pick(floats=True, least=1)
    if x is None or not x.shape or x.size > 2_000:
        return None
    row = x.shape[1:]
    inner = Builder(b.draw, f"{b.prefix}scan{len(b.nodes)}_", b)
    state, element = V(inner.fresh("s"), x.dtype, row), V(inner.fresh("e"), x.dtype, row)
    inner.values += [state, element]
    body_steps(inner, b.draw.int(0, 1))
    total = inner.add("Add", [state, element], x.dtype, row)
    if b.draw.maybe(0.1):
        total = inner.add("Cast", [total], np.float64, row, to=11)
    shown = inner.add(b.draw.one(UNARY), [element], x.dtype, row)
    graph = helper.make_graph(
        inner.nodes,
        "body",
        [stated_input(b, state), stated_input(b, element)],
        [stated(b, total), stated(b, shown)],
        inner.initializers,
    )
    start = b.constant(np.zeros(row, x.dtype))
    reverse = [b.draw.int(0, 1)] if b.draw.maybe(0.3) else None
    return b.add_many(
        "Scan",
        [start, x],
        [(x.dtype, row), (x.dtype, x.shape)],
        body=graph,
        num_scan_inputs=1,
        scan_input_directions=reverse,
    )


@step()
def call(b: Builder) -> V | None:
    """A local function of one operand."""
    x = b.pick(floats=True)
    if x is None:
        return None
    name = f"F{len(b.functions)}"
    nodes = [helper.make_node(b.draw.one(UNARY), ["a"], ["t"]), helper.make_node("Add", ["t", "a"], ["b"])]
    if b.draw.maybe(0.3):
        nodes[0] = helper.make_node("Softmax", ["a"], ["t"])
        nodes[0].attribute.append(onnx.AttributeProto(name="axis", ref_attr_name="axis", type=onnx.AttributeProto.INT))
    imports = [helper.make_opsetid("", OPSET)]
    b.functions.append(helper.make_function("local", name, ["a"], ["b"], nodes, imports, ["axis"]))
    return b.add(name, [x], x.dtype, x.shape, domain="local", axis=-1 if x.shape else None)
