"""Checks that onnxruntime makes at import. A pure-Python package has none to make."""

from __future__ import annotations

from sardonyx.capi.build_and_package_info import __version__, package_name


def check_distro_info() -> None:
    """No-op: every system with Python and numpy is supported."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Package, version, and CUDA version, which is empty."""
    return package_name, __version__, ""


def check_training_module() -> tuple[bool, str, str, str]:
    """Whether there is a training module (no), and the package's description."""
    return (False, *get_package_name_and_version_info())
