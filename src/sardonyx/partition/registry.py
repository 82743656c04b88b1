"""The registry of providers: onnxruntime's names, and providers from other packages or the program itself.

A package offers a provider by an entry point of the group ``sardonyx.providers``, under the name that users ask for:
``AcmeExecutionProvider = "acme.onnx:AcmeProvider"``. A program calls ``register``. Other packages are imported only
when one of their names, or the list of available providers, is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from sardonyx.errors import EPFail, InvalidArgument
from sardonyx.partition.provider import Provider

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CPU = "CPUExecutionProvider"
GROUP = "sardonyx.providers"

ONNXRUNTIME: dict[str, str] = {
    "NvTensorRTRTXExecutionProvider": "TensorRT for RTX",
    "TensorrtExecutionProvider": "TensorRT",
    "CUDAExecutionProvider": "CUDA",
    "MIGraphXExecutionProvider": "MIGraphX",
    "OpenVINOExecutionProvider": "OpenVINO",
    "DnnlExecutionProvider": "oneDNN",
    "VitisAIExecutionProvider": "Vitis AI",
    "QNNExecutionProvider": "QNN",
    "NnapiExecutionProvider": "NNAPI",
    "VSINPUExecutionProvider": "VSINPU",
    "JsExecutionProvider": "JavaScript",
    "CoreMLExecutionProvider": "Core ML",
    "ACLExecutionProvider": "the Arm Compute Library",
    "DmlExecutionProvider": "DirectML",
    "RknpuExecutionProvider": "RKNPU",
    "WebNNExecutionProvider": "WebNN",
    "WebGpuExecutionProvider": "WebGPU",
    "XnnpackExecutionProvider": "XNNPACK",
    "CANNExecutionProvider": "CANN",
    "AzureExecutionProvider": "Azure endpoints",
    CPU: "the CPU",
}
"""All provider names of onnxruntime, in its order of preference, with a description of each."""

_registered: dict[str, Any] = {}


def register(provider: Provider | type[Provider]) -> None:
    """Add a provider to this process under its ``name``, ahead of others of that name.

    An object serves all sessions; a class is instantiated for each session with the session's options.
    """
    name = getattr(provider, "name", None)
    if not isinstance(name, str) or not name or name == CPU:
        raise InvalidArgument("a provider needs a name of its own", got=repr(name))
    _registered[name] = provider


def unregister(name: str) -> None:
    """Undo ``register``."""
    if _registered.pop(name, None) is None:
        raise InvalidArgument("no provider of this name was registered", expected=list(_registered), got=repr(name))


def names() -> list[str]:
    """Every provider's name, the most preferred first; the CPU is always last."""
    brought = [n for n in (*_registered, *_installed()) if n not in ONNXRUNTIME]
    return [*dict.fromkeys(brought), *ONNXRUNTIME]


def available() -> list[str]:
    """The names of the providers that are usable on this machine."""
    return [name for name in names() if why_not(name) is None]


def is_known(name: str) -> bool:
    return name in ONNXRUNTIME or name in _registered or name in _installed()


def why_not(name: str) -> str | None:
    """None if a known provider is usable, else the reason why not."""
    if name == CPU:
        return None
    if name not in _registered and name not in _installed():
        return f"Sardonyx has no provider for {ONNXRUNTIME[name]} in this installation"
    try:
        return make(name, {}).probe()
    except Exception as error:  # code of another package must not break a session
        return f"{name} cannot be loaded ({type(error).__name__}: {error})"


def make(name: str, options: Mapping[str, str]) -> Provider:
    """The provider of this name, with a session's options."""
    found = _registered.get(name) or _loaded(name)
    if getattr(found, "name", None) != name:
        raise EPFail("a provider must have the name it is registered under", expected=name, got=repr(found))
    if isinstance(found, type):
        try:
            made: Provider = found(**options)
        except TypeError as error:
            raise EPFail(f"{name} does not take these options: {error}", got=dict(options)) from error
        return made
    if options:
        raise EPFail(f"{name} takes no options", got=dict(options))
    provider: Provider = found
    return provider


@cache
def _installed() -> dict[str, EntryPoint]:
    """The entry points of this environment, cached: finding them reads the metadata of every package."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


@cache
def _loaded(name: str) -> Any:
    return _installed()[name].load()
