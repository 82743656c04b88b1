"""Process-wide functions: providers, devices, allocators, seeds, thread pools. There is no telemetry."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import Fail, NotImplemented
from sardonyx.partition import registry
from sardonyx.partition.registry import CPU
from sardonyx.session.devices import OrtArenaCfg, OrtEpDevice, OrtHardwareDevice, OrtMemoryInfo, cpu_hardware
from sardonyx.session.enums import OrtCompiledModelCompatibility, OrtDeviceEpIncompatibilityReason
from sardonyx.session.misuse import Misuse

API_VERSION = "1.31.1"
"""The version of onnxruntime whose Python API this is."""

_thread_pool: tuple[int, int] | None = None
_allocators: dict[tuple[str, int], OrtArenaCfg | None] = {}


def get_all_providers() -> list[str]:
    """Every execution provider's name, the most preferred first."""
    return registry.names()


def get_available_providers() -> list[str]:
    """The names of the providers that are usable on this machine."""
    return registry.available()


def get_device() -> str:
    return "CPU"


def get_version_string() -> str:
    """The version of onnxruntime whose API this is."""
    return API_VERSION


def get_build_info() -> str:
    python = ".".join(map(str, sys.version_info[:3]))
    return f"Sardonyx Build Info: version={_version()}, python={python}, numpy={np.__version__}, {platform.machine()}"


def _version() -> str:
    """Sardonyx's own version, without importing the package above this layer."""
    return str(sys.modules["sardonyx"].__version__)


def has_collective_ops() -> bool:
    return False


def enable_telemetry_events() -> None:
    """There is no telemetry."""


def disable_telemetry_events() -> None:
    """There is no telemetry."""


def set_seed(seed: int) -> None:
    """Restart the random stream of the operators that have no seed of their own."""
    from sardonyx.ops import random

    random.set_seed(seed)


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """Share threads between sessions; from then on they must set ``use_per_session_threads = False``."""
    global _thread_pool
    _thread_pool = (int(intra_op_num_threads), int(inter_op_num_threads))


def global_threads() -> int:
    """Size of the process-wide intra-op thread pool; 0 lets the engine decide."""
    return 0 if _thread_pool is None else _thread_pool[0]


def check_thread_pool(per_session: bool) -> None:
    """Refuse a session whose thread options contradict the process-wide ones."""
    if per_session and _thread_pool is not None:
        raise Misuse("use_per_session_threads must be false when using a global thread pool")
    if not per_session and _thread_pool is None:
        raise Misuse(
            "use_per_session_threads is false, but there is no global thread pool",
            hint="call set_global_thread_pool_sizes() first",
        )


def create_and_register_allocator(memory_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None) -> None:
    """Register an arena that sessions may share. Memory comes from numpy, so the settings have no effect."""
    if not isinstance(memory_info, OrtMemoryInfo):
        raise TypeError(f"an OrtMemoryInfo is needed, not {memory_info!r}")
    _allocators[memory_info.name, memory_info.device_id] = arena_cfg


def create_and_register_allocator_v2(
    provider_type: str, memory_info: OrtMemoryInfo, options: Mapping[str, str], arena_cfg: OrtArenaCfg | None = None
) -> None:
    if provider_type != CPU:
        raise Misuse(f"there is no allocator of {provider_type} here")
    create_and_register_allocator(memory_info, arena_cfg)


def get_hardware_devices() -> list[OrtHardwareDevice]:
    return [cpu_hardware()]


def get_ep_devices() -> list[OrtEpDevice]:
    """Each available provider with its hardware."""
    return [OrtEpDevice(CPU, "Sardonyx", device, {"version": _version()}) for device in get_hardware_devices()]


def register_execution_provider_library(registration_name: str, library_path: str) -> None:
    """Native provider libraries cannot be used; providers are Python entry points here."""
    import ctypes

    try:
        ctypes.CDLL(library_path)
    except OSError as error:
        raise Fail(f"Failed to load library {library_path} with error: {error}") from None
    raise NotImplemented(
        "provider libraries are written for onnxruntime's C API, which Sardonyx does not have", where=library_path
    )


def unregister_execution_provider_library(registration_name: str) -> None:
    raise Fail(f"Execution provider library: {registration_name} was not registered.")


def get_model_compatibility_for_ep_devices(
    ep_devices: Sequence[OrtEpDevice], compatibility_info: str
) -> OrtCompiledModelCompatibility:
    """The CPU provider has no ahead-of-time form, so models are always compatible."""
    if not isinstance(compatibility_info, str):
        raise TypeError(f"compatibility_info is a string, not {compatibility_info!r}")
    if not ep_devices:
        raise Misuse("no devices were given")
    return OrtCompiledModelCompatibility.EP_NOT_APPLICABLE


def get_compatibility_info_from_model(model_path: str, ep_type: str) -> str | None:
    """The compatibility information that a precompiled model holds for a provider; None if there is none."""
    try:
        with open(model_path, "rb") as file:
            return get_compatibility_info_from_model_bytes(file.read(), ep_type)
    except OSError as error:
        raise Misuse(f"the model cannot be read ({error.strerror})", where=model_path) from None


def get_compatibility_info_from_model_bytes(model_data: Any, ep_type: str) -> str | None:
    """The same for a serialized model."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx import ModelProto

    if not model_data or not ep_type:
        raise Misuse("a model and the name of a provider are needed")
    try:
        properties = ModelProto.FromString(bytes(model_data)).metadata_props
    except DecodeError:
        raise Misuse("the bytes are not an ONNX model") from None
    return {p.key: p.value for p in properties}.get(f"ep_compatibility_info.{ep_type}")


def get_hardware_device_ep_incompatibility_details(ep_name: str, device: OrtHardwareDevice) -> dict[str, Any]:
    """Why a provider cannot use a device; an empty mask when it can."""
    if not registry.is_known(ep_name):
        raise Misuse(f"Unknown Provider Type: {ep_name}")
    why = registry.why_not(ep_name)
    reason = (
        OrtDeviceEpIncompatibilityReason.NONE if why is None else OrtDeviceEpIncompatibilityReason.MISSING_DEPENDENCY
    )
    return {"reasons_bitmask": int(reason), "notes": why, "error_code": 0}


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """No-op: there are no libraries to load."""


def print_debug_info() -> None:
    """Print what a bug report needs."""
    print(get_build_info())
    print("platform:", platform.platform())
    print("providers:", ", ".join(get_available_providers()))
