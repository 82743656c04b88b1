"""Adds steps before and after a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx

from sardonyx.errors import InvalidArgument
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Graph, Model, Value
from sardonyx.ir.types import TensorType, described
from sardonyx.model.load import load
from sardonyx.model.save import model_to_proto, save
from sardonyx.normalize import lowest_opset, normalize, unify_opsets
from sardonyx.pipeline.images import Image
from sardonyx.pipeline.writer import After, Before, Picture, Writer

OPSET = 18
"""The first opset whose Resize supports antialiasing; older models are upgraded to it."""


def add(
    model: Any,
    *,
    before: Sequence[Image | Before] = (),
    after: Sequence[After] = (),
    input: str | None = None,
    outputs: Sequence[str] | None = None,
    path: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto | str:
    """A model with steps ``before`` one input and ``after`` some outputs: an ``onnx.ModelProto``, or a file.

    ``model`` is anything that a session takes. ``input`` names the input for images, and ``outputs`` the operands of
    the first step after the model; by default the first of each. Outputs that no step reads are kept. With ``path`` the
    result is written there, which models past 2 GB need, and the path is returned.
    """
    source = load(model)
    unify_opsets(source)
    written = dict(source.opsets)
    graph = source.graph
    if written.get("", OPSET) < OPSET:
        normalize(source)
    _describe_outputs(source)
    picture = _head(graph, before, input) if before else None
    if after:
        _tail(graph, after, outputs, picture)
    result = replace(source, opsets=_opsets(source, written), ir_version=max(source.ir_version, 8))
    if path is None:
        return model_to_proto(result)
    save(result, path)
    return os.fspath(path)


def _opsets(model: Model, written: dict[str, int]) -> dict[str, int]:
    """The opsets that the model's nodes are written for."""
    version = written.get("", OPSET)
    if version < OPSET:
        version = lowest_opset(model, at_least=OPSET)
    return {**model.opsets, "": version}


def _describe_outputs(model: Model) -> None:
    """Set the outputs' shapes to those that the file declares, or to inferred ones: files must state them."""
    graph = model.graph
    for value, name in zip(graph.outputs, graph.output_names, strict=True):
        value.type = described(value.type, model.declared_outputs.get(name))
    if any(isinstance(v.type, TensorType) and v.type.shape is None for v in graph.outputs):
        copy = clone(model)
        normalize(copy)
        for value, found in zip(graph.outputs, copy.graph.outputs, strict=True):
            value.type = described(value.type, found.type)


def _head(graph: Graph, steps: Sequence[Image | Before], name: str | None) -> Picture:
    fed = [v for v in graph.inputs if not v.overridable]
    old = fed[0] if name is None and fed else next((v for v in fed if v.name == name), None)
    if old is None:
        raise InvalidArgument("the model has no such input", expected=[v.name for v in fed], got=repr(name))
    first, rest = (steps[0], steps[1:]) if isinstance(steps[0], Image) else (Image(), steps)
    image = first.input()
    if any(v.name == image.name for v in graph.inputs if v is not old):
        raise InvalidArgument("the model has an input of the image's name", got=repr(image.name))
    op = Writer(graph, next(graph.nodes, None), "before")
    picture = first.read(op, image)
    for step in rest:
        if isinstance(step, Image) or hasattr(step, "names"):
            raise InvalidArgument("a step before the model is Image, once and first, or changes a picture", got=step)
        picture = step.write(op, picture)
    value = picture.value
    if isinstance(old.type, TensorType):
        value = op.cast(value, old.type.dtype)
        _refuse_misfit(value, picture, old)
    graph.inputs[graph.inputs.index(old)] = image
    graph.replace_uses(old, value)
    return picture


def _refuse_misfit(value: Value, picture: Picture, old: Value) -> None:
    known = value.shape or (None,) * 4
    made = (*known[:2], *(s if isinstance(s, int) else None for s in (picture.height, picture.width)))
    wanted = old.shape
    if wanted is not None and (
        len(wanted) != 4
        or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(made, wanted, strict=True))
    ):
        raise InvalidArgument(
            "the steps' result does not fit the model's input",
            where=f"input {old.name!r}",
            expected=list(wanted),
            got=made,
        )


def _tail(graph: Graph, steps: Sequence[After], names: Sequence[str] | None, picture: Picture | None) -> None:
    there = dict(zip(graph.output_names, graph.outputs, strict=True))
    chosen = list(there)[:1] if names is None else list(names)
    missing = [n for n in chosen if n not in there]
    if missing or isinstance(names, str):
        raise InvalidArgument("the model has no such outputs", expected=list(there), got=names)
    op = Writer(graph, None, "after", picture)
    values: tuple[Value, ...] = tuple(there[n] for n in chosen)
    called: tuple[str, ...] = tuple(chosen)
    for step in steps:
        if not hasattr(step, "names"):
            raise InvalidArgument("a step after the model changes its outputs", got=step)
        values = step.write(op, *values)
        called = step.names[-len(values) :] if len(values) < len(step.names) else step.names
    kept = [(n, v) for n, v in there.items() if n not in chosen]
    taken = {*(n for n, _ in kept), *(v.name for v in graph.inputs)}
    graph.drop_outputs()
    for name, value in zip(called, values, strict=True):
        graph.add_output(value, f"{name}_out" if name in taken else name)
    for name, value in kept:
        graph.add_output(value, name)
