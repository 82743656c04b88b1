"""Programs written for onnxruntime, run unedited on Sardonyx, print what they print on onnxruntime."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
NEEDS = {"read_text": "rapidocr_onnxruntime", "name_file_types": "magika", "find_speech": "silero_vad"}


def printed(*command: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", NEEDS)
def test_prints_the_same(name: str) -> None:
    for package in ("onnxruntime", NEEDS[name]):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    program = str(PROGRAMS / f"{name}.py")
    expected = printed(program)
    assert expected.strip()
    assert printed("-m", "sardonyx.shim", program) == expected
