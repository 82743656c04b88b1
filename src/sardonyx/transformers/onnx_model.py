"""An optimized model with onnxruntime's interface: statistics, half precision, saving."""

from __future__ import annotations

import logging
import os
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sardonyx import dtypes
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Model, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.model.load import load
from sardonyx.model.save import ExternalData, model_to_proto, save, serialized
from sardonyx.transformers.float16 import options_of, to_half_precision
from sardonyx.transformers.proto_graph import ProtoGraph
from sardonyx.writing import Chunks, write_together, write_whole

if TYPE_CHECKING:
    import onnx

logger = logging.getLogger(__name__)

FUSED = (
    "EmbedLayerNormalization", "Attention", "MultiHeadAttention", "Gelu", "FastGelu", "BiasGelu", "GemmFastGelu",
    "LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
    "RotaryEmbedding", "QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization", "QOrderedMatMul",
)  # fmt: skip
FUSED_OF = {
    "clip": ("Attention", "FastGelu", "Gelu", "LayerNormalization", "QuickGelu", "BiasGelu", "SkipLayerNormalization"),
    "phi": ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PagedAttention", "Gelu", "BiasGelu", "FastGelu",
            "LayerNormalization", "SkipLayerNormalization"),
    "unet": ("Attention", "MultiHeadAttention", "LayerNormalization", "SkipLayerNormalization", "BiasSplitGelu",
             "GroupNorm", "SkipGroupNorm", "NhwcConv", "BiasAdd"),
    "vae": ("Attention", "GroupNorm", "SkipGroupNorm", "NhwcConv"),
    "mmdit": ("FastGelu", "MultiHeadAttention", "LayerNormalization", "SimplifiedLayerNormalization"),
    "sam2": ("MultiHeadAttention", "LayerNormalization", "SkipLayerNormalization"),
}  # fmt: skip
"""The operators that fusion statistics count: for most types of model, and for those that differ."""


