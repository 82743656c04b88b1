"""onnx's reference operators as kernels, for operators that Sardonyx does not implement itself."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx

from sardonyx.errors import NotImplemented
from sardonyx.interpret.program import Kernel
from sardonyx.ir.graph import Node
from sardonyx.model.save import Names, node_to_proto
from sardonyx.model.types import to_proto
from sardonyx.ops.infer import OPSETS


def _evaluator() -> Any:
    """A reference evaluator of an empty graph, which gives access to onnx's table of operators."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(
        onnx.helper.make_model(
            onnx.helper.make_graph([], "empty", [], []),
            opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in OPSETS.items()],
        )
    )


@cache
def exists(domain: str, op_type: str) -> bool:
    """Whether onnx has a reference implementation of an operator."""
    if domain not in OPSETS:
        return False
    from onnx.reference import op_run

    try:
        _evaluator()._load_impl(onnx.NodeProto(op_type=op_type, domain=domain))
    except op_run.RuntimeContextError:
        return True
    except Exception:  # onnx raises different errors for unknown operators
        return False
    return True


def kernel(node: Node) -> Kernel:
    """The reference operator of a node, instantiated once."""
    if not exists(node.domain, node.op_type):
        raise NotImplemented(
            f"no implementation is known of operator {node.domain or 'ai.onnx'}.{node.op_type}",
            where=node.label,
            hint="check the operator's name and domain, and the model's opset imports",
        )
    from onnx.reference import op_run

    evaluator = _evaluator()
    proto = node_to_proto(node, Names(node.graph) if node.graph is not None else None)
    try:
        cls = evaluator._load_impl(proto)
    except op_run.RuntimeContextError:
        if any(v is not None and v.type is None for v in node.inputs):
            return _deferred(evaluator, proto)
        cls = evaluator._load_impl(proto, [to_proto(v.type) for v in node.inputs if v is not None])
    return _call(cls(proto, _params(evaluator)))


def _deferred(evaluator: Any, proto: onnx.NodeProto) -> Kernel:
    """A kernel whose reference body depends on types that are known only in a run."""
    made: dict[Any, Kernel] = {}

    def run(*args: Any) -> Any:
        key = tuple((a.dtype, a.ndim) for a in args)
        if key not in made:
            types = [
                onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for a in args
            ]
            made[key] = _call(evaluator._load_impl(proto, types)(proto, _params(evaluator)))
        return made[key](*args)

    return run


def _params(evaluator: Any) -> dict[str, Any]:
    return {
        "log": lambda *_: None,
        "opsets": evaluator.opsets,
        "verbose": 0,
        "new_ops": {},
        "existing_functions": {},
        "evaluator_cls": type(evaluator),
    }


def _call(operator: Any) -> Kernel:
    if operator.need_context():
        return lambda *args: operator.run(*args, context={})
    return lambda *args: operator.run(*args)
