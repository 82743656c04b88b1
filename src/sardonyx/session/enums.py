"""onnxruntime's enumerations, with its integer values.

A member equals its integer and has the same hash, but is not an int: setters refuse a bare number, as onnxruntime's do.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar


class Enumeration:
    """An open enumeration: named members, and unnamed ones for other integers."""

    __members__: ClassVar[dict[str, Any]]
    __slots__ = ("_value",)
    _value: int

    def __init__(self, value: int) -> None:
        object.__setattr__(self, "_value", int(value))

    def __init_subclass__(cls, **members: int) -> None:
        cls.__members__ = {}
        by_value: dict[int, Enumeration] = {}
        for name, value in members.items():
            member = by_value.setdefault(value, cls(value))
            cls.__members__[name] = member
            setattr(cls, name, member)

    @property
    def value(self) -> int:
        return self._value

    @property
    def name(self) -> str:
        return next((n for n, m in self.__members__.items() if m._value == self._value), "???")

    def __int__(self) -> int:
        return self._value

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Enumeration):
            return type(self) is type(other) and self._value == other._value
        return isinstance(other, int) and self._value == other

    def __hash__(self) -> int:
        return hash(self._value)

    def __or__(self, other: Any) -> int:
        return self._value | int(other)

    def __and__(self, other: Any) -> int:
        return self._value & int(other)

    def __xor__(self, other: Any) -> int:
        return self._value ^ int(other)

    __ror__, __rand__, __rxor__ = __or__, __and__, __xor__

    def __invert__(self) -> int:
        return ~self._value

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self} is constant")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self._value,))

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __repr__(self) -> str:
        return f"<{self}: {self._value}>"


class ExecutionMode(Enumeration, ORT_SEQUENTIAL=0, ORT_PARALLEL=1):
    ORT_SEQUENTIAL: ClassVar[ExecutionMode]
    ORT_PARALLEL: ClassVar[ExecutionMode]


class ExecutionOrder(Enumeration, DEFAULT=0, PRIORITY_BASED=1, MEMORY_EFFICIENT=2):
    DEFAULT: ClassVar[ExecutionOrder]
    PRIORITY_BASED: ClassVar[ExecutionOrder]
    MEMORY_EFFICIENT: ClassVar[ExecutionOrder]


class GraphOptimizationLevel(
    Enumeration,
    ORT_DISABLE_ALL=0,
    ORT_ENABLE_BASIC=1,
    ORT_ENABLE_EXTENDED=2,
    ORT_ENABLE_LAYOUT=3,
    ORT_ENABLE_ALL=99,
):
    ORT_DISABLE_ALL: ClassVar[GraphOptimizationLevel]
    ORT_ENABLE_BASIC: ClassVar[GraphOptimizationLevel]
    ORT_ENABLE_EXTENDED: ClassVar[GraphOptimizationLevel]
    ORT_ENABLE_LAYOUT: ClassVar[GraphOptimizationLevel]
    ORT_ENABLE_ALL: ClassVar[GraphOptimizationLevel]


class OrtAllocatorType(Enumeration, INVALID=-1, ORT_DEVICE_ALLOCATOR=0, ORT_ARENA_ALLOCATOR=1):
    INVALID: ClassVar[OrtAllocatorType]
    ORT_DEVICE_ALLOCATOR: ClassVar[OrtAllocatorType]
    ORT_ARENA_ALLOCATOR: ClassVar[OrtAllocatorType]


class OrtMemType(Enumeration, CPU_INPUT=-2, CPU_OUTPUT=-1, CPU=-1, DEFAULT=0):
    CPU_INPUT: ClassVar[OrtMemType]
    CPU_OUTPUT: ClassVar[OrtMemType]
    CPU: ClassVar[OrtMemType]
    DEFAULT: ClassVar[OrtMemType]


class OrtDeviceMemoryType(Enumeration, DEFAULT=0, HOST_ACCESSIBLE=5):
    DEFAULT: ClassVar[OrtDeviceMemoryType]
    HOST_ACCESSIBLE: ClassVar[OrtDeviceMemoryType]


class OrtMemoryInfoDeviceType(Enumeration, CPU=0, GPU=1, NPU=3, FPGA=2):
    CPU: ClassVar[OrtMemoryInfoDeviceType]
    GPU: ClassVar[OrtMemoryInfoDeviceType]
    NPU: ClassVar[OrtMemoryInfoDeviceType]
    FPGA: ClassVar[OrtMemoryInfoDeviceType]


class OrtHardwareDeviceType(Enumeration, CPU=0, GPU=1, NPU=2):
    CPU: ClassVar[OrtHardwareDeviceType]
    GPU: ClassVar[OrtHardwareDeviceType]
    NPU: ClassVar[OrtHardwareDeviceType]


class OrtExecutionProviderDevicePolicy(
    Enumeration,
    DEFAULT=0,
    PREFER_CPU=1,
    PREFER_NPU=2,
    PREFER_GPU=3,
    MAX_PERFORMANCE=4,
    MAX_EFFICIENCY=5,
    MIN_OVERALL_POWER=6,
):
    DEFAULT: ClassVar[OrtExecutionProviderDevicePolicy]
    PREFER_CPU: ClassVar[OrtExecutionProviderDevicePolicy]
    PREFER_NPU: ClassVar[OrtExecutionProviderDevicePolicy]
    PREFER_GPU: ClassVar[OrtExecutionProviderDevicePolicy]
    MAX_PERFORMANCE: ClassVar[OrtExecutionProviderDevicePolicy]
    MAX_EFFICIENCY: ClassVar[OrtExecutionProviderDevicePolicy]
    MIN_OVERALL_POWER: ClassVar[OrtExecutionProviderDevicePolicy]


class OrtSparseFormat(
    Enumeration, ORT_SPARSE_UNDEFINED=0, ORT_SPARSE_COO=1, ORT_SPARSE_CSRC=2, ORT_SPARSE_BLOCK_SPARSE=4
):
    ORT_SPARSE_UNDEFINED: ClassVar[OrtSparseFormat]
    ORT_SPARSE_COO: ClassVar[OrtSparseFormat]
    ORT_SPARSE_CSRC: ClassVar[OrtSparseFormat]
    ORT_SPARSE_BLOCK_SPARSE: ClassVar[OrtSparseFormat]


class OrtCompileApiFlags(Enumeration, NONE=0, ERROR_IF_NO_NODES_COMPILED=1, ERROR_IF_OUTPUT_FILE_EXISTS=2):
    NONE: ClassVar[OrtCompileApiFlags]
    ERROR_IF_NO_NODES_COMPILED: ClassVar[OrtCompileApiFlags]
    ERROR_IF_OUTPUT_FILE_EXISTS: ClassVar[OrtCompileApiFlags]


class OrtCompiledModelCompatibility(
    Enumeration,
    EP_NOT_APPLICABLE=0,
    EP_SUPPORTED_OPTIMAL=1,
    EP_SUPPORTED_PREFER_RECOMPILATION=2,
    EP_UNSUPPORTED=3,
):
    EP_NOT_APPLICABLE: ClassVar[OrtCompiledModelCompatibility]
    EP_SUPPORTED_OPTIMAL: ClassVar[OrtCompiledModelCompatibility]
    EP_SUPPORTED_PREFER_RECOMPILATION: ClassVar[OrtCompiledModelCompatibility]
    EP_UNSUPPORTED: ClassVar[OrtCompiledModelCompatibility]


class OrtDeviceEpIncompatibilityReason(
    Enumeration,
    NONE=0,
    DRIVER_INCOMPATIBLE=1,
    DEVICE_INCOMPATIBLE=2,
    MISSING_DEPENDENCY=4,
    UNKNOWN=-(1 << 31),
):
    NONE: ClassVar[OrtDeviceEpIncompatibilityReason]
    DRIVER_INCOMPATIBLE: ClassVar[OrtDeviceEpIncompatibilityReason]
    DEVICE_INCOMPATIBLE: ClassVar[OrtDeviceEpIncompatibilityReason]
    MISSING_DEPENDENCY: ClassVar[OrtDeviceEpIncompatibilityReason]
    UNKNOWN: ClassVar[OrtDeviceEpIncompatibilityReason]


class ArenaExtendStrategy(Enumeration, kNextPowerOfTwo=0, kSameAsRequested=1):
    kNextPowerOfTwo: ClassVar[ArenaExtendStrategy]
    kSameAsRequested: ClassVar[ArenaExtendStrategy]


class OrtDeviceVendorId(IntEnum):
    """PCI vendor numbers."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086
