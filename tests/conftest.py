"""What every test may ask for: the axis switch, the folder of real models, the demo's model.

SARDONYX_TEST_ALL=1    every axis in full: all optimization levels, all chips, slow cases
SARDONYX_TEST_SLICE=N  which of similar cases are run, to repeat a failure; see ``slices.py``
SARDONYX_MODELS=DIR    real models to compare with onnxruntime; by default `shared/models` next to the checkout
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import hypothesis
import pytest

from tests.slices import OFFSET, TEST_ALL, VARIABLE, is_taken

ROOT = Path(__file__).resolve().parent.parent
MODELS = Path(os.environ.get("SARDONYX_MODELS") or ROOT.parent / "shared" / "models")

os.environ.setdefault("SARDONYX_VERIFY", "1")  # a defect that another provider would make good fails a test

AS_USERS_RUN_IT = ("tests/session/", "tests/faults/", "tests/programs/", "tests/test_")
"""Tests in which kernels have baseline code first. Elsewhere optimized code is tested: most tests run a
session once. SARDONYX_BASELINE decides for all."""

hypothesis.settings.register_profile("sardonyx", deadline=None)  # a first example may compile
hypothesis.settings.load_profile("sardonyx")


def pytest_report_header() -> str:
    return f"cases that are alike: {'all' if TEST_ALL else f'{VARIABLE}={OFFSET}'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of many cases that are alike some, and the examples that hypothesis draws, are those of the commit."""
    if TEST_ALL:
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        function = getattr(item, "function", None)
        if getattr(function, "is_hypothesis_test", False):
            hypothesis.seed(OFFSET)(function)
        cases[item.nodeid.split("[")[0]].append(item)
        if item.get_closest_marker("slow"):
            _leave(item, "slow")
    for test in cases.values():
        marker = test[0].get_closest_marker("sliced")
        for k, item in enumerate(test):
            if marker is not None and not is_taken(k, marker.args[0]):
                _leave(item, "one of many alike")
        for item in _on_other_chips(test):
            _leave(item, "for another chip")


def _leave(item: pytest.Item, why: str) -> None:
    item.add_marker(pytest.mark.skip(reason=f"{why}; runs with SARDONYX_TEST_ALL=1 (make test-all)"))


def _on_other_chips(test: list[pytest.Item]) -> list[pytest.Item]:
    """For tests whose ``cpu`` is None for the host: whether most of its cases are left to other chips."""
    chips = [item.callspec.params.get("cpu", "") if hasattr(item, "callspec") else "" for item in test]
    if None not in chips:
        return []
    others = [item for item, chip in zip(test, chips, strict=True) if chip is not None]
    return [item for k, item in enumerate(others) if not is_taken(k, len(set(chips)))]


@pytest.fixture(autouse=True)
def _code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "SARDONYX_BASELINE" not in os.environ and not request.node.nodeid.startswith(AS_USERS_RUN_IT):
        monkeypatch.setenv("SARDONYX_BASELINE", "0")


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users run it: compiled models are kept between starts, and another provider makes defects good."""
    monkeypatch.delenv("SARDONYX_VERIFY", raising=False)


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
