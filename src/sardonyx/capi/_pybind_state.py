"""onnxruntime's module of this name: everything of ``onnxruntime_pybind11_state``."""

from sardonyx.capi.onnxruntime_pybind11_state import *  # noqa: F403
