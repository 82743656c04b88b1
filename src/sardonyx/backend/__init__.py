"""Sardonyx as an ONNX backend."""

from sardonyx.backend.backend import is_compatible, prepare, run, run_model, run_node, supports_device

__all__ = ["is_compatible", "prepare", "run", "run_model", "run_node", "supports_device"]
