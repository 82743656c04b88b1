"""What every test may ask for: the axis switch, the folder of real models, the demo's model.

SARDONYX_TEST_ALL=1   every axis in full: all optimization levels, slow cases
SARDONYX_MODELS=DIR   real models to check against onnxruntime; a folder `shared/models` beside the checkout by default
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
TEST_ALL = os.environ.get("SARDONYX_TEST_ALL", "") not in ("", "0")
MODELS = Path(os.environ.get("SARDONYX_MODELS") or ROOT.parent / "shared" / "models")

settings.register_profile("sardonyx", deadline=None)  # a first example may compile, and machines are shared
settings.load_profile("sardonyx")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if TEST_ALL:
        return
    skip = pytest.mark.skip(reason="slow; runs with SARDONYX_TEST_ALL=1 (make test-all)")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder of real models; tests that need it skip where it is absent."""
    if not MODELS.is_dir():
        pytest.skip("no folder of real models here; name one in SARDONYX_MODELS")
    return MODELS


@pytest.fixture(scope="session")
def demo_dir() -> Path:
    """The folder that holds the trained digits model and its held-out images."""
    return ROOT / "demo"
