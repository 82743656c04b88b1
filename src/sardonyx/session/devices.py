"""Devices, memory descriptions and arena settings. The only device here is the CPU."""

from __future__ import annotations

import platform
from dataclasses import field
from typing import Any

from sardonyx.records import Record
from sardonyx.session.enums import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from sardonyx.session.misuse import Misuse, Unsupported

CPU, GPU, FPGA, NPU, DML = range(5)
DEVICE_TYPES = {"cpu": CPU, "cuda": GPU, "gpu": GPU, "webgpu": GPU, "cann": NPU, "npu": NPU, "dml": DML}
_VENDORS = {
    "cuda": OrtDeviceVendorId.NVIDIA,
    "dml": OrtDeviceVendorId.MICROSOFT,
    "cann": OrtDeviceVendorId.HUAWEI,
    "webgpu": OrtDeviceVendorId.NONE,
}


def get_ort_device_type(device_type: str) -> int:
    if device_type not in DEVICE_TYPES:
        raise Misuse(f"Unsupported device type: {device_type}", expected=", ".join(DEVICE_TYPES))
    return DEVICE_TYPES[device_type]


def get_vendor_id_for_device_type(device_type: str) -> OrtDeviceVendorId | None:
    return _VENDORS.get(device_type)


class NativeDevice:
    """Device type, memory type, vendor and number (``capi``'s OrtDevice)."""

    __slots__ = ("_id", "_memory", "_type", "_vendor")

    def __init__(self, device_type: int, memory_type: int, *rest: int) -> None:
        if len(rest) not in (1, 2):
            raise TypeError("OrtDevice(type, memory, [vendor,] id)")
        self._type, self._memory = int(device_type), int(memory_type)
        self._vendor = int(rest[0]) if len(rest) == 2 else 0
        self._id = int(rest[-1])

    def device_type(self) -> int:
        return self._type

    def mem_type(self) -> int:
        return self._memory

    def vendor_id(self) -> int:
        return self._vendor

    def device_id(self) -> int:
        return self._id

    @staticmethod
    def cpu() -> int:
        return CPU

    @staticmethod
    def cuda() -> int:
        return GPU

    @staticmethod
    def gpu() -> int:
        return GPU

    @staticmethod
    def webgpu() -> int:
        return GPU

    @staticmethod
    def fpga() -> int:
        return FPGA

    @staticmethod
    def npu() -> int:
        return NPU

    @staticmethod
    def cann() -> int:
        return NPU

    @staticmethod
    def dml() -> int:
        return DML

    @staticmethod
    def default_memory() -> int:
        return 0

    def __repr__(self) -> str:
        return f"OrtDevice(type={self._type}, memory={self._memory}, vendor={self._vendor:#x}, id={self._id})"


class OrtDevice:
    """A device by name and number."""

    def __init__(self, c_ort_device: NativeDevice) -> None:
        if not isinstance(c_ort_device, NativeDevice):
            raise ValueError("OrtDevice wraps capi's OrtDevice; use OrtDevice.make(name, id)")
        self._ort_device = c_ort_device

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """``vendor_id`` distinguishes the generic names ``gpu`` and ``npu``."""
        kind = get_ort_device_type(ort_device_name)
        vendor = vendor_id if vendor_id >= 0 else get_vendor_id_for_device_type(ort_device_name)
        return OrtDevice(NativeDevice(kind, NativeDevice.default_memory(), int(vendor or 0), device_id))

    def _get_c_device(self) -> NativeDevice:
        return self._ort_device

    def device_id(self) -> int:
        return self._ort_device.device_id()

    def device_type(self) -> int:
        return self._ort_device.device_type()

    def device_vendor_id(self) -> int:
        return self._ort_device.vendor_id()

    def device_mem_type(self) -> int:
        return self._ort_device.mem_type()


def require_cpu(device: NativeDevice) -> None:
    """Refuse memory on a device that does not exist here."""
    if device.device_type() != CPU:
        raise Unsupported("Can't allocate or read memory on a device that is not present", expected="cpu", got=device)