class OnnxModel(ProtoGraph):
    """An optimized model. It is a graph until the proto is asked for; from then on the proto is authoritative."""

    def __init__(
        self, model: Model | onnx.ModelProto, num_heads: int = 0, hidden_size: int = 0, *, model_type: str = "bert"
    ) -> None:
        if num_heads < 0 or hidden_size < 0 or (num_heads and hidden_size % num_heads):
            raise InvalidArgument(
                "hidden_size is a multiple of num_heads", got=f"hidden_size {hidden_size}, num_heads {num_heads}"
            )
        self.num_heads, self.hidden_size, self.model_type = num_heads, hidden_size, model_type
        self._graph_model: Model | None = model if isinstance(model, Model) else None
        self._proto: onnx.ModelProto | None = None if isinstance(model, Model) else model

    @property
    def model(self) -> onnx.ModelProto:
        if self._proto is None:
            assert self._graph_model is not None
            self._proto, self._graph_model = model_to_proto(self._graph_model), None
        return self._proto

    @model.setter
    def model(self, model: onnx.ModelProto) -> None:
        self._proto, self._graph_model = model, None

    def _ir(self) -> Model:
        """The model as a graph, for reading."""
        return load(self._proto) if self._graph_model is None else self._graph_model

    def _replace_model(self, model: Model) -> None:
        self._graph_model, self._proto = model, None

    # -- inspection

    def graph(self) -> onnx.GraphProto:
        return self.model.graph

    def graphs(self) -> list[onnx.GraphProto]:
        """The main graph and every subgraph below it."""
        found = [self.model.graph]
        for graph in found:
            for node in graph.node:
                for attribute in node.attribute:
                    found += [attribute.g] if attribute.HasField("g") else []
                    found += attribute.graphs
        return found

    def nodes(self) -> list[onnx.NodeProto]:
        return [node for graph in self.graphs() for node in graph.node]

    def get_nodes_by_op_type(self, op_type: str) -> list[onnx.NodeProto]:
        return [node for node in self.nodes() if node.op_type == op_type]

    def get_initializer(self, name: str) -> onnx.TensorProto | None:
        return next((t for graph in self.graphs() for t in graph.initializer if t.name == name), None)

    def get_graph_inputs_excluding_initializers(self) -> list[onnx.ValueInfoProto]:
        constant = {t.name for t in self.model.graph.initializer}
        return [value for value in self.model.graph.input if value.name not in constant]

    def get_opset_version(self) -> int:
        found = next((o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx")), None)
        if found is None:
            raise InvalidArgument("the model imports no opset of ai.onnx")
        return int(found)

    def get_operator_statistics(self, include_domain: bool = False) -> dict[str, int]:
        """Operator to number of nodes."""
        counts = Counter(
            f"{node.domain}:{node.op_type}" if include_domain and node.domain else node.op_type
            for node in (self.nodes() if self._graph_model is None else self._graph_model.graph.all_nodes())
        )
        logger.info("Operators: %s", counts.most_common())
        return dict(counts)

    def get_fused_operator_statistics(self) -> dict[str, int]:
        """Fused operator to number of nodes."""
        counts = self.get_operator_statistics()
        return {name: counts.get(name, 0) for name in FUSED_OF.get(self.model_type, FUSED)}

    def is_fully_optimized(self, fused_op_count: dict[str, int] | None = None) -> bool:
        """Whether every transformer layer has one attention, one Gelu and two normalizations."""
        count = self.get_fused_operator_statistics() if fused_op_count is None else fused_op_count

        def total(*names: str) -> int:
            return sum(count.get(name) or 0 for name in names)

        attention = total("Attention", "MultiHeadAttention", "QOrderedAttention")
        norm = total("LayerNormalization", "SkipLayerNormalization")
        simple = total("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")
        gelu = total("Gelu", "BiasGelu", "FastGelu")
        if self.model_type == "phi":
            attention += total("GroupQueryAttention", "PagedAttention")
            return attention > 0 and attention == gelu and norm >= attention
        layered = attention > 0 and attention == gelu and max(norm, simple) >= 2 * attention
        return layered and total("EmbedLayerNormalization") > 0

    def use_float16(self) -> bool:
        """Whether any value or constant is f16."""
        graph = self._ir().graph
        values = [*graph.inputs, *graph.initializers.values(), *(v for n in graph.all_nodes() for v in n.outputs)]
        return any(v.dtype is dtypes.f16 for v in values)

    # -- modification

    def convert_float_to_float16(self, use_symbolic_shape_infer: bool = True, **kwargs: Any) -> None:
        """Convert to half or mixed precision with the arguments of ``float16.convert_float_to_float16``; inputs and
        outputs stay f32.
        """
        self._replace_model(to_half_precision(self._ir(), options_of(**{"keep_io_types": True, **kwargs})))

    def convert_model_float32_to_float16(self, cast_input_output: bool = True) -> None:
        self.convert_float_to_float16(keep_io_types=cast_input_output)

    def change_graph_inputs_to_int32(self) -> None:
        """Change inputs of 64-bit integers to 32-bit ones."""
        model = clone(self._ir())
        for value in model.graph.inputs:
            if value.dtype is not dtypes.i64 or not isinstance(value.type, TensorType) or value.const is not None:
                continue
            wide = Value(f"{value.name}_i64", value.type)
            uses = list(value.uses)
            value.type = replace(value.type, dtype=dtypes.i32)
            cast = Node("Cast", [value], [wide], {"to": dtypes.i64.onnx}, name=f"{value.name}_to_i64")
            first = next(model.graph.nodes, None)
            model.graph.append(cast) if first is None else model.graph.insert(cast, before=first)
            for node, i in uses:
                node.set_input(i, wide)
            for i, out in enumerate(model.graph.outputs):
                if out is value:
                    model.graph.set_output(i, wide)
        self._replace_model(model)

    def use_dynamic_axes(self, dynamic_batch_dim: str = "batch_size", dynamic_seq_len: str = "max_seq_len") -> None:
        """Name the first two dimensions of integer inputs, and the first of outputs."""
        for value in self.get_graph_inputs_excluding_initializers():
            if value.type.tensor_type.elem_type in (dtypes.i64.onnx, dtypes.i32.onnx):
                names = (dynamic_batch_dim, dynamic_seq_len)
                for dim, name in zip(value.type.tensor_type.shape.dim, names, strict=False):
                    if name is not None:
                        dim.dim_param = name
        for value in self.model.graph.output:
            if value.type.tensor_type.shape.dim:
                value.type.tensor_type.shape.dim[0].dim_param = dynamic_batch_dim

    def topological_sort(self, is_deterministic: bool = False, dump_model_on_failure: bool = False) -> None:
        """No-op: nodes are always in topological order."""

    # -- saving

    def save_model_to_file(
        self,
        output_path: str | os.PathLike[str],
        use_external_data_format: bool = False,
        all_tensors_to_one_file: bool = True,
        size_threshold: int = 1024,
        convert_attribute: bool = False,
    ) -> None:
        """Write the model; weights go to a separate file on request, or if they are too large."""
        path = Path(output_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._graph_model is not None and not convert_attribute:
            outside = ExternalData(threshold_nbytes=size_threshold, one_file=all_tensors_to_one_file)
            save(self._graph_model, path, external=outside if use_external_data_format else None)
        else:
            OnnxModel.save(
                self.model if self._graph_model is None else model_to_proto(self._graph_model),
                str(path),
                use_external_data_format,
                all_tensors_to_one_file,
                size_threshold,
                convert_attribute,
            )
        logger.info("Model saved to %s", path)

    @staticmethod
    def save(
        model: onnx.ModelProto,
        output_path: str,
        save_as_external_data: bool = False,
        all_tensors_to_one_file: bool = True,
        size_threshold: int = 1024,
        convert_attribute: bool = False,
    ) -> None:
        """Write a proto, as ``save_model_to_file`` does. After a failure all files are unchanged."""
        import onnx

        path = Path(output_path)
        try:
            if not save_as_external_data:
                write_whole(output_path, serialized(model))
                return
            outside = onnx.ModelProto()
            outside.CopyFrom(model)
            with tempfile.TemporaryDirectory(prefix=".sardonyx-", dir=path.parent, ignore_cleanup_errors=True) as made:
                onnx.save_model(
                    outside,
                    str(Path(made) / path.name),
                    save_as_external_data=True,
                    all_tensors_to_one_file=all_tensors_to_one_file,
                    location=f"{path.name}.data" if all_tensors_to_one_file else None,
                    size_threshold=size_threshold,
                    convert_attribute=convert_attribute,
                )
                files = sorted(Path(made).iterdir(), key=lambda file: file.name == path.name)
                write_together([(str(path.parent / file.name), _contents(file)) for file in files])
        except OSError as e:
            raise Fail(f"the model cannot be written ({e.strerror})", where=output_path) from None


def _contents(file: Path) -> Chunks:
    with file.open("rb") as opened:
        while chunk := opened.read(1 << 24):
            yield chunk
