"""Conversion to half precision: f32 values become f16 or bf16, except where an operator or the user requires f32.

Each value has one type, decided where it is computed. A reader that needs the other type reads a Cast, which all such
readers of a graph share. So adjacent nodes in f32 exchange f32 values without casts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.errors import InvalidArgument
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Graph, Model, Node, Value
from sardonyx.ir.retype import has_elements, insert_cast, with_elements
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType, ValueType, ort_name
from sardonyx.model.load import load
from sardonyx.model.save import model_to_proto
from sardonyx.normalize.run import raise_opset, unify_opsets
from sardonyx.records import Record

if TYPE_CHECKING:
    import onnx

MIN_POSITIVE, MAX_FINITE = 5.96e-08, 65504.0
BF16_MIN_POSITIVE, BF16_MAX_FINITE = 2.0**-133, (2 - 2.0**-7) * 2.0**127
BF16_OPSET, BF16_IR_VERSION = 22, 10
"""From this opset on nearly all operators, Conv among them, are defined for bf16; and the IR version that it has."""

DEFAULT_OP_BLOCK_LIST = [
    "ArrayFeatureExtractor", "Binarizer", "CastMap", "CategoryMapper", "DictVectorizer", "FeatureVectorizer", "Imputer",
    "LabelEncoder", "LinearClassifier", "LinearRegressor", "Normalizer", "OneHotEncoder", "RandomUniformLike",
    "SVMClassifier", "SVMRegressor", "Scaler", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "TreeEnsemble",
    "ZipMap", "NonMaxSuppression", "TopK", "RoiAlign", "Range", "CumSum", "Min", "Max", "Upsample",
]  # fmt: skip
"""Operators that onnxruntime's conversion keeps in f32, with its names."""

WIDE_INPUTS = {"GroupNorm": (1, 2), "SkipGroupNorm": (1, 2)}
"""Inputs of com.microsoft operators that are always f32; those of ai.onnx are found in their schemas."""

WIDE_CONTRIB = frozenset({"DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QEmbedLayerNormalization"})
"""com.microsoft operators without an f16 form."""

DTYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "output_dtype")
"""Attributes that state the element type of a result."""

VALUE_ATTRIBUTES = frozenset({"mask_filter_value"})
"""Attributes with a number of the element type: what is added to masked scores, usually finfo.min."""

F32_BY_DEFAULT = {
    "RandomNormal": "dtype", "RandomUniform": "dtype", "SequenceEmpty": "dtype", "EyeLike": "dtype",
    "BlackmanWindow": "output_datatype", "HammingWindow": "output_datatype", "HannWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
}  # fmt: skip
"""Operators whose result is f32 if the attribute is omitted."""


class HalfPrecision(Record):
    """Options of a conversion: what stays in f32, and how constants are narrowed."""

    min_positive: float = MIN_POSITIVE
    max_finite: float = MAX_FINITE
    keep_io_types: bool | Collection[str] = False
    op_block_list: frozenset[str] = frozenset(DEFAULT_OP_BLOCK_LIST)
    node_block_list: frozenset[str] = frozenset()
    force_initializers: bool = False
    force_inputs: Mapping[str, Collection[int]] = field(default_factory=dict)
    wide: DType = dtypes.f32
    """The type in which blocked nodes compute."""
    narrow: DType = dtypes.f16
    """The type in which the others do."""

    def keeps(self, name: str) -> bool:
        kept = self.keep_io_types
        return kept if isinstance(kept, bool) else name in kept


def convert_np_to_float16(
    np_array: Any, min_positive_val: float = MIN_POSITIVE, max_finite_val: float = MAX_FINITE
) -> Any:
    """An array as f16 in which no nonzero finite number becomes 0 or infinite; NaN and infinities are kept."""
    return _clamped(np_array, min_positive_val, max_finite_val).astype(np.float16)


def _clamped(np_array: Any, min_positive: float, max_finite: float) -> Any:
    """An array whose nonzero finite numbers have magnitudes within limits."""
    x = np.asarray(np_array)
    size = np.abs(x)
    size = np.where((size > 0) & (size < min_positive), min_positive, size)
    size = np.where(np.isfinite(size) & (size > max_finite), max_finite, size)
    return np.copysign(size, x)


