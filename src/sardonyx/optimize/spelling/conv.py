"""Fuses convolutions and Gemm with a following addition and activation."""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.checks import number, root, same_shape
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import Match, attribute
from sardonyx.optimize.spelling import MICROSOFT
from sardonyx.optimize.spelling.activation import require_kernel

CONV_ACTIVATIONS = {
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}
"""Activations of FusedConv except Clip, with the attributes that become its parameters."""

GEMM_ACTIVATIONS = {
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}


@optimization("SpellShapesLast")
def spell_shapes_last(graph: Graph, log: Log) -> None:
    """Shape(x)  ->  Shape(activation(x)), if x has no other reader, so that the activation can be fused into x."""
    passed: set[Node] = set()
    for node in graph.nodes:
        passed.add(node)
        for _, sub in node.subgraphs():
            spell_shapes_last(sub, log)
        x = node.inputs[0] if node.op_type == "Shape" and not node.domain else None
        if x is None or x.producer is None or x.producer.onnx_op not in ("Conv", "Gemm", "Add"):
            continue
        others = [reader for reader in x.consumers if reader.onnx_op != "Shape"]
        if len(others) == 1 and others[0].graph is graph and _is_activation(others[0], x) and not x.is_output:
            if others[0] not in passed:
                graph.move(others[0], before=node)
            node.set_input(0, others[0].outputs[0])
            log.did(node, f"reads the shape of what {others[0].label} gives")


def _is_activation(node: Node, x: Value) -> bool:
    """Whether a node is elementwise in ``x``, with constants as other operands."""
    known = node.onnx_op == "Clip" or node.onnx_op in CONV_ACTIVATIONS or node.onnx_op in GEMM_ACTIVATIONS
    return known and not node.domain and all(v is x or v is None or v.is_const for v in node.inputs)


def _convolution(op: Any, x: Any, w: Any) -> Any:
    return op.Conv(x, w, op.optional("b"), name="conv")


def _fused(op: Builder, m: Match, kind: str | None, parameters: list[float]) -> Any:
    require_kernel(m.x)
    return op.call(
        MICROSOFT,
        "FusedConv",
        m.x,
        m.w,
        m.b,
        m.values.get("z"),
        activation=kind,
        activation_params=parameters or None,
        **m.node("conv").attrs,
    )


@fusion
class SpellConvAdd(Fusion):
    """Conv(x, w, b) + z  ->  FusedConv(x, w, b, z)."""

    def pattern(self, op: Any, x: Any, w: Any, z: Any) -> Any:
        return _convolution(op, x, w) + z

    def rewrite(self, op: Builder, m: Match) -> Any:
        require(same_shape(m.z, m.node("conv").output), "the addend is not known to be of the product's shape", m.z)
        return _fused(op, m, None, [])


@fusion
class SpellConvActivation(Fusion):
    """activation(Conv(x, w, b))  ->  FusedConv(x, w, b), also with an addition before the activation."""

    def pattern(self, op: Any, x: Any, w: Any, z: Any, low: Any, high: Any) -> Any:
        conv = _convolution(op, x, w)
        added = op.call(MICROSOFT, "FusedConv", x, w, op.optional("b"), z, activation=None, name="conv")
        kinds = tuple(CONV_ACTIVATIONS)
        return (
            op.call("", kinds, conv),
            op.Clip(conv, low, high),
            op.call("", kinds, added),
            op.Clip(added, low, high),
        )

    def rewrite(self, op: Builder, m: Match) -> Any:
        node = root(m)
        if node.onnx_op == "Clip":
            return _fused(op, m, "Clip", [number(m.low, "the least value"), number(m.high, "the largest value")])
        return _fused(op, m, node.op_type, _parameters(node, CONV_ACTIVATIONS[node.op_type]))


def _parameters(node: Node, names: tuple[str, ...]) -> list[float]:
    return [float(attribute(node, name)) for name in names]


@fusion
class SpellGemmActivation(Fusion):
    """activation(Gemm(a, b, c))  ->  FusedGemm(a, b, c)."""

    def pattern(self, op: Any, a: Any, b: Any) -> Any:
        return op.call("", tuple(GEMM_ACTIVATIONS), op.Gemm(a, b, op.optional("c"), name="gemm"))

    def rewrite(self, op: Builder, m: Match) -> Any:
        node, gemm = root(m), m.node("gemm")
        require(m.a.dtype is dtypes.f32, "onnxruntime has no kernel for the element type", m.a)
        names = GEMM_ACTIVATIONS[node.op_type]
        parameters = dict(zip((f"activation_{n}" for n in names), _parameters(node, names), strict=True))
        attrs: dict[str, Any] = {**gemm.attrs, **parameters}
        return op.call(MICROSOFT, "FusedGemm", m.a, m.b, m.c, activation=node.op_type, **attrs)
