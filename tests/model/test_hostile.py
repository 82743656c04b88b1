"""Every hostile model ends in one of our exceptions, or runs, within 2 s of processor time and 500 MB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sardonyx
from tests.slices import TEST_ALL, first

FAMILIES = {"structure": 200, "damage": 200, "outside": 50, "sizes": 100, "operators": 200}
"""And the least number of cases of each."""
SECONDS, MBYTES = 2.0, 500.0
COMPILED_EVERY = 7
"""Of so many cases one is compiled as well, others at each commit; `make test-all` compiles all."""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="cases run in forked children")


def verdict(end: dict[str, Any]) -> str | None:
    """What is wrong with how a case ended, or None."""
    error, wanted = end["error"], end["expected"]
    if error is not None and ("SardonyxError" not in error or "EngineError" in error):
        return f"{error}: {end.get('text')}"
    if error is None and not end["agree"]:
        return "optimization levels or providers give different results"
    if wanted not in ("runs?", None) and (error is None or wanted not in error):
        return f"expected {wanted}, got {error}: {end.get('text')}"
    if wanted is None and error is not None:
        return f"expected results, got {error[0]}: {end['text']}"
    if end["seconds"] > SECONDS or end["mbytes"] > MBYTES:
        return f"took {end['seconds']:.2f} s and {end['mbytes']:.0f} MB"
    return None


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str) -> None:
    worker = Path(__file__).parent / "hostile" / "worker.py"
    source = str(Path(sardonyx.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, worker, family, *map(str, (1, 0) if TEST_ALL else (COMPILED_EVERY, first(COMPILED_EVERY)))],
        env={
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": source,
            "SARDONYX_CHECK_ADDRESSES": "1",
            "SARDONYX_VERIFY": "0",  # the limits of time are for what users run
        },
        capture_output=True,
        text=True,
        check=False,
    )
    ends = {end["name"]: end for end in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0 and len(ends) >= FAMILIES[family], done.stderr
    wrong = {name: why for name, end in ends.items() if (why := verdict(end))}
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
