"""Sardonyx: ONNX models, run by Python, with onnxruntime's API.

    import sardonyx as ort
    session = ort.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x})

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_HOMES: dict[str, str] = {
    "InferenceSession": "session.session",
    **dict.fromkeys(
        (
            "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "OrtAllocatorType", "OrtCompileApiFlags",
            "OrtDeviceMemoryType", "OrtDeviceVendorId", "OrtExecutionProviderDevicePolicy", "OrtHardwareDeviceType",
            "OrtMemType", "OrtMemoryInfoDeviceType", "OrtSparseFormat",
        ),
        "session.enums",
    ),
    **dict.fromkeys(
        ("OrtArenaCfg", "OrtDevice", "OrtEpDevice", "OrtHardwareDevice", "OrtMemoryInfo", "OrtSyncStream"),
        "session.devices",
    ),
    **dict.fromkeys(
        (
            "create_and_register_allocator", "create_and_register_allocator_v2", "disable_telemetry_events",
            "enable_telemetry_events", "get_all_providers", "get_available_providers", "get_build_info", "get_device",
            "get_ep_devices", "get_version_string", "has_collective_ops", "register_execution_provider_library",
            "set_global_thread_pool_sizes", "set_seed", "unregister_execution_provider_library", "preload_dlls",
            "print_debug_info",
        ),
        "session.environment",
    ),
    **dict.fromkeys(
        ("set_default_logger_callback", "set_default_logger_severity", "set_default_logger_verbosity"), "session.log"
    ),
    **dict.fromkeys(("ModelMetadata", "NodeArg", "OrtEpAssignedNode", "OrtEpAssignedSubgraph"), "session.metadata"),
    **dict.fromkeys(
        ("ModelCompiler", "OrtEpContextData", "OrtEpContextDataBuffer", "OrtExternalInitializerInfo"),
        "session.compiler",
    ),
    **dict.fromkeys(("AdapterFormat", "LoraAdapter"), "session.adapters"),
    **dict.fromkeys(("IOBinding", "SessionIOBinding"), "session.binding"),
    **dict.fromkeys(("RunOptions", "SessionOptions"), "session.options"),
    **dict.fromkeys(("OrtValue", "copy_tensors"), "session.values"),
    "Limits": "limits",
    "load_untrusted": "session.untrusted",
    "SparseTensor": "session.sparse",
    "as_onnxruntime": "shim",
    **dict.fromkeys(("bisect_model", "optimize_model"), "optimize.api"),
    "custom_op": "ops.custom",
}  # fmt: skip
_MODULES = (
    "backend",
    "bench",
    "cache",
    "capi",
    "datasets",
    "errors",
    "pipeline",
    "profile",
    "quantization",
    "report",
    "shim",
    "transformers",
    "tune",
)
_ALIASES = {"package_name": "onnxruntime", "cuda_version": ""}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604

if TYPE_CHECKING:
    from sardonyx.limits import Limits as Limits
    from sardonyx.ops.custom import custom_op as custom_op
    from sardonyx.optimize.api import bisect_model as bisect_model
    from sardonyx.optimize.api import optimize_model as optimize_model
    from sardonyx.session.adapters import AdapterFormat as AdapterFormat
    from sardonyx.session.adapters import LoraAdapter as LoraAdapter
    from sardonyx.session.binding import IOBinding as IOBinding
    from sardonyx.session.binding import SessionIOBinding as SessionIOBinding
    from sardonyx.session.compiler import ModelCompiler as ModelCompiler
    from sardonyx.session.compiler import OrtEpContextData as OrtEpContextData
    from sardonyx.session.compiler import OrtEpContextDataBuffer as OrtEpContextDataBuffer
    from sardonyx.session.compiler import OrtExternalInitializerInfo as OrtExternalInitializerInfo
    from sardonyx.session.devices import OrtArenaCfg as OrtArenaCfg
    from sardonyx.session.devices import OrtDevice as OrtDevice
    from sardonyx.session.devices import OrtEpDevice as OrtEpDevice
    from sardonyx.session.devices import OrtHardwareDevice as OrtHardwareDevice
    from sardonyx.session.devices import OrtMemoryInfo as OrtMemoryInfo
    from sardonyx.session.devices import OrtSyncStream as OrtSyncStream
    from sardonyx.session.enums import ExecutionMode as ExecutionMode
    from sardonyx.session.enums import ExecutionOrder as ExecutionOrder
    from sardonyx.session.enums import GraphOptimizationLevel as GraphOptimizationLevel
    from sardonyx.session.enums import OrtAllocatorType as OrtAllocatorType
    from sardonyx.session.enums import OrtCompileApiFlags as OrtCompileApiFlags
    from sardonyx.session.enums import OrtDeviceMemoryType as OrtDeviceMemoryType
    from sardonyx.session.enums import OrtDeviceVendorId as OrtDeviceVendorId
    from sardonyx.session.enums import OrtExecutionProviderDevicePolicy as OrtExecutionProviderDevicePolicy
    from sardonyx.session.enums import OrtHardwareDeviceType as OrtHardwareDeviceType
    from sardonyx.session.enums import OrtMemoryInfoDeviceType as OrtMemoryInfoDeviceType
    from sardonyx.session.enums import OrtMemType as OrtMemType
    from sardonyx.session.enums import OrtSparseFormat as OrtSparseFormat
    from sardonyx.session.environment import create_and_register_allocator as create_and_register_allocator
    from sardonyx.session.environment import create_and_register_allocator_v2 as create_and_register_allocator_v2
    from sardonyx.session.environment import disable_telemetry_events as disable_telemetry_events
    from sardonyx.session.environment import enable_telemetry_events as enable_telemetry_events
    from sardonyx.session.environment import get_all_providers as get_all_providers
    from sardonyx.session.environment import get_available_providers as get_available_providers
    from sardonyx.session.environment import get_build_info as get_build_info
    from sardonyx.session.environment import get_device as get_device
    from sardonyx.session.environment import get_ep_devices as get_ep_devices
    from sardonyx.session.environment import get_version_string as get_version_string
    from sardonyx.session.environment import has_collective_ops as has_collective_ops
    from sardonyx.session.environment import preload_dlls as preload_dlls
    from sardonyx.session.environment import print_debug_info as print_debug_info
    from sardonyx.session.environment import register_execution_provider_library as register_execution_provider_library
    from sardonyx.session.environment import set_global_thread_pool_sizes as set_global_thread_pool_sizes
    from sardonyx.session.environment import set_seed as set_seed
    from sardonyx.session.environment import (
        unregister_execution_provider_library as unregister_execution_provider_library,
    )
    from sardonyx.session.log import set_default_logger_callback as set_default_logger_callback
    from sardonyx.session.log import set_default_logger_severity as set_default_logger_severity
    from sardonyx.session.log import set_default_logger_verbosity as set_default_logger_verbosity
    from sardonyx.session.metadata import ModelMetadata as ModelMetadata
    from sardonyx.session.metadata import NodeArg as NodeArg
    from sardonyx.session.metadata import OrtEpAssignedNode as OrtEpAssignedNode
    from sardonyx.session.metadata import OrtEpAssignedSubgraph as OrtEpAssignedSubgraph
    from sardonyx.session.options import RunOptions as RunOptions
    from sardonyx.session.options import SessionOptions as SessionOptions
    from sardonyx.session.session import InferenceSession as InferenceSession
    from sardonyx.session.sparse import SparseTensor as SparseTensor
    from sardonyx.session.untrusted import load_untrusted as load_untrusted
    from sardonyx.session.values import OrtValue as OrtValue
    from sardonyx.session.values import copy_tensors as copy_tensors
    from sardonyx.shim import as_onnxruntime as as_onnxruntime


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"sardonyx.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"sardonyx.{name}")
    elif name == "onnxruntime_validation":
        value = import_module("sardonyx.capi.onnxruntime_validation")
    elif name in _ALIASES:
        value = _ALIASES[name]
    elif name == "version":
        value = __version__
    else:
        raise AttributeError(f"module 'sardonyx' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, *_ALIASES, "onnxruntime_validation", "version"})
