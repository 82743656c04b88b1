"""What every test may ask for: the axis switch, the folder of real models, the demo's model.

SARDONYX_TEST_ALL=1   every axis in full: all optimization levels, all chips, slow cases
SARDONYX_MODELS=DIR   real models to check against onnxruntime; a folder `shared/models` beside the checkout by default
"""

from __future__ import annotations

import os
from collections import defaultdict
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
    skip = pytest.mark.skip(reason="for another chip; runs with SARDONYX_TEST_ALL=1 (make test-all)")
    for item in _left_out(items):
        item.add_marker(skip)


def _left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of tests with a ``cpu``, where None is the chip at hand: for every other chip in turn, one case of several."""
    found: dict[str, dict[bool, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if "cpu" in params:
            found[item.nodeid.split("[")[0]][params["cpu"] is None].append(item)
    left = []
    for sides in found.values():
        chips = {str(item.callspec.params["cpu"]) for item in sides[False]}  # type: ignore[attr-defined]
        left += [item for k, item in enumerate(sides[False]) if sides[True] and k % (len(chips) + 1)]
    return left


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
