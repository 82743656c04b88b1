"""ONNX's backend interface: prepare a model, run it, run one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend

from sardonyx import knobs
from sardonyx.backend.backend_rep import SardonyxBackendRep
from sardonyx.session import environment
from sardonyx.session.misuse import Misuse, Unsupported
from sardonyx.session.options import Option, SessionOptions
from sardonyx.session.session import InferenceSession

FILE_OPTIONS = frozenset({"enable_profiling", "optimized_model_filepath", "profile_file_prefix"})
"""Options that write files; they cannot be set through keyword arguments."""
ALLOWED_OPTIONS = frozenset(n for n, v in vars(SessionOptions).items() if isinstance(v, Option)) - FILE_OPTIONS


class SardonyxBackend(Backend):
    """The interface that ONNX's own test suite drives."""

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **kwargs: Any) -> bool:
        return cls.supports_device(device or environment.get_device())

    @classmethod
    def is_opset_supported(cls, model: onnx.ModelProto) -> tuple[bool, str]:
        """Every opset that onnx knows."""
        newest = onnx.defs.onnx_opset_version()
        for opset in model.opset_import:
            if opset.domain in ("", "ai.onnx") and opset.version > newest:
                return False, f"opset {opset.version} is newer than {newest}, the newest that onnx knows"
        return True, ""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.partition(":")[0] == environment.get_device()

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> SardonyxBackendRep:
        """A model, in any form that a session takes, ready to run. A session or a prepared model is returned as it
        is.
        """
        if isinstance(model, SardonyxBackendRep):
            return model
        if device is not None and not cls.supports_device(device):
            raise Unsupported(f"Incompatible device expected '{device}', got '{environment.get_device()}'")
        if isinstance(model, InferenceSession):
            return SardonyxBackendRep(model)
        options = SessionOptions()
        set_allowed(options, kwargs, ALLOWED_OPTIONS)
        excluded = knobs.BACKEND_EXCLUDE_PROVIDERS.get()
        providers = [p for p in environment.get_available_providers() if p not in excluded]
        session = InferenceSession(model, options, providers=providers)
        session.disable_fallback()
        return SardonyxBackendRep(session)

    @classmethod
    def run_model(  # type: ignore[override]  # a list, as onnxruntime gives
        cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any
    ) -> list[Any]:
        """Prepare and run."""
        return cls.prepare(model, device, **kwargs).run(inputs, **kwargs)

    @classmethod
    def run_node(  # type: ignore[override]
        cls,
        node: onnx.NodeProto,
        inputs: Sequence[Any] | Mapping[str, Any],
        device: str | None = None,
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Run one node, at the newest opset unless ``opset_version`` says otherwise."""
        given = inputs if isinstance(inputs, Mapping) else dict(zip(filter(None, node.input), inputs, strict=True))
        arrays = {name: np.asarray(value) for name, value in given.items()}
        declared = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in arrays.items()
        ]
        graph = onnx.helper.make_graph(
            [node], "node", declared, [onnx.ValueInfoProto(name=n) for n in node.output if n]
        )
        versions = {"": int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))}
        if node.domain not in ("", "ai.onnx"):
            newest = [s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == node.domain]
            versions[node.domain] = max(newest, default=1)
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
        model = onnx.helper.make_model(graph, opset_imports=opsets)
        return cls.prepare(model, device, **kwargs).run(list(arrays.values()))


def set_allowed(options: Any, settings: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """Set those options among the keyword arguments that are allowed; refuse other options, ignore other arguments."""
    for name, value in settings.items():
        if name in allowed:
            setattr(options, name, value)
        elif hasattr(options, name):
            raise Misuse(
                f"{type(options).__name__} attribute '{name}' is not permitted via the backend API. "
                f"Allowed attributes: {', '.join(sorted(allowed))}"
            )


OnnxRuntimeBackend = SardonyxBackend
is_compatible = SardonyxBackend.is_compatible
prepare = SardonyxBackend.prepare
run = run_model = SardonyxBackend.run_model
run_node = SardonyxBackend.run_node
supports_device = SardonyxBackend.supports_device
