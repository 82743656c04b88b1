"""Writes nodes as expressions: ``op.Mul(x, op.Sigmoid(x))``.

One writer serves function bodies, opset upgrades and fusions. Python numbers and numpy arrays become constants;
``op.call(domain, ...)`` reaches other domains; a keyword is an attribute, and one that is None is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor


class Builder:
    """Appends to ``graph``, or inserts in front of ``before``; new nodes carry the ``origin`` of what they replace."""

    def __init__(
        self, graph: Graph, before: Node | None = None, *, prefix: str = "", origin: tuple[str, ...] = ()
    ) -> None:
        self.graph, self.before, self.prefix, self.origin = graph, before, prefix, origin
        self.made: list[Node] = []

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if not op_type[0].isupper():
            raise AttributeError(op_type)
        return lambda *inputs, outputs=1, **attrs: self.call("", op_type, *inputs, outputs=outputs, **attrs)

    def call(self, domain: str, op_type: str, *inputs: Any, outputs: int | list[Value] = 1, **attrs: Any) -> Any:
        """One node; its value, or a tuple of values when ``outputs`` is not 1."""
        args = [self.value(x) for x in inputs]
        while args and args[-1] is None:
            args.pop()
        stem = f"{self.prefix}/{op_type}_{len(self.made)}" if self.prefix else f"{op_type}_{len(self.made)}"
        if isinstance(outputs, int):
            outs = [Value(stem if outputs == 1 else f"{stem}:{i}") for i in range(outputs)]
        else:
            outs = outputs
        kept = {key: _attr(value) for key, value in attrs.items() if value is not None}
        node = Node(op_type, args, outs, kept, domain=domain, name=stem, origin=self.origin)
        if self.before is None:
            self.graph.append(node)
        else:
            self.graph.insert(node, before=self.before)
        self.made.append(node)
        return outs[0] if outputs == 1 else tuple(outs)

    def value(self, x: Any) -> Value | None:
        """``x`` as a value: a number is an i64, f32 or bool scalar, a list of ints an i64 vector."""
        if x is None or isinstance(x, Value):
            return x
        return self.const(x)

    def const(self, x: Any, dtype: Any = None) -> Value:
        if isinstance(x, Tensor):
            return self.graph.add_const(x, f"{self.prefix}/const")
        if dtype is None and isinstance(x, float):
            dtype = np.float32
        if dtype is None and isinstance(x, (int, list, tuple)) and not isinstance(x, bool):
            dtype = np.int64
        return self.graph.add_const(np.array(x, dtype), f"{self.prefix}/const")


def _attr(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, np.ndarray):
        return Tensor.of(value)
    return value
