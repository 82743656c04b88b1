"""A user's operator, by the function of arrays that its kernel must agree with."""

from __future__ import annotations

from sardonyx.lower.groups import Custom
from sardonyx.lower.interpret.memory import Memory, meaning
from sardonyx.ops import registry


@meaning(Custom)
def custom(memory: Memory, group: Custom) -> None:
    (node,) = group.nodes
    found = registry.find(node.domain, node.op_type)
    assert found is not None, node.label
    results = found.numpy(*(None if v is None else memory.at(v) for v in group.inputs), **node.attrs)
    for view, array in zip(group.outputs, results, strict=True):
        memory.at(view)[...] = array
