"""Runs of a model on the engine that return intermediate values too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.errors import InvalidArgument
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Model, Value
from sardonyx.model.save import Names, model_to_proto
from sardonyx.quantization.data import Feeds
from sardonyx.quantization.running import check_feeds

if TYPE_CHECKING:
    from sardonyx.ir.tensor import Tensor
    from sardonyx.session.session import InferenceSession

EMBEDDED_NBYTES = 1 << 16
"""Weights up to this size are serialized with the model; larger ones are passed as they are."""


class Tapped:
    """A session of a model whose outputs are the named values of its main graph, weights and inputs among them."""

    def __init__(self, model: Model, names: Iterable[str], *, level: str = "all") -> None:
        copy = clone(model)
        found = values_by_name(copy)
        self.names = list(dict.fromkeys(names))
        for name in self.names:
            if name not in found:
                raise InvalidArgument("the model has no value of this name in its main graph", got=name)
        copy.graph.drop_outputs()
        for name in self.names:
            copy.graph.add_output(found[name], name)
        copy.declared_outputs = {}
        self._session = session_of(copy, level=level)
        self.inputs = [each.name for each in self._session.get_inputs()]

    def run(self, feeds: Feeds, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Values by name; all, or those asked for."""
        check_feeds(self._session, feeds)
        wanted = self.names if names is None else list(names)
        return dict(zip(wanted, self._session.run(wanted, dict(feeds)), strict=True))


def values_by_name(model: Model) -> dict[str, Value]:
    """The values of the main graph."""
    graph = model.graph
    values = [*graph.inputs, *graph.initializers.values(), *(v for node in graph.nodes for v in node.outputs)]
    return {v.name: v for v in values if v.name}


def session_of(model: Model, *, level: str = "all", providers: Sequence[Any] | None = None) -> InferenceSession:
    """A session of a model that is in no file; its weights are not copied."""
    from sardonyx.session.enums import GraphOptimizationLevel
    from sardonyx.session.options import SessionOptions
    from sardonyx.session.session import InferenceSession

    proto = model_to_proto(model, weights=False)
    names = Names(model.graph)
    large: dict[str, Tensor] = {}
    for value in model.graph.initializers.values():
        tensor = value.const
        if tensor is not None:
            _add_weight(proto, names(value), tensor, large)
    options = SessionOptions()
    options.graph_optimization_level = getattr(
        GraphOptimizationLevel, f"ORT_{'ENABLE' if level == 'all' else 'DISABLE'}_ALL"
    )
    options._external_initializers.update(large)
    options.add_session_config_entry("session.cache", "0")
    chosen = list(providers) if providers else ["CPUExecutionProvider"]
    return InferenceSession(proto.SerializeToString(), options, providers=chosen)


def _add_weight(proto: Any, name: str, tensor: Tensor, large: dict[str, Tensor]) -> None:
    from sardonyx import dtypes
    from sardonyx.model.save import tensor_to_proto

    if tensor.nbytes <= EMBEDDED_NBYTES or tensor.dtype is dtypes.string:
        proto.graph.initializer.append(tensor_to_proto(tensor, name))
        return
    large[name] = tensor
    stated = proto.graph.initializer.add(name=name, data_type=tensor.dtype.onnx, dims=tensor.shape)
    stated.data_location = stated.EXTERNAL
    stated.external_data.add(key="location", value="given-by-the-caller")
