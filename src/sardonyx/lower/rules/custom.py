"""Users' own operators: scalar programs, and operators with a kernel of their own."""

from __future__ import annotations

from sardonyx.errors import InvalidGraph, NotImplemented, SardonyxError
from sardonyx.ir.graph import Node, Value
from sardonyx.lower import views
from sardonyx.lower.groups import Custom, View
from sardonyx.lower.lowering import FOREIGN, OTHER, Lowering, rule
from sardonyx.lower.rules.pointwise import pointwise
from sardonyx.lower.sizes import Refused
from sardonyx.ops import registry


@rule(OTHER, domain=FOREIGN)
def custom(low: Lowering, node: Node) -> None:
    """A kernel declines a node by raising NotImplemented with the reason."""
    found = registry.find(node.domain, node.op_type)
    launch = None if found is None or found.custom is None else found.custom.launch
    if launch is None:
        pointwise(low, node)
        return
    inputs = tuple(None if v is None else _dense(low, v) for v in node.inputs)
    outputs = tuple(low.make(v) for v in node.outputs)
    try:
        kernel, args = launch(*inputs, *outputs, **node.attrs)
    except NotImplemented as why:
        raise Refused(str(why)) from None
    except SardonyxError:
        raise
    except Exception as error:
        what = f"the kernel of {node.domain}.{node.op_type} raised {type(error).__name__}: {error}"
        raise InvalidGraph(what, where=node.label) from error
    low.groups.append(Custom((node,), inputs, outputs, kernel, dict(args)))


def _dense(low: Lowering, value: Value) -> View:
    view = low.view(value)
    if views.is_dense(view):
        return view
    copy = low.temporary(view.dtype, view.shape)
    low.copy(view, copy)
    return copy
