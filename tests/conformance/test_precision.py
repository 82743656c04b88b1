"""ONNX's backend suite at `high` and `medium`, on matrix tiles: the chip's own, or emulated bit for bit.

Each element of a contraction is within ``ELEMENT`` of (abs(A) times abs(B)); what that becomes behind it is found as
``spread`` says. Everything else is as exact as at `highest`.
"""

from __future__ import annotations

from typing import Any

import pytest

import sardonyx as ort
from sardonyx.providers.cpu.kernels.gemm import amx
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.runtime.executable import CpuExecutable
from tests.conformance.onnx_cases import Case, by_name, every
from tests.conformance.spread import has_contraction, spread
from tests.conformance.test_onnx_suite import exact, run_case
from tests.providers.cpu.test_amx import CHIP, ELEMENT
from tests.slices import some

PRECISIONS = ("high", "medium")
CONTRACTIONS = [case for case in every() if has_contraction(case.written_out().model())]
OTHERS = [case for case in every() if case not in CONTRACTIONS]


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every contraction goes to tiles: the suite's are nearly all too small for them to pay."""
    monkeypatch.setattr(isa, "current", lambda: CHIP)
    monkeypatch.setattr(amx, "LEAST_ROWS", dict.fromkeys(amx.TERMS.values(), 1))
    monkeypatch.setattr(amx, "LEAST_OF_BOTH", dict.fromkeys(amx.TERMS.values(), 1))
    monkeypatch.setattr(amx, "LEAST_COLUMNS", 1)
    monkeypatch.setattr(amx, "LEAST_DEPTH", 1)


def at(precision: str) -> ort.SessionOptions:
    """Without the attention kernel for few query rows, which multiplies without tiles and is preferred for them."""
    options = ort.SessionOptions()
    options.precision = precision
    options.add_session_config_entry("session.kernel.forbid", "attention.few_rows")
    return options


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", some(CONTRACTIONS, 20), ids=lambda c: c.name)
def test_contractions(case: Case, precision: str) -> None:
    def spreads(case: Case, inputs: list[Any]) -> list[Any]:
        return spread(case.written_out().model(), inputs, ELEMENT[precision])

    run_case(case, at(precision), spreads)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", some(OTHERS, 120), ids=lambda c: c.name)
def test_others(case: Case, precision: str) -> None:
    run_case(case, at(precision), exact)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("name", "kernel"),
    [("test_matmul_4d", "gemm_amx"), ("test_gemm_all_attributes", "gemm_amx"), ("test_attention_4d", "attention_amx")],
)
def test_tiles_are_taken(name: str, kernel: str, precision: str) -> None:
    session = ort.InferenceSession(by_name()[name].model().SerializeToString(), at(precision))
    assert kernel in kernels(session)


def kernels(session: ort.InferenceSession) -> set[str]:
    compiled = [executable for _, executable in session._sess.engine.parts.compiled]
    return {step.spec.name for e in compiled if isinstance(e, CpuExecutable) for step in e.table.steps}
