"""One node with its operands, and the case that is made of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from fuzz import schemas
from fuzz.cases import LEVELS, Case, Options, Run, to_tensor
from fuzz.draws import Draw, onnx_type
from fuzz.schemas import Key

MAX_ELEMENTS = 60_000


@dataclass
class Operand:
    """A value that a node reads."""

    value: Any
    role: str = "data"
    """``data``, ``index`` (a place in an axis of ``size``), or ``setting`` (axes, shapes, pads, counts)."""
    size: int = 4
    type: onnx.TypeProto | None = None
    """What it is stated to be, where the value does not tell."""

    def tensor_type(self) -> onnx.TypeProto:
        return self.type if self.type is not None else type_of(self.value)


@dataclass
class Draft:
    key: Key
    version: int
    operands: list[Operand | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    imports: dict[str, int] = field(default_factory=dict)
    extra: tuple[onnx.AttributeProto, ...] = ()
    """Attributes that are taken as they are: bodies, and whatever a template has."""
    is_wild: bool = False
    """Whether a constant may be extreme, so that every run is."""

    @property
    def operator(self) -> str:
        return self.key[1] if not self.key[0] else f"{self.key[0]}.{self.key[1]}"


class Maker:
    """What a generator makes operands with: types by the schema, one for each of its type variables."""

    def __init__(self, draw: Draw, key: Key, version: int) -> None:
        self.draw, self.key, self.version = draw, key, version
        self.types: dict[str, Any] = {}

    def dtype(self, position: int) -> Any:
        name = schemas.constraint_of(self.key, self.version, position)
        if name not in self.types:
            self.types[name] = schemas.a_type(self.draw, schemas.types_of(self.key, self.version, position))
        return self.types[name] or np.float32

    def data(self, position: int, shape: list[int]) -> Operand:
        return Operand(self.draw.values(shape, self.dtype(position)))

    def positive(self, position: int, shape: list[int]) -> Operand:
        value = np.abs(self.draw.values(shape, np.float64)) + 0.05
        with np.errstate(all="ignore"):
            return Operand(value.astype(self.dtype(position)))

    def index(self, position: int, shape: list[int], size: int) -> Operand:
        return Operand(self.draw.indices(shape, size, self.dtype(position)), "index", size)

    def setting(self, value: Any, dtype: Any = np.int64) -> Operand:
        return Operand(np.array(value, dtype), "setting")

    def maybe(self, probability: float, make: Callable[[], Operand]) -> Operand | None:
        return make() if self.draw.maybe(probability) else None

    def node(self, operands: list[Operand | None], outputs: int = 1, **attributes: Any) -> Draft:
        """The draft; attributes of None are left out."""
        while operands and operands[-1] is None:
            operands = operands[:-1]
        kept = {name: v for name, v in attributes.items() if v is not None}
        return Draft(self.key, self.version, operands, kept, outputs)

    def some(self, *options: Any) -> Any:
        """One of the options, or nothing."""
        return self.draw.one((None, *options))


def type_of(value: Any) -> onnx.TypeProto:
    """The type of a value, with its shape."""
    if isinstance(value, list):
        inner = onnx_type(np.asarray(value[0]).dtype) if value else 1
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(inner, None))
    if isinstance(value, dict):
        key, held = next(iter(value.items()), (0, 0.0))
        kind = onnx.TensorProto.STRING if isinstance(key, str) else onnx.TensorProto.INT64
        held_type = 8 if isinstance(held, str) else 7 if isinstance(held, int) else 1
        return helper.make_map_type_proto(kind, helper.make_tensor_type_proto(held_type, []))
    array = np.asarray(value)
    return helper.make_tensor_type_proto(onnx_type(array.dtype), list(array.shape))


NAMES = ("n", "batch", "?", "", "?in1", "?2", "unk__0", "?0", "N", "日本", "a*b", "x" * 300, "2", "-1", "floor(n)")


class Statement:
    """How the types of a model's inputs are stated: sizes as numbers, by name, unnamed, or no rank at all."""

    def __init__(self, draw: Draw) -> None:
        self.draw, self.style = draw, draw.one(("static", "static", "named", "named", "unnamed", "rankless", "mixed"))
        self.names: dict[int, str] = {}
        self.is_odd = draw.maybe(0.1)

    def name(self, size: int) -> str:
        """One name for each size most of the time, so that equal sizes are known to be equal."""
        if self.draw.maybe(0.1):
            return f"d{self.draw.int(0, 99)}"
        if size not in self.names:
            self.names[size] = self.draw.one(NAMES) if self.is_odd else f"s{len(self.names)}"
        return self.names[size]

    def stated(self, full: onnx.TypeProto) -> onnx.TypeProto:
        if full.WhichOneof("value") != "tensor_type":
            return full
        style = self.style if self.style != "mixed" else self.draw.one(("static", "named", "unnamed", "rankless"))
        made = onnx.TypeProto()
        made.CopyFrom(full)
        if style == "rankless":
            made.tensor_type.ClearField("shape")
        elif style != "static":
            for dim in made.tensor_type.shape.dim:
                size = dim.dim_value
                if self.draw.maybe(0.8):
                    dim.ClearField("value")
                    if style == "named":
                        dim.dim_param = self.name(size)
        return made


