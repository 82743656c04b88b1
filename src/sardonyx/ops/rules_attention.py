"""Inference for Attention: the lengths of its caches are sums, which onnx's schema does not compute."""

from __future__ import annotations

from sardonyx.ir import dims
from sardonyx.ir.dims import Dim
from sardonyx.ir.graph import Node
from sardonyx.ops.rules import Content, Result, Undecided, like, rule, shaped, tensor


def _four_axes(node: Node, i: int, heads: str) -> tuple[Dim, ...]:
    """(batch, heads, length, width) of an input of three or four axes."""
    shape = shaped(node, i)
    if len(shape) == 4:
        return shape
    count = node.attrs.get(heads)
    if len(shape) != 3 or not count:
        raise Undecided
    return shape[0], count, shape[1], dims.exact_div(shape[2], count)


@rule("Attention")
def _attention(node: Node, content: Content) -> Result:
    q = _four_axes(node, 0, "q_num_heads")
    k, v = _four_axes(node, 1, "kv_num_heads"), _four_axes(node, 2, "kv_num_heads")
    keys: Dim = k[2]
    if node.input(4) is not None:
        keys = dims.add(shaped(node, 4)[2], keys)
    packed = len(shaped(node)) == 3
    out = (q[0], q[2], dims.mul(q[1], v[3])) if packed else (*q[:3], v[3])
    t = tensor(node)
    return [
        like(t, out),
        like(tensor(node, 1), (*k[:2], keys, k[3])),
        like(tensor(node, 2), (*v[:2], keys, v[3])),
        like(t, (*q[:3], keys)),
    ]
