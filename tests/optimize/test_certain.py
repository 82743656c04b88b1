"""Nothing that is called certain of a value is ever wrong: facts against what a run of ONNX's own cases makes.

Each model is walked with its inputs declared in numbers, by names, and not at all.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.interpret.bind import compile_graph
from sardonyx.interpret.context import RunContext
from sardonyx.ir import dims
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize
from sardonyx.optimize.symbolic import Facts
from tests.conformance.onnx_cases import Case, every

DECLARED = ("numbers", "names", "nothing")


def redeclared(proto: onnx.ModelProto, how: str) -> onnx.ModelProto:
    """The model with the sizes of its inputs declared in another way, and stale sizes stated of its outputs."""
    changed = onnx.ModelProto.FromString(proto.SerializeToString())
    for out in changed.graph.output:
        for d in out.type.tensor_type.shape.dim:
            d.dim_value = 1 + d.dim_value
    constants = {t.name for t in changed.graph.initializer}
    for v in changed.graph.input:
        if how == "numbers" or v.name in constants:
            continue
        for axis, d in enumerate(v.type.tensor_type.shape.dim):
            if how == "names":
                d.dim_param = f"{v.name}.{axis}"
            else:
                d.Clear()
    return changed


def facts_of(graph: Graph) -> tuple[Facts, dict[Value, Any]]:
    """What is certain of every value while the graph is walked."""
    types: dict[Value, Any] = {}
    facts = Facts()

    def note(_: Graph, node: Node) -> None:
        types.update({v: v.type for v in (*node.inputs, *node.outputs) if v is not None})
        for _key, body in node.subgraphs():
            types.update({v: v.type for v in (*body.inputs, *body.outputs)})

    facts.walk(graph, note)
    return facts, types


def contradiction(value: Value, facts: Facts, types: dict[Value, Any], array: Any, sizes: dict[str, int]) -> str | None:
    t = types.get(value)
    if not isinstance(t, TensorType):
        return None
    if not isinstance(array, np.ndarray):
        return f"{value.name} is no tensor"
    if array.dtype != t.dtype.numpy:
        return f"{value.name} is {array.dtype}, not {t.dtype}"
    if t.shape is None:
        return None
    if len(t.shape) != array.ndim:
        return f"{value.name} has rank {array.ndim}, not {len(t.shape)}"
    for d, n in zip(t.shape, array.shape, strict=True):
        size = _evaluated(d, sizes)
        if size is not None and size != n:
            return f"{value.name} is {array.shape}, not {t.shape}"
    content = facts.content(value)
    if content is not None:
        for d, n in zip(content.flat, array.reshape(-1).tolist(), strict=True):
            element = _evaluated(d, sizes)
            if element is not None and element != n:
                return f"{value.name} holds {array}, not {content}"
    return None


def _evaluated(d: Any, sizes: dict[str, int]) -> Any:
    """A number, or None if it depends on a size that is known only in the run."""
    if isinstance(d, str) and not set(dims.names(d)) <= sizes.keys():
        return None
    return dims.evaluate(d, sizes) if isinstance(d, str) else d


class Watch:
    """Compares every value of a run with what is certain of it."""

    def __init__(self, graph: Graph, inputs: list[Any]) -> None:
        self.facts, self.types = facts_of(graph)
        self.sizes = {
            str(dims.known(f"{v.name}.{axis}")): n
            for v, array in zip(graph.inputs, inputs, strict=False)
            for axis, n in enumerate(getattr(array, "shape", ()))
        }
        self.wrong: list[str] = []

    def __call__(self, node: Node, start: int, end: int, args: Any, results: Any) -> None:
        for value, result in zip(node.outputs, results, strict=False):
            if result is not None:
                array = np.asarray(result) if isinstance(result, np.generic) else result
                found = contradiction(value, self.facts, self.types, array, self.sizes)
                self.wrong += [] if found is None else [f"{node.op_type}: {found}"]


@pytest.mark.sliced(24)
@pytest.mark.parametrize("case", [c for c in every() if c.kind == "node"], ids=lambda c: c.name)
def test_certain_facts_hold(case: Case) -> None:
    proto = case.model()
    for how in DECLARED:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = load(redeclared(proto, how))
            normalize(model)
            for inputs, _ in case.data_sets():
                watch = Watch(model.graph, inputs)
                compile_graph(model.graph).run(inputs, RunContext(record=watch))
                assert not watch.wrong, how
