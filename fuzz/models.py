"""Real models, whole or a stretch of their nodes, with fields or bytes altered."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, shape_inference

from fuzz.cases import Case
from fuzz.drafts import NAMES, Operand, an_option, runs_of, wild
from fuzz.draws import Draw

FOLDER = "SARDONYX_FUZZ_MODELS"
"""Names a folder of additional models."""
PACKAGES = ("magika", "rapidocr_onnxruntime", "onnxruntime")
WHOLE_NODES, MAX_NBYTES, MAX_ELEMENTS = 40, 20 << 20, 200_000


def paths() -> Iterator[Path]:
    """The demo's model, those of a folder, and those that installed packages bring."""
    yield Path(__file__).resolve().parent.parent / "demo" / "digits.onnx"
    if os.environ.get(FOLDER):
        yield from sorted(Path(os.environ[FOLDER]).rglob("*.onnx"))
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            yield from sorted(Path(folder).rglob("*.onnx"))
    suite = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in ("pytorch-converted", "pytorch-operator", "simple"):
        yield from sorted(suite.glob(f"{kind}/*/model.onnx"))


@functools.cache
def seeds() -> tuple[list[onnx.ModelProto], list[onnx.ModelProto]]:
    """Trained models, and the suite's, with what onnx infers of their values."""
    trained, small = [], []
    for path in paths():
        if path.exists() and path.stat().st_size <= MAX_NBYTES:
            model = onnx.load(str(path))
            try:
                model = shape_inference.infer_shapes(model)
            except Exception:
                continue
            (small if "backend" in path.parts else trained).append(model)
    return trained, small


def case(seed: int, index: int, mutation: int | None = None) -> Case:
    name = f"models/{seed}/{index}"
    draw = Draw(name)
    trained, small = seeds()
    source = draw.one(trained if trained and draw.maybe(0.7) else small)
    model = stretch(draw, source) if len(source.graph.node) > WHOLE_NODES else copied(source)
    is_wild = alter(draw, model)
    if mutation is not None:
        name = f"{name}+{mutation}"
        draw = Draw(name)
        is_wild |= alter(draw, model)
    fed = fed_to(draw, model)
    content = damaged(draw, model.SerializeToString())
    options = an_option(draw)
    made = Case(name, content, wild(runs_of(draw, fed), is_wild), options, source.graph.name[:30] or "model")
    return made.with_options(trust="untrusted") if knows_trust() and draw.maybe(0.5) else made


@functools.cache
def knows_trust() -> bool:
    import sardonyx

    return "trust" in inspect.signature(sardonyx.InferenceSession.__init__).parameters


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    return twin


def stretch(draw: Draw, model: onnx.ModelProto) -> onnx.ModelProto:
    """Some nodes that follow each other, with what they read as inputs."""
    graph = model.graph
    count = draw.int(3, 25)
    first = draw.int(0, max(len(graph.node) - count, 0))
    nodes = list(graph.node)[first : first + count]
    made = {o for n in nodes for o in n.output}
    read = list(dict.fromkeys(i for n in nodes for i in n.input if i and i not in made))
    weights = {t.name: t for t in graph.initializer}
    constants = {n.output[0]: n for n in graph.node if n.op_type == "Constant"}
    types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    nodes = [*(constants[i] for i in read if i in constants), *nodes]
    inputs = [
        onnx.ValueInfoProto(name=i, type=types.get(i, helper.make_tensor_type_proto(1, None)))
        for i in read
        if i not in weights and i not in constants
    ]
    used = {i for n in nodes for i in n.input}
    outputs = [onnx.ValueInfoProto(name=o, type=types.get(o)) for o in sorted(made - used)]
    held = [weights[i] for i in read if i in weights]
    infos = [v for v in graph.value_info if v.name in made & used]
    cut = helper.make_graph(nodes, graph.name, inputs, outputs, held, value_info=infos)
    return helper.make_model(
        cut, opset_imports=model.opset_import, ir_version=model.ir_version, functions=model.functions
    )


