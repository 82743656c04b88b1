"""A clear error or success, whatever the system refuses: right answers, and a cache that recovers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("unverified")

PROGRAMS = {
    "no space": ("disk", errno.ENOSPC),
    "a broken disk": ("disk", errno.EIO),
    "no space to save": ("save", errno.ENOSPC),
    "a broken disk to save to": ("save", errno.EIO),
    "no space to quantize": ("quantize", errno.ENOSPC),
    "a broken disk to quantize to": ("quantize", errno.EIO),
    "kill -9 while quantizing": ("quantize", "kill"),
    "kill -9": ("kill",),
    "no memory at a call": ("memory", "calls"),
    "limits of memory": ("memory", "limits"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_faults(name: str, tmp_path: Path) -> None:
    module, *given = PROGRAMS[name]
    program = [sys.executable, "-m", f"tests.faults.{module}", *map(str, given), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    environment["OPENBLAS_NUM_THREADS"] = "1"  # numpy's own threads would take the memory of a limit
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
