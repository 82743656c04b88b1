"""A graph under construction: values whose types and sizes are known, and nodes over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from fuzz.cases import to_tensor
from fuzz.drafts import Operand
from fuzz.draws import Draw, onnx_type

MAX_ELEMENTS = 20_000


@dataclass(frozen=True)
class V:
    """A value: its name, element type and sizes, None where only data tell."""

    name: str
    dtype: Any
    shape: tuple[int, ...] | None
    is_sequence: bool = False

    @property
    def is_float(self) -> bool:
        return np.dtype(self.dtype).kind == "f"

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) if self.shape is not None else 1


class Builder:
    """Nodes, constants and feeds of one graph; ``outer`` is the graph around a body, whose values it may read."""

    def __init__(self, draw: Draw, prefix: str = "", outer: Builder | None = None) -> None:
        self.draw, self.prefix, self.outer = draw, prefix, outer
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.values: list[V] = []
        self.fed: dict[str, Operand] = {} if outer is None else outer.fed
        self.overridable: set[str] = set()
        self.functions: list[onnx.FunctionProto] = [] if outer is None else outer.functions
        self.count = 0

    def fresh(self, word: str = "v") -> str:
        self.count += 1
        return f"{self.prefix}{word}{self.count}"

    def all_values(self) -> list[V]:
        return [*(self.outer.all_values() if self.outer else []), *self.values]

    def add(
        self, op_type: str, inputs: list[V | str | None], dtype: Any, shape: Any, *, domain: str = "", **attributes: Any
    ) -> V:
        return self.add_many(op_type, inputs, [(dtype, shape)], domain=domain, **attributes)[0]

    def add_many(
        self,
        op_type: str,
        inputs: list[V | str | None],
        outputs: list[tuple[Any, Any]],
        *,
        domain: str = "",
        **attributes: Any,
    ) -> list[V]:
        names = ["" if x is None else x.name if isinstance(x, V) else x for x in inputs]
        made = [
            V(
                self.fresh(),
                d,
                None if s is None else tuple(s),
                op_type.startswith("Sequence") and op_type not in ("SequenceAt", "SequenceLength"),
            )
            for d, s in outputs
        ]
        kept = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(
            helper.make_node(op_type, names, [v.name for v in made], name=self.fresh("n"), domain=domain, **kept)
        )
        self.values += made
        return made

    def constant(self, array: Any) -> V:
        """An initializer, a Constant node, or an initializer that may be fed."""
        array = np.asarray(array)
        name = self.fresh("c")
        made = V(name, array.dtype, array.shape)
        if self.draw.maybe(0.15):
            self.nodes.append(helper.make_node("Constant", [], [name], value=to_tensor(array)))
            return made
        self.initializers.append(to_tensor(array, name))
        if self.outer is None and self.draw.maybe(0.1):
            self.overridable.add(name)
            if self.draw.maybe(0.6):
                self.fed[name] = Operand(array, "setting" if array.dtype.kind == "i" else "data")
        return made

    def feed(self, array: Any, role: str = "data", size: int = 4) -> V:
        """An input of the model; a constant inside a body."""
        array = np.asarray(array)
        if self.outer is not None:
            return self.constant(array)
        name = self.fresh("x")
        self.fed[name] = Operand(array, role, size)
        made = V(name, array.dtype, array.shape)
        self.values.append(made)
        return made

    def setting(self, values: Any, dtype: Any = np.int64) -> V:
        """Axes, sizes, pads: a constant, a feed, or computed where nobody can know it before the run."""
        array, roll = np.asarray(values, dtype), self.draw.rng.random()
        if roll < 0.5:
            return self.constant(array)
        if roll < 0.8 or array.dtype != np.int64:
            return self.feed(array, "setting")
        half = self.feed(array, "setting")
        return self.add("Add", [half, self.constant(np.zeros_like(array))], array.dtype, array.shape)

    def pick(self, *, floats: bool = False, rank: int | None = None, known: bool = True, least: int = 0) -> V | None:
        """A random existing value, recent ones more often."""
        pool = [
            v
            for v in self.all_values()
            if not v.is_sequence
            and (v.shape is not None or not known)
            and (not floats or v.is_float)
            and (v.shape is None or ((rank is None or len(v.shape) == rank) and len(v.shape) >= least))
            and v.size <= MAX_ELEMENTS
        ]
        if not pool:
            return None
        return self.draw.one(pool[-4:]) if self.draw.maybe(0.7) else self.draw.one(pool)


def info(value: V, shape: Any = "own") -> onnx.ValueInfoProto:
    """What may be stated of a value."""
    kind = helper.make_tensor_type_proto(onnx_type(value.dtype), value.shape if shape == "own" else shape)
    return onnx.ValueInfoProto(
        name=value.name, type=helper.make_sequence_type_proto(kind) if value.is_sequence else kind
    )