def fed_to(draw: Draw, model: onnx.ModelProto) -> dict[str, Operand]:
    """Random values for the inputs; open sizes are small, one for each name."""
    sizes: dict[str, int] = {}
    weights = {t.name for t in model.graph.initializer}
    fed: dict[str, Operand] = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        dims = []
        for d in kind.shape.dim:
            n = d.dim_value if d.HasField("dim_value") else sizes.setdefault(d.dim_param, draw.one((1, 1, 2, 3, 8, 32)))
            dims.append(n if 0 <= n <= 4096 else 2)
        while np.prod(dims, dtype=float) > MAX_ELEMENTS:
            dims[dims.index(max(dims))] = 2
        try:
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        except KeyError:
            dtype = np.dtype(np.float32)
        fed[value.name] = Operand(draw.values(dims, dtype), "index" if dtype.kind == "i" else "data")
    return fed


NUMBERS = (0, 1, -1, 2, 3, 7, 64, 255, 1 << 20, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63))


def alter(draw: Draw, model: onnx.ModelProto) -> bool:
    """A few changes that leave the message a message; whether weights may be extreme now."""
    is_wild = False
    for _ in range(draw.one((0, 1, 1, 1, 2))):
        change: Any = draw.one((_field, _field, _dim, _dim, _type, _wire, _rename, _node, _weight, _number))
        change(draw, model)
        is_wild |= change in (_weight, _field, _number)
    return is_wild


def _field(draw: Draw, model: onnx.ModelProto) -> None:
    """Any field on a random way down, cleared, repeated or given another value."""
    message: Any = model
    for _ in range(draw.int(1, 6)):
        fields = message.ListFields()
        if not fields:
            return
        field, held = draw.one(fields)
        repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
        if field.message_type is not None and draw.maybe(0.85):
            message = draw.one(held) if repeated else held
            continue
        with contextlib.suppress(ValueError, TypeError):  # a value that the field cannot hold
            _set(draw, message, field, held, repeated)
        return


def _set(draw: Draw, message: Any, field: Any, held: Any, repeated: bool) -> None:
    if repeated and len(held) and draw.maybe(0.6):
        at = draw.int(0, len(held) - 1)
        if draw.maybe(0.5):
            del held[at]
        elif field.message_type is not None:
            held.add().CopyFrom(held[at])
        else:
            held[at] = _another(draw, held[at])
    elif repeated or field.message_type is not None or draw.maybe(0.3):
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _another(draw, held))


def _another(draw: Draw, old: Any) -> Any:
    if isinstance(old, str):
        return draw.one(("", "x", "y", "Add", "Loop", "Reshape", "Bogus", "ai.onnx.ml", "n" * 200, *NAMES[:6]))
    if isinstance(old, bytes):
        return draw.one((b"", old[:-1], old + b"\0", bytes(len(old)), b"\xff" * len(old)))
    if isinstance(old, float):
        return draw.one((0.0, -1.0, float("nan"), float("inf"), 1e30, 1e-30))
    return draw.one((*NUMBERS, old + 1, old - 1))


def _values(model: onnx.ModelProto) -> list[Any]:
    return [
        v for v in (*model.graph.input, *model.graph.value_info, *model.graph.output) if v.type.HasField("tensor_type")
    ]


def _dim(draw: Draw, model: onnx.ModelProto) -> None:
    """A size that is stated of a value is another, or a name, or not there."""
    values = [v for v in _values(model) if v.type.tensor_type.shape.dim]
    if not values:
        return
    dims = draw.one(values).type.tensor_type.shape.dim
    dim = draw.one(dims)
    roll = draw.rng.random()
    if roll < 0.5:
        dim.dim_value = draw.one((0, 1, 2, 3, 7, 64, 1 << 20, 1 << 40, -1, dim.dim_value + 1))
    elif roll < 0.75:
        dim.dim_param = draw.one(NAMES)
    elif roll < 0.9:
        dim.Clear()
    else:
        del dims[-1]