class OrtMemoryInfo:
    """Where an allocator takes its memory from."""

    __slots__ = ("allocator_type", "device_id", "device_mem_type", "device_vendor_id", "mem_type", "name")

    def __init__(self, name: str, allocator_type: OrtAllocatorType, device_id: int, mem_type: OrtMemType) -> None:
        if name not in ("Cpu", "Cuda", "CudaPinned", "DML", "WebGPU_Buffer", "OpenVINO_CPU", "QnnHtpShared"):
            raise Misuse("Specified device is not supported. Try CreateMemoryInfo_V2.", got=name)
        self.name, self.allocator_type, self.device_id, self.mem_type = name, allocator_type, int(device_id), mem_type
        self.device_mem_type = OrtDeviceMemoryType.DEFAULT
        self.device_vendor_id = int(OrtDeviceVendorId.NVIDIA) if name.startswith("Cuda") else 0

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        if not isinstance(device_type, OrtMemoryInfoDeviceType):
            raise TypeError(f"an OrtMemoryInfoDeviceType is needed, not {device_type!r}")
        info = OrtMemoryInfo("Cpu", allocator_type, device_id, OrtMemType.DEFAULT)
        info.name, info.device_vendor_id, info.device_mem_type = name, int(vendor_id), device_mem_type
        return info


_ARENA_FIELDS = (
    "max_mem",
    "arena_extend_strategy",
    "initial_chunk_size_bytes",
    "max_dead_bytes_per_chunk",
    "initial_growth_chunk_size_bytes",
    "max_power_of_two_extend_bytes",
)


class OrtArenaCfg:
    """Arena settings: four numbers in order, or a dictionary of any of the six."""

    __slots__ = _ARENA_FIELDS
    max_mem: int
    arena_extend_strategy: int
    initial_chunk_size_bytes: int
    max_dead_bytes_per_chunk: int
    initial_growth_chunk_size_bytes: int
    max_power_of_two_extend_bytes: int

    def __init__(self, *settings: Any) -> None:
        if len(settings) == 1 and isinstance(settings[0], dict):
            given = settings[0]
        elif len(settings) == 4:
            given = dict(zip(_ARENA_FIELDS, settings, strict=False))
        else:
            raise TypeError("OrtArenaCfg takes a dictionary or four integers")
        for name in _ARENA_FIELDS:
            setattr(self, name, 0 if name == "max_mem" else -1)
        for name, value in given.items():
            if name not in _ARENA_FIELDS:
                raise Misuse(f"Invalid OrtArenaCfg option: {name}", expected=", ".join(_ARENA_FIELDS))
            setattr(self, name, int(value))


class OrtHardwareDevice(Record):
    type: OrtHardwareDeviceType
    vendor: str
    vendor_id: int
    device_id: int
    metadata: dict[str, str] = field(default_factory=dict, hash=False)


class OrtSyncStream:
    """A device's queue of work; the CPU has none."""

    def get_handle(self) -> int:
        raise Unsupported("there is no stream on the CPU")


class OrtEpDevice(Record):
    """An execution provider and the hardware it would run on."""

    ep_name: str
    ep_vendor: str
    device: OrtHardwareDevice
    ep_metadata: dict[str, str] = field(default_factory=dict, hash=False)
    ep_options: dict[str, str] = field(default_factory=dict, hash=False)

    def memory_info(self, memory_type: OrtDeviceMemoryType) -> OrtMemoryInfo | None:
        """None: the provider uses ordinary memory."""
        return None

    def create_sync_stream(self) -> OrtSyncStream:
        raise Unsupported("ep_device does not use DEFAULT memory of a non-CPU device.")


def cpu_hardware() -> OrtHardwareDevice:
    vendor = _cpu_vendor()
    return OrtHardwareDevice(OrtHardwareDeviceType.CPU, vendor.name, int(vendor), 0)


def _cpu_vendor() -> OrtDeviceVendorId:
    if platform.machine().lower() in ("aarch64", "arm64", "armv7l"):
        return OrtDeviceVendorId.ARM
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            amd = "AuthenticAMD" in file.read(4096)
    except OSError:
        amd = "AMD" in platform.processor()
    return OrtDeviceVendorId.AMD if amd else OrtDeviceVendorId.INTEL


def cpu_memory() -> OrtMemoryInfo:
    return OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)