def make_attribute(name: str, value: Any) -> onnx.AttributeProto:
    if isinstance(value, onnx.AttributeProto):
        return value
    if isinstance(value, (list, tuple)) and not value:
        return helper.make_attribute(name, value, attr_type=onnx.AttributeProto.INTS)
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, to_tensor(value))
    return helper.make_attribute(name, value)


def dress(draw: Draw, draft: Draft, name: str) -> Case:
    """A model of the one node: which operands are constants, what is stated of the rest; and the runs."""
    fit_to_version(draft)
    statement = Statement(draw)
    inputs, initializers, nodes, names = [], [], [], []
    fed: dict[str, Operand] = {}
    for i, operand in enumerate(draft.operands):
        if operand is None:
            names.append("")
            continue
        names.append(f"x{i}")
        is_constant = isinstance(operand.value, np.ndarray) and draw.maybe(_constancy(operand, i))
        if is_constant and draw.maybe(0.1):
            nodes.append(helper.make_node("Constant", [], [names[-1]], value=to_tensor(operand.value)))
            continue
        if is_constant:
            initializers.append(to_tensor(operand.value, names[-1]))
            if not draw.maybe(0.06):
                continue
        if not is_constant or draw.maybe(0.5):
            fed[names[-1]] = operand
        inputs.append(onnx.ValueInfoProto(name=names[-1], type=statement.stated(operand.tensor_type())))
    results = [f"y{i}" for i in range(draft.outputs)]
    node = helper.make_node(draft.key[1], names, results, name="node", domain=draft.key[0])
    for key, value in draft.attributes.items():
        node.attribute.append(make_attribute(key, value))
    node.attribute.extend(draft.extra)
    nodes.append(node)
    outputs = [onnx.ValueInfoProto(name=r) for r in results]
    if draw.maybe(0.08):
        for output in outputs:
            output.type.CopyFrom(a_lie(draw, draft))
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    imports = {"": 21, **draft.imports, draft.key[0]: an_opset(draw, draft)}
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(d, v) for d, v in imports.items()], ir_version=draw.one((8, 9, 10))
    )
    return Case(
        name,
        model.SerializeToString(),
        wild(runs_of(draw, fed, is_open=statement.style != "static"), draft.is_wild),
        an_option(draw),
        draft.operator,
    )


def _constancy(operand: Operand, position: int) -> float:
    return 0.5 if operand.role == "setting" else 0.35 if position else 0.12


def an_option(draw: Draw) -> Options:
    level = draw.one(LEVELS) if draw.maybe(0.4) else "all"
    precision = draw.one(("high", "medium")) if draw.maybe(0.15) else "highest"
    return Options(level, precision, draw.one((1, 1, 1, 2, 3)), draw.one(("run", "run", "run", "values", "binding")))


def an_opset(draw: Draw, draft: Draft) -> int:
    """An opset in which the operator is of this version."""
    later = [v for v in schemas.versions(draft.key) if v > draft.version]
    newest = max(schemas.newest_opset(draft.key[0]), draft.version)
    if draft.key[0]:
        return draft.version
    return draw.int(draft.version, min(later[0] - 1 if later else newest, newest))


def a_lie(draw: Draw, draft: Draft) -> onnx.TypeProto:
    """A type that the result may well not have."""
    first = next((np.asarray(o.value) for o in draft.operands if o and isinstance(o.value, np.ndarray)), np.zeros(1))
    shape: Any = list(first.shape) if draw.maybe(0.5) else draw.shape()
    if shape and draw.maybe(0.6):
        shape[draw.int(0, len(shape) - 1)] = draw.one((0, 1, 2, 4, 8, 100, "n", None))
    dtype = onnx_type(first.dtype) if draw.maybe(0.85) else draw.one((1, 2, 3, 6, 7, 9, 10, 11))
    return helper.make_tensor_type_proto(dtype, shape)