def convert_float_to_float16(
    model: Any,
    min_positive_val: float = MIN_POSITIVE,
    max_finite_val: float = MAX_FINITE,
    keep_io_types: bool | list[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Iterable[str] | None = None,
    node_block_list: Iterable[str] | None = None,
    force_fp16_initializers: bool = False,
    force_fp16_inputs: Mapping[str, Collection[int]] | None = None,
    use_bfloat16_as_blocked_nodes_dtype: bool = False,
) -> onnx.ModelProto:
    """A copy of a model (a path or a ModelProto) in half precision, with onnxruntime's arguments."""
    source = load(model, infer=not disable_shape_infer)
    unify_opsets(source)
    options = options_of(
        min_positive_val=min_positive_val,
        max_finite_val=max_finite_val,
        keep_io_types=keep_io_types,
        op_block_list=op_block_list,
        node_block_list=node_block_list,
        force_fp16_initializers=force_fp16_initializers,
        force_fp16_inputs=force_fp16_inputs,
        use_bfloat16_as_blocked_nodes_dtype=use_bfloat16_as_blocked_nodes_dtype,
    )
    return model_to_proto(to_half_precision(source, options))


def convert_float_to_bfloat16(
    model: Any,
    keep_io_types: bool | list[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Iterable[str] | None = None,
    node_block_list: Iterable[str] | None = None,
) -> onnx.ModelProto:
    """A copy of a model (a path or a ModelProto) in bf16, which has f32's range and 8 bits of precision.

    Operators are blocked only on request. The model is raised to an opset that defines its operators for bf16; those
    without such a definition stay in f32.
    """
    source = load(model, infer=not disable_shape_infer)
    unify_opsets(source)
    raise_for_bfloat16(source)
    options = bfloat16_options(
        keep_io_types=keep_io_types, op_block_list=op_block_list, node_block_list=node_block_list
    )
    return model_to_proto(to_half_precision(source, options))


def raise_for_bfloat16(model: Model) -> None:
    """Rewrite a model for an opset that defines its operators for bf16."""
    if model.opsets.get("", 1) < BF16_OPSET:
        raise_opset(model, BF16_OPSET)
        model.ir_version = max(model.ir_version, BF16_IR_VERSION)


def bfloat16_options(
    *,
    keep_io_types: bool | Iterable[str] = False,
    op_block_list: Iterable[str] | None = None,
    node_block_list: Iterable[str] | None = None,
) -> HalfPrecision:
    return HalfPrecision(
        BF16_MIN_POSITIVE,
        BF16_MAX_FINITE,
        keep_io_types if isinstance(keep_io_types, bool) else frozenset(keep_io_types),
        frozenset(op_block_list or ()),
        frozenset(node_block_list or ()),
        narrow=dtypes.bf16,
    )


def options_of(
    *,
    min_positive_val: float = MIN_POSITIVE,
    max_finite_val: float = MAX_FINITE,
    keep_io_types: bool | Iterable[str] = False,
    op_block_list: Iterable[str] | None = None,
    node_block_list: Iterable[str] | None = None,
    force_fp16_initializers: bool = False,
    force_fp16_inputs: Mapping[str, Collection[int]] | None = None,
    use_bfloat16_as_blocked_nodes_dtype: bool = False,
) -> HalfPrecision:
    """onnxruntime's arguments, checked."""
    if min_positive_val < MIN_POSITIVE:
        raise InvalidArgument(
            "min_positive_val is below f16's smallest number", expected=5.96e-08, got=min_positive_val
        )
    if max_finite_val > MAX_FINITE:
        raise InvalidArgument("max_finite_val is above f16's largest number", expected=MAX_FINITE, got=max_finite_val)
    return HalfPrecision(
        min_positive_val,
        max_finite_val,
        keep_io_types if isinstance(keep_io_types, bool) else frozenset(keep_io_types),
        frozenset(DEFAULT_OP_BLOCK_LIST if op_block_list is None else op_block_list),
        frozenset(node_block_list or ()),
        force_fp16_initializers,
        dict(force_fp16_inputs or {}),
        dtypes.bf16 if use_bfloat16_as_blocked_nodes_dtype else dtypes.f32,
    )


def to_half_precision(model: Model, options: HalfPrecision) -> Model:
    """A copy of a model in half precision."""
    copy = clone(model)
    _Conversion(copy, options).run()
    return copy


def simulated_half_precision(model: Model, options: HalfPrecision) -> Model:
    """A copy that computes in f32 and rounds every value that ``to_half_precision`` would store in half precision.

    An engine may keep values of fused operators in f32; this model tells what one gives that stores them all.
    """
    copy = clone(model)
    _Simulation(copy, options).run()
    return copy


class _Conversion:
    """Decides the types of all values first; then converts constants and inserts Casts, reader by reader."""

    def __init__(self, model: Model, options: HalfPrecision) -> None:
        self.model, self.options = model, options
        self.float: dict[Value, DType] = {}
        """The new type of every value that was f32."""
        self.blocked: set[Node] = set()
        self.casts: dict[tuple[Graph, Value, DType], Value] = {}

    def run(self) -> None:
        self._decide()
        self._convert_graph(self.model.graph)
        for value, dtype in self.float.items():
            value.type = with_elements(value.type, dtype)

    def _decide(self) -> None:
        graph = self.model.graph
        self._type_graph(graph, blocked=False)
        for value in graph.inputs:
            if _is_wide(value.type):
                self.float[value] = dtypes.f32 if self.options.keeps(value.name) else self.options.narrow

    def _type_graph(self, graph: Graph, *, blocked: bool) -> None:
        """Decide the type of every value that a graph computes."""
        inside = self.options.wide if blocked else self.options.narrow
        for value in (*graph.inputs, *graph.initializers.values()):
            if _is_wide(value.type):
                self.float[value] = dtypes.f32 if value.is_const else inside
        for node in graph.nodes:
            if blocked or self._is_blocked(node):
                self.blocked.add(node)
            for _, sub in node.subgraphs():
                self._type_graph(sub, blocked=node in self.blocked)
            for i, out in enumerate(node.outputs):
                if out.type is None and any(v is not None and v in self.float for v in node.inputs):
                    out.type = TensorType(dtypes.f32)  # only operators that onnx does not know are untyped
                if _is_wide(out.type):
                    self.float[out] = self._result_type(node, i)

    def _is_blocked(self, node: Node) -> bool:
        options = self.options
        if node.op_type in options.op_block_list or (node.name and node.name in options.node_block_list):
            return True
        return node.domain == "com.microsoft" and node.op_type in WIDE_CONTRIB

    def _result_type(self, node: Node, i: int) -> DType:
        """The new type of output ``i``, which was f32."""
        return self._fitting(node, i, node.outputs[i], _allowed_outputs)

    def _operand_type(self, node: Node, i: int) -> DType:
        """The type that the node needs for input ``i``, which was f32."""
        if i in self.options.force_inputs.get(node.op_type, ()):
            return self.options.narrow
        if node.domain == "com.microsoft" and i in WIDE_INPUTS.get(node.op_type, ()):
            return dtypes.f32
        return self._fitting(node, i, node.inputs[i], _allowed_inputs)

    def _fitting(self, node: Node, i: int, value: Value | None, allowed_at: Any) -> DType:
        wanted = self.options.wide if node in self.blocked else self.options.narrow
        places = allowed_at(node.op_type, self.model.opsets.get(node.domain, 1), node.domain)
        if not places:
            return wanted
        allowed = places[min(i, len(places) - 1)]
        t = None if value is None else with_elements(value.type, wanted)
        return wanted if ort_name(t) in allowed else dtypes.f32

    def _convert_graph(self, graph: Graph) -> None:
        for node in list(graph.nodes):
            if node not in self.blocked or self.options.wide is not dtypes.f32:
                self._restate(node)
            for _, sub in node.subgraphs():
                self._convert_graph(sub)
            for i, value in enumerate(node.inputs):
                if value in self.float:
                    node.set_input(i, self._converted(graph, value, self._operand_type(node, i), before=node))
        for i, value in enumerate(graph.outputs):
            if value in self.float:
                graph.set_output(i, self._converted(graph, value, self._output_type(graph, i), before=None))
        for name, value in list(graph.initializers.items()):
            if value in self.float and value.is_const and value.is_dead:
                del graph.initializers[name]

    def _output_type(self, graph: Graph, i: int) -> DType:
        """The type in which output ``i`` of a graph is returned."""
        if graph.parent is not None:
            return self.options.wide if graph.parent in self.blocked else self.options.narrow
        return dtypes.f32 if self.options.keeps(graph.output_names[i]) else self.options.narrow

    def _converted(self, graph: Graph, value: Value, dtype: DType, *, before: Node | None) -> Value:
        """``value`` in the given type: itself, another constant, or a Cast of it in this graph."""
        if self.float[value] is dtype and not (value.is_const and self.options.force_initializers):
            return value
        key = (graph, value, dtype)
        if key not in self.casts:
            self.casts[key] = (
                self._constant(graph, value, dtype) if value.is_const else insert_cast(graph, value, dtype, before)
            )
        return self.casts[key]

    def _constant(self, graph: Graph, value: Value, dtype: DType) -> Value:
        assert value.const is not None
        half = self._narrowed(value.const)
        if dtype is self.options.narrow:
            return graph.add_const(half, f"{value.name}_{dtype.name}")
        array = half.numpy() if self.options.force_initializers else value.numpy()
        return graph.add_const(Tensor.of(array.astype(dtype.numpy)), f"{value.name}_{dtype.name}")

    def _narrowed(self, tensor: Tensor) -> Tensor:
        """A constant in half precision, computed on demand."""
        low, high, narrow = self.options.min_positive, self.options.max_finite, self.options.narrow
        return Tensor(
            narrow, tensor.shape, lambda: _clamped(tensor.numpy(), low, high).astype(narrow.numpy), name=tensor.name
        )

    def _restate(self, node: Node) -> None:
        """Convert attributes that hold f32 data, or name f32 as the type of a result."""
        made = next((self.float[out] for out in node.outputs if out in self.float), None)
        if made is None or made is dtypes.f32:
            return
        for key in DTYPE_ATTRIBUTES:
            if node.attrs.get(key) == dtypes.f32.onnx:
                node.attrs[key] = made.onnx
        for key in VALUE_ATTRIBUTES & node.attrs.keys():
            limit = self.options.max_finite if made is self.options.narrow else float("inf")
            node.attrs[key] = max(-limit, min(limit, node.attrs[key]))
        if node.op_type in F32_BY_DEFAULT and not node.domain:
            node.attrs.setdefault(F32_BY_DEFAULT[node.op_type], made.onnx)
        if node.op_type not in ("Constant", "ConstantOfShape") or node.domain:
            return
        stated: Any = node.attrs.get("value")
        for key in ("value_float", "value_floats"):
            if key in node.attrs:
                stated = Tensor.of(np.array(node.attrs.pop(key), np.float32))
        if stated is None:
            stated = Tensor.of(np.zeros(1, np.float32))
        half = self._narrowed(stated)
        node.attrs["value"] = half if made is self.options.narrow else Tensor.of(stated.numpy().astype(made.numpy))


class _Simulation(_Conversion):
    """Decides types likewise, but leaves all values in f32 and rounds what readers get."""

    def run(self) -> None:
        self._decide()
        self._round_graph(self.model.graph)

    def _round_graph(self, graph: Graph) -> None:
        for node in list(graph.nodes):
            for _, sub in node.subgraphs():
                self._round_graph(sub)
            for i, value in enumerate(node.inputs):
                if value in self.float:
                    node.set_input(i, self._converted(graph, value, self._operand_type(node, i), before=node))
        for i, value in enumerate(graph.outputs):
            if value in self.float:
                graph.set_output(i, self._converted(graph, value, self._output_type(graph, i), before=None))

    def _converted(self, graph: Graph, value: Value, dtype: DType, *, before: Node | None) -> Value:
        """``value`` rounded to the type that it has after the conversion, then to that of its reader."""
        if not isinstance(value.type, TensorType):
            return value
        steps = tuple(t for t in dict.fromkeys((self.float[value], dtype)) if t is not dtypes.f32)
        for step in steps:
            key = (graph, value, step)
            if key not in self.casts:
                if value.is_const:
                    self.casts[key] = self._rounded_constant(graph, value, step)
                else:
                    narrow = insert_cast(graph, value, step, before)
                    self.casts[key] = insert_cast(graph, narrow, dtypes.f32, before)
            value = self.casts[key]
            self.float[value] = step
        return value

    def _rounded_constant(self, graph: Graph, value: Value, dtype: DType) -> Value:
        assert value.const is not None
        tensor = value.const
        narrow = self._narrowed(tensor) if dtype is self.options.narrow else None
        return graph.add_const(
            Tensor(
                dtypes.f32,
                tensor.shape,
                lambda: (tensor.numpy().astype(dtype.numpy) if narrow is None else narrow.numpy()).astype(np.float32),
                name=tensor.name,
            ),
            f"{value.name}_{dtype.name}",
        )


def _is_wide(t: ValueType | None) -> bool:
    return has_elements(t, dtypes.f32)


@cache
def _allowed_inputs(op_type: str, opset: int, domain: str) -> list[frozenset[str]]:
    return _allowed(op_type, opset, domain, "inputs")


@cache
def _allowed_outputs(op_type: str, opset: int, domain: str) -> list[frozenset[str]]:
    return _allowed(op_type, opset, domain, "outputs")


def _allowed(op_type: str, opset: int, domain: str, places: str) -> list[frozenset[str]]:
    """The types that an operator's schema allows at each place; empty for operators without a schema."""
    from onnx import defs

    try:
        schema = defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return []
    variables = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
    return [variables.get(formal.type_str, frozenset([formal.type_str])) for formal in getattr(schema, places)]