def _type(draw: Draw, model: onnx.ModelProto) -> None:
    values = _values(model)
    if values:
        draw.one(values).type.tensor_type.elem_type = draw.one((1, 2, 3, 6, 7, 9, 10, 11, 16, 0, 99))


def _wire(draw: Draw, model: onnx.ModelProto) -> None:
    """A node reads another value, twice the same, or none."""
    nodes = [n for n in model.graph.node if n.input]
    if nodes:
        node, other = draw.one(nodes), draw.one(model.graph.node)
        at = draw.int(0, len(node.input) - 1)
        names = [*other.input, *other.output, ""]
        node.input[at] = draw.one(names)


def _rename(draw: Draw, model: onnx.ModelProto) -> None:
    """A node is of another operator."""
    if model.graph.node:
        node = draw.one(model.graph.node)
        node.op_type = draw.one(
            [n.op_type for n in model.graph.node] + ["Relu", "Add", "MatMul", "Identity", "Reshape", "Concat"]
        )


def _node(draw: Draw, model: onnx.ModelProto) -> None:
    """A node is gone, twice there, or elsewhere."""
    nodes = model.graph.node
    if not nodes:
        return
    at = draw.int(0, len(nodes) - 1)
    roll = draw.rng.random()
    if roll < 0.5:
        del nodes[at]
    elif roll < 0.7:
        nodes.add().CopyFrom(nodes[at])
    else:
        other = draw.int(0, len(nodes) - 1)
        twin = onnx.NodeProto()
        twin.CopyFrom(nodes[at])
        nodes[at].CopyFrom(nodes[other])
        nodes[other].CopyFrom(twin)


def _weight(draw: Draw, model: onnx.ModelProto) -> None:
    """A weight of another shape or type, or short of bytes."""
    if not model.graph.initializer:
        return
    tensor = draw.one(model.graph.initializer)
    roll = draw.rng.random()
    if roll < 0.35 and tensor.dims:
        tensor.dims[draw.int(0, len(tensor.dims) - 1)] = draw.one((0, 1, 2, 3, 7, 1 << 20, 1 << 40, -1))
    elif roll < 0.55:
        tensor.data_type = draw.one((1, 2, 3, 6, 7, 9, 10, 11, 16, 0, 99))
    elif roll < 0.7 and tensor.raw_data:
        tensor.raw_data = tensor.raw_data[: draw.int(0, len(tensor.raw_data))]
    elif tensor.raw_data:
        size = len(tensor.raw_data)
        tensor.raw_data = draw.one((bytes(size), b"\xff" * size, b"\x7f\xc0" * (size // 2), draw.np.bytes(size)))
    elif tensor.dims and draw.maybe(0.5):
        last = tensor.dims.pop()
        tensor.dims.insert(0, last)


def _number(draw: Draw, model: onnx.ModelProto) -> None:
    """An attribute has another value."""
    attributes = [a for n in model.graph.node for a in n.attribute if a.type in (1, 2, 7)]
    if not attributes:
        return
    a = draw.one(attributes)
    if a.type == 1:
        a.f = draw.one((0.0, -1.0, 1e30, float("nan"), 0.5))
    elif a.type == 2:
        a.i = draw.one((0, 1, -1, 2, 3, 7, a.i + 1, *NUMBERS))
    elif a.ints:
        a.ints[draw.int(0, len(a.ints) - 1)] = draw.one((0, 1, 2, 3, 5, -1, *NUMBERS))


def damaged(draw: Draw, content: bytes) -> bytes:
    """Bytes flipped, cut off or put in, once in a while."""
    if not content or draw.maybe(0.93):
        return content
    data = bytearray(content)
    for _ in range(draw.int(0, 3)):
        at = draw.int(0, min(len(data), 4096) - 1) if draw.maybe(0.7) else draw.int(0, len(data) - 1)
        data[at] ^= 1 << draw.int(0, 7)
    if draw.maybe(0.2):
        del data[draw.int(0, len(data)) :]
    if draw.maybe(0.1):
        at = draw.int(0, len(data))
        data[at:at] = draw.np.bytes(draw.int(1, 9))
    return bytes(data)