def fit_to_version(draft: Draft) -> None:
    """Operands and attributes as the version of the operator has them.

    An operand that an old version has not is an attribute there, when it has one of that name.
    """
    newest, old = schemas.schema(draft.key), schemas.schema(draft.key, draft.version)
    while len(draft.operands) > old.max_input:
        operand = draft.operands.pop()
        position = len(draft.operands)
        name = newest.inputs[position].name if position < len(newest.inputs) else ""
        if operand is not None and name in old.attributes and isinstance(operand.value, np.ndarray):
            kind = old.attributes[name].type
            flat = operand.value.reshape(-1).tolist()
            is_list = kind in (onnx.defs.OpSchema.AttrType.INTS, onnx.defs.OpSchema.AttrType.FLOATS)
            draft.attributes[name] = flat if is_list else flat[0] if flat else 0
    draft.attributes = {n: v for n, v in draft.attributes.items() if n in old.attributes or draft.version > 1}
    draft.outputs = min(draft.outputs, max(old.max_output, 1))


def runs_of(draw: Draw, fed: dict[str, Operand], *, is_open: bool = True) -> tuple[Run, ...]:
    """The values as they are, and up to three variations; of other sizes mostly where sizes are open."""
    plain = {name: o.value for name, o in fed.items()}
    runs = [Run(plain, "plain")]
    if not fed:
        return tuple(runs)
    kinds = ("extreme", "out", "empty", "resized") if is_open or draw.maybe(0.1) else ("extreme", "out", "plain")
    for kind in draw.rng.sample(kinds, draw.int(1, 3)):
        varied = vary(draw, fed, kind)
        if varied is not None:
            runs.append(Run(varied, kind))
    return tuple(runs)


def wild(runs: tuple[Run, ...], is_wild: bool) -> tuple[Run, ...]:
    """The runs, as extreme ones where constants are."""
    return tuple(replace(r, kind="extreme") if r.kind != "out" else r for r in runs) if is_wild else runs


def vary(draw: Draw, fed: dict[str, Operand], kind: str) -> dict[str, Any] | None:
    """Feeds of another kind; None where the operands leave no room for it."""
    if kind in ("empty", "resized"):
        sizes = sorted({n for o in fed.values() if isinstance(o.value, np.ndarray) for n in o.value.shape})
        if not sizes:
            return None
        old, new = draw.one(sizes), 0 if kind == "empty" else draw.size()
        made = {name: resized(draw, o, old, new) for name, o in fed.items()}
        return made if all(v.size < MAX_ELEMENTS for v in made.values() if isinstance(v, np.ndarray)) else None
    made, changed = {}, False
    for name, operand in fed.items():
        made[name] = operand.value
        if not isinstance(operand.value, np.ndarray):
            continue
        is_data = operand.role == "data"
        if kind in ("extreme", "plain") and is_data:
            made[name] = draw.values(operand.value.shape, operand.value.dtype, kind)
            changed = True
        elif kind == "out" and not is_data and operand.value.dtype.kind in "iu" and operand.value.size:
            made[name] = draw.spoil(operand.value, operand.size)
            changed = True
    return made if changed else None


def resized(draw: Draw, operand: Operand, old: int, new: int) -> Any:
    """The value with every axis of one size made another, and settings that say the size likewise."""
    value = operand.value
    if not isinstance(value, np.ndarray):
        return value
    if operand.role == "setting" and value.dtype.kind in "iu":
        return np.where(value == old, new, value).astype(value.dtype) if draw.maybe(0.7) else value
    shape = [new if n == old else n for n in value.shape]
    if shape == list(value.shape):
        return value
    if np.prod(shape, dtype=float) > MAX_ELEMENTS:
        return value
    if value.size == 0:
        return draw.values(shape, value.dtype) if operand.role == "data" else np.zeros(shape, value.dtype)
    return np.resize(value, shape)


def changed(draw: Draw, draft: Draft, strings: dict[str, list[Any]]) -> Draft:
    """The draft with one thing altered; ``strings`` are texts that other drafts have for the same attribute."""
    draft = Draft(
        draft.key, draft.version, [copy.copy(o) for o in draft.operands], dict(draft.attributes), draft.outputs,
        draft.imports, draft.extra, draft.is_wild,
    )  # fmt: skip
    draw.one((_resize, _resize, _retype, _omit, _attribute, _attribute, _rerank, _older, _spoil))(draw, draft, strings)
    return draft


def _arrays(draft: Draft) -> list[Operand]:
    return [o for o in draft.operands if o is not None and isinstance(o.value, np.ndarray)]


