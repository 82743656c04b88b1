"""Every provider gives the answers of ONNX's suite, and runs what it is known to run: none of the cases is left out.

A provider is asked for alone; what it does not claim, the reference provider runs. ``gaps`` has a file for each, of the
cases in which that happens: a new gap fails, and a gap that has closed fails until its line is removed.

SARDONYX_TEST_PROVIDERS=NAME,NAME   the providers, CPUExecutionProvider by default
"""

from __future__ import annotations

import os

import pytest

import sardonyx as ort
from tests.conformance import gaps
from tests.conformance.onnx_cases import Case, every
from tests.conformance.test_onnx_suite import at_level, run_case

PROVIDERS = tuple((os.environ.get("SARDONYX_TEST_PROVIDERS") or "CPUExecutionProvider").split(","))
NET = "reference"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("case", every(), ids=lambda c: c.name)
def test_case(case: Case, provider: str) -> None:
    session = run_case(case, at_level("default"), providers=(provider,))
    wrong = gaps.problem(gaps.known(provider), case.name, left_by(session))
    assert wrong is None, wrong


def left_by(session: ort.InferenceSession) -> list[str]:
    """Nodes that the reference provider runs, and why."""
    return [f"{p.op_type}: {p.reason}" for p in session.explain().placements if p.provider == NET]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_known_gaps_are_of_cases(provider: str) -> None:
    assert provider in ort.get_available_providers()
    assert not gaps.unmatched(gaps.known(provider), [case.name for case in every()])


def test_gaps_that_are_new_or_have_closed_are_told() -> None:
    known = {"test_string_*": "text is not compiled"}
    assert gaps.problem(known, "test_string_split", ["StringSplit: no text"]) is None
    assert gaps.problem(known, "test_add", []) is None
    assert gaps.problem(known, "test_add", ["Add: it is new"]) == "a new gap: Add: it is new"
    assert "a gap that has closed" in str(gaps.problem(known, "test_string_split", []))
    assert gaps.unmatched(known, ["test_add"]) == ["test_string_*"]
