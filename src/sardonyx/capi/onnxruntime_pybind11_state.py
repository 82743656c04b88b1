"""onnxruntime's binary module of this name: the exceptions, and the native objects behind the public ones."""

from types import SimpleNamespace as _SimpleNamespace

from sardonyx.capi.block_quantize import (
    pack_fp4_weights_for_cuda_moe_gemm,
    quantize_matmul_2bits,
    quantize_matmul_4bits,
    quantize_matmul_8bits,
    quantize_matmul_bnb4,
    quantize_qdq_matmul_2bits,
    quantize_qdq_matmul_4bits,
)
from sardonyx.capi.schemas import (
    KernelDef as _KernelDef,
)
from sardonyx.capi.schemas import (
    get_all_operator_schema,
    get_all_opkernel_def,
    get_registered_ep_kernel_defs,
)
from sardonyx.errors import (
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)
from sardonyx.session.adapters import LoraAdapter
from sardonyx.session.adapters import NativeAdapterFormat as AdapterFormat
from sardonyx.session.binding import SessionIOBinding
from sardonyx.session.compiler import NativeModelCompiler as ModelCompiler
from sardonyx.session.compiler import OrtEpContextData, OrtEpContextDataBuffer, OrtExternalInitializerInfo
from sardonyx.session.devices import NativeDevice as OrtDevice
from sardonyx.session.devices import (
    OrtArenaCfg,
    OrtEpDevice,
    OrtHardwareDevice,
    OrtMemoryInfo,
    OrtSyncStream,
)
from sardonyx.session.dlpack import is_uint8 as is_dlpack_uint8_tensor
from sardonyx.session.enums import (
    ArenaExtendStrategy,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtCompileApiFlags,
    OrtCompiledModelCompatibility,
    OrtDeviceEpIncompatibilityReason,
    OrtDeviceMemoryType,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
)
from sardonyx.session.environment import (
    create_and_register_allocator,
    create_and_register_allocator_v2,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_compatibility_info_from_model,
    get_compatibility_info_from_model_bytes,
    get_device,
    get_ep_devices,
    get_hardware_device_ep_incompatibility_details,
    get_hardware_devices,
    get_model_compatibility_for_ep_devices,
    get_version_string,
    has_collective_ops,
    register_execution_provider_library,
    set_global_thread_pool_sizes,
    set_seed,
    unregister_execution_provider_library,
)
from sardonyx.session.log import (
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from sardonyx.session.metadata import ModelMetadata, NodeArg, OrtEpAssignedNode, OrtEpAssignedSubgraph
from sardonyx.session.native import NativeSession as InferenceSession
from sardonyx.session.native_values import NativeValue as OrtValue
from sardonyx.session.native_values import NativeValueVector as OrtValueVector
from sardonyx.session.options import RunOptions, SessionOptions
from sardonyx.session.options import SessionOptions as SessionObjectInitializer
from sardonyx.session.sparse import NativeSparseTensor as SparseTensor
from sardonyx.session.sparse import SparseBlockSparseView, SparseCooView, SparseCsrView
from sardonyx.session.values import copy_tensors

__all__ = [
    "AdapterFormat",
    "ArenaExtendStrategy",
    "DeviceReset",
    "EPFail",
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "LoraAdapter",
    "ModelCompiler",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelMetadata",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotFound",
    "NotImplemented",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtCompileApiFlags",
    "OrtCompiledModelCompatibility",
    "OrtDevice",
    "OrtDeviceEpIncompatibilityReason",
    "OrtDeviceMemoryType",
    "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph",
    "OrtEpContextData",
    "OrtEpContextDataBuffer",
    "OrtEpDevice",
    "OrtExecutionProviderDevicePolicy",
    "OrtExternalInitializerInfo",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "OrtSyncStream",
    "OrtValue",
    "OrtValueVector",
    "RunOptions",
    "RuntimeException",
    "SessionIOBinding",
    "SessionObjectInitializer",
    "SessionOptions",
    "SparseBlockSparseView",
    "SparseCooView",
    "SparseCsrView",
    "SparseTensor",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_operator_schema",
    "get_all_opkernel_def",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_compatibility_info_from_model",
    "get_compatibility_info_from_model_bytes",
    "get_default_session_options",
    "get_device",
    "get_ep_devices",
    "get_hardware_device_ep_incompatibility_details",
    "get_hardware_devices",
    "get_model_compatibility_for_ep_devices",
    "get_registered_ep_kernel_defs",
    "get_session_initializer",
    "get_version_string",
    "has_collective_ops",
    "is_dlpack_uint8_tensor",
    "kNextPowerOfTwo",
    "kSameAsRequested",
    "opkernel",
    "pack_fp4_weights_for_cuda_moe_gemm",
    "quantize_matmul_2bits",
    "quantize_matmul_4bits",
    "quantize_matmul_8bits",
    "quantize_matmul_bnb4",
    "quantize_qdq_matmul_2bits",
    "quantize_qdq_matmul_4bits",
    "register_execution_provider_library",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_execution_provider_library",
]

kNextPowerOfTwo = ArenaExtendStrategy.kNextPowerOfTwo
kSameAsRequested = ArenaExtendStrategy.kSameAsRequested
opkernel = _SimpleNamespace(KernelDef=_KernelDef)


def get_default_session_options() -> SessionOptions:
    return SessionOptions()


def get_session_initializer() -> SessionObjectInitializer:
    return SessionObjectInitializer()


def __getattr__(name: str) -> object:
    if name == "schemadef":
        import onnx

        return _SimpleNamespace(OpSchema=onnx.defs.OpSchema)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