def _resize(draw: Draw, draft: Draft, strings: Any) -> None:
    sizes = sorted({n for o in _arrays(draft) for n in o.value.shape})
    if sizes:
        old, new = draw.one(sizes), draw.size(large=0.3)
        for o in _arrays(draft):
            o.value = resized(draw, o, old, new)
            o.size = new if o.size == old else o.size
        for name, v in draft.attributes.items():
            if isinstance(v, list) and v and isinstance(v[0], int) and draw.maybe(0.3):
                draft.attributes[name] = [new if n == old else n for n in v]


def _retype(draw: Draw, draft: Draft, strings: Any) -> None:
    groups: dict[str, list[tuple[int, Operand]]] = {}
    for i, o in enumerate(draft.operands):
        if o is not None and isinstance(o.value, np.ndarray):
            groups.setdefault(schemas.constraint_of(draft.key, draft.version, i), []).append((i, o))
    if groups:
        members = groups[draw.one(sorted(groups))]
        dtype = schemas.a_type(draw, schemas.types_of(draft.key, draft.version, members[0][0]))
        for _, o in members:
            if dtype is not None and (dtype == np.object_) == (o.value.dtype.kind in "OUST"):
                with np.errstate(all="ignore"):
                    o.value = o.value.astype(dtype)
                o.type = None


def _omit(draw: Draw, draft: Draft, strings: Any) -> None:
    if draft.operands:
        draft.operands[draw.int(0, len(draft.operands) - 1)] = None
        while draft.operands and draft.operands[-1] is None:
            draft.operands.pop()


def _attribute(draw: Draw, draft: Draft, strings: dict[str, list[Any]]) -> None:
    known = schemas.schema(draft.key, draft.version).attributes
    names = sorted(n for n in known if n not in {a.name for a in draft.extra})
    if not names:
        return
    name = draw.one(names)
    if name in draft.attributes and draw.maybe(0.2):
        del draft.attributes[name]
        return
    kind = str(known[name].type).rpartition(".")[2]
    old = draft.attributes.get(name)
    made = another(draw, kind, old, strings.get(name, []))
    if made is not None:
        draft.attributes[name] = made
        draft.is_wild |= kind in ("FLOAT", "FLOATS")


def another(draw: Draw, kind: str, old: Any, texts: list[Any]) -> Any:
    """A value for an attribute of a kind, at or beyond what is legal; None for kinds that are not made up."""
    if kind == "INT":
        near = [0, 1, -1, 2, 3, 4, 7, *([old + 1, old - 1] if isinstance(old, int) else [])]
        return draw.one(near) if draw.maybe(0.85) else draw.one((255, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 20))
    if kind == "FLOAT":
        return draw.one((0.0, 1.0, -1.0, 0.5, 1e-5, 2.0, 100.0, 1e30, float("nan"), float("inf"), -1e-30))
    if kind == "STRING":
        return draw.one([*texts, *texts, "", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "bogus"])
    if kind == "INTS":
        made = list(old) if isinstance(old, list) else [draw.int(0, 3) for _ in range(draw.int(0, 4))]
        for _ in range(draw.int(0, 2)):
            if made:
                made[draw.int(0, len(made) - 1)] = draw.one((0, 1, 2, 3, 5, -1, -2, 1 << 31, (1 << 63) - 1))
        return made[:-1] if draw.maybe(0.15) else [*made, 1] if draw.maybe(0.1) else made
    if kind == "FLOATS" and isinstance(old, list) and old:
        made = list(old)
        made[draw.int(0, len(made) - 1)] = draw.one((0.0, -1.0, 1e30, float("nan"), 0.5))
        return made[:-1] if draw.maybe(0.2) else made
    return None


def _rerank(draw: Draw, draft: Draft, strings: Any) -> None:
    arrays = _arrays(draft)
    if arrays:
        o = draw.one(arrays)
        if o.value.ndim and draw.maybe(0.5):
            o.value = (
                o.value[0]
                if o.value.shape[0]
                else o.value.reshape(o.value.shape[1:] if 0 in o.value.shape[1:] else (0,))
            )
            o.value = np.asarray(o.value)
        else:
            o.value = o.value[None]


def _older(draw: Draw, draft: Draft, strings: Any) -> None:
    draft.version = draw.one(schemas.versions(draft.key))


def _spoil(draw: Draw, draft: Draft, strings: Any) -> None:
    operands = [o for o in _arrays(draft) if o.value.size]
    if operands:
        o = draw.one(operands)
        draft.is_wild = True
        if o.value.dtype.kind in "iu" and np.dtype(o.value.dtype).name in ("int32", "int64", "uint8", "int8"):
            o.value = draw.spoil(o.value, o.size)
        else:
            o.value = draw.values(o.value.shape, o.value.dtype, "extreme")
