"""The stress program starts, finds nothing, and would tell if there were something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "fuzz" / "stress_threads.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")

SPOILED = """
import stress_threads as s
from stress_models import model_of
{spoil}
found = s.stress([s.Case(model_of(i)) for i in range(3)], 3, 2, 0)
assert found and {wanted!r} in found[0], found
"""


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=280, cwd=PROGRAM.parent)


@pytest.mark.timeout(300)
def test_some_seconds() -> None:
    done = ran(str(PROGRAM), "5", "--models", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 findings with 6 models, 8 threads" in done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("spoil", "wanted"),
    [
        ("s._is_same = lambda a, b, n=iter(range(10**9)): next(n) != 20", "is not what it was before"),
        ("s.memory_mib = lambda n=iter(range(10**9)): 100 + 10 * next(n)", "memory grew from"),
    ],
)
def test_findings_are_reported(spoil: str, wanted: str) -> None:
    done = ran("-c", SPOILED.format(spoil=spoil, wanted=wanted))
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_folder_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    done = ran(str(PROGRAM), "1", "--models", "0", "--folder", str(tmp_path))
    assert done.returncode != 0
