"""Models quantized beside onnxruntime's quantizer: the same files, or better ones for a stated reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quantization.cases import CASES, Case
from tests.quantization.oracle import Both

pytest.importorskip("onnxruntime", reason="onnxruntime comes with the test extra")


@pytest.mark.sliced(16)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case(case: Case, tmp_path: Path) -> None:
    both = Both(case.network(), tmp_path, **case.arguments)
    if case.differs:
        both.check_better(tolerance=case.tolerance + 0.02, least=case.least)
    else:
        both.check(tolerance=case.tolerance)
