"""onnxruntime's module of this name: sessions, bindings, values."""

from sardonyx.session.adapters import AdapterFormat
from sardonyx.session.binding import IOBinding
from sardonyx.session.compiler import (
    GetInitializerLocationFunc,
    ModelCompiler,
    make_get_initializer_location_func_wrapper,
)
from sardonyx.session.compiler import NativeLocationFunc as GetInitializerLocationWrapperFunc
from sardonyx.session.devices import OrtDevice, get_ort_device_type, get_vendor_id_for_device_type
from sardonyx.session.enums import OrtDeviceVendorId
from sardonyx.session.session import InferenceSession, Session, check_and_normalize_provider_args
from sardonyx.session.sparse import SparseTensor
from sardonyx.session.values import OrtValue, copy_tensors

__all__ = [
    "AdapterFormat",
    "GetInitializerLocationFunc",
    "GetInitializerLocationWrapperFunc",
    "IOBinding",
    "InferenceSession",
    "ModelCompiler",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "Session",
    "SparseTensor",
    "check_and_normalize_provider_args",
    "copy_tensors",
    "get_ort_device_type",
    "get_vendor_id_for_device_type",
    "make_get_initializer_location_func_wrapper",
]
