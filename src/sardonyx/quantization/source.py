"""Models to quantize: read, checked, and raised to the opset that the types need."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable
from typing import Any

from sardonyx import dtypes
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Graph, Model, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType
from sardonyx.model.load import load
from sardonyx.normalize.run import lowest_opset, normalize, unify_opsets
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.shape_inference import infer_shapes

logger = logging.getLogger("sardonyx.quantization")

MICROSOFT = "com.microsoft"
_KEPT = "sardonyx.kept"
"""Domain that stands for com.microsoft while a model is raised, so that its operators are not expanded."""

INTEGER_OPERATORS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"})
_PREPROCESSED = ("onnx.quant.pre_process", "onnxruntime.quant")


def read_model(source: Any) -> Model:
    """A model that may be rewritten, from a path, bytes, an ``onnx.ModelProto`` or an ``ir.Model``."""
    model = clone(source) if isinstance(source, Model) else load(source)
    unify_opsets(model)
    if any(out.name and out.dtype is None for node in model.graph.nodes for out in node.outputs):
        infer_shapes(model)
    return model


def refuse_quantized(model: Model) -> None:
    """Refuse a model whose activations are quantized already; constants that a DequantizeLinear reads are allowed."""
    for node in model.graph.all_nodes():
        if node.op_type in INTEGER_OPERATORS or node.op_type.startswith("QLinear"):
            raise Misuse(
                "the model is quantized already",
                where=node.label,
                hint="quantize the float model that it was made of; a quantized model runs as it is",
            )


def warn_unless_preprocessed(model: Model) -> None:
    """onnxruntime's warning of models that went without pre-processing, at a lower level."""
    key, value = _PREPROCESSED
    if model.metadata.get(key) != value:
        logger.info("the model was not pre-processed; quant_pre_process folds constants and fuses normalizations first")


def warn_of_unknown_nodes(model: Model, names: Iterable[str], what: str) -> None:
    known = {node.name for node in model.graph.all_nodes()}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 2)
            logger.warning("%s: the model has no node %r%s", what, name, f"; near: {', '.join(near)}" if near else "")


def opset_of(model: Model) -> int:
    return model.opsets.get("", 1)


def raise_opset(model: Model, version: int) -> None:
    """Rewrite a model for an opset of ai.onnx of at least ``version``."""
    if opset_of(model) >= version:
        return
    logger.info("the model is raised from opset %d to %d, which the types need", opset_of(model), version)
    foreign = [node for node in model.graph.all_nodes() if node.domain == MICROSOFT]
    for node in foreign:
        node.domain = _KEPT
    contrib = model.opsets.get(MICROSOFT)
    normalize(model)
    for node in foreign:
        node.domain = MICROSOFT
    if foreign:
        model.opsets[MICROSOFT] = contrib or 1
    model.opsets[""] = lowest_opset(model, "", at_least=version)


def is_real(value: Value | None) -> bool:
    """Whether a value is a tensor of f32 or f16, which can be quantized."""
    return value is not None and value.dtype in (dtypes.f32, dtypes.f16)


def is_weight(value: Value | None) -> bool:
    """Whether a value is a constant of reals."""
    return value is not None and value.const is not None and is_real(value)


def assume_types(model: Model, number: int | None) -> frozenset[str]:
    """Give results whose type is not known the element type with this ``TensorProto.DataType``; returns their names."""
    if number is None:
        return frozenset()
    untyped = [v for node in model.graph.all_nodes() for v in node.outputs if v.type is None and not v.is_dead]
    for value in untyped:
        value.type = TensorType(dtypes.of_onnx(number))
    return frozenset(value.name for value in untyped)


def forget_types(model: Model, names: Collection[str]) -> None:
    """Take back what ``assume_types`` did: a file that states a wrong type is refused by other engines."""
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.name in names:
                value.type = None


def local_uses(value: Value, graph: Graph) -> list[tuple[Node, int]]:
    """The uses of a value by nodes of ``graph`` itself, without those in bodies of If, Loop and Scan."""
    return [(node, i) for node, i in value.uses if node.graph is graph]


def place_after(graph: Graph, value: Value) -> Node | None:
    """The node in front of which a reader of the value may stand; None for the end of the graph."""
    return next(graph.nodes, None) if value.producer is None else value.producer.following


def lift_constants(graph: Graph) -> None:
    """Make the results of Constant nodes, where they are tensors of reals, initializers of the same names."""
    for node in graph.nodes:
        if node.op_type == "Constant" and not node.domain and isinstance(node.attrs.get("value"), Tensor):
            old = node.output
            if is_real(old) and old.name not in graph.initializers and not old.is_output:
                graph.replace_uses(old, graph.add_const(node.attrs["value"], old.name))
                graph.remove(node)


def drop_unused(graph: Graph) -> None:
    """Remove initializers that nothing reads, in bodies too."""
    for node in graph.nodes:
        for _, body in node.subgraphs():
            drop_unused(body)
    for name in [name for name, value in graph.initializers.items() if value.is_dead]:
        value = graph.initializers.pop(name)
        if value in graph.inputs:
            graph.inputs.remove(value)
