"""Ctrl-C at the worst moments of a process that is a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sardonyx.cli import GOOD, INTERRUPTED

WHILE_IMPORTED = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
sys.argv[1:] = {args!r}
from sardonyx.cli import main
sys.exit(main())
"""
IN_A_COMMAND = """
import os, signal, sys, time
from sardonyx import cli
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
class Finalized:
    def __del__(self):
        interrupt()
def run(argv):
    {what}
    time.sleep(60)
cli._run = run
signal.signal(signal.SIGINT, {before})
sys.exit(cli.main())
"""
FINALIZED = "\n    ".join(("given = Finalized()", "del given"))


RECONFIGURED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Stream:
    def reconfigure(self, errors):
        signal.raise_signal(signal.SIGINT)
        sys.__stderr__.write("reconfigured; ")
        sys.stdout = sys.__stdout__
sys.stdout = Stream()
from sardonyx.cli import main
sys.exit(main())
"""


def python(code: str, folder: Path) -> tuple[int, str]:
    (program := folder / "program.py").write_text(code)
    done = subprocess.run(
        [sys.executable, program], cwd=folder, capture_output=True, encoding="utf-8", timeout=50, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("module", ["importlib.util", "signal", "typer", "rich", "sardonyx.cli.running"])
def test_while_the_command_line_is_imported(module: str, tmp_path: Path) -> None:
    code = WHILE_IMPORTED.format(module=module, args=["info"])
    assert python(code.replace("import os, signal, sys", "import _signal as signal, os, sys"), tmp_path) == (
        INTERRUPTED,
        "sardonyx: interrupted\n",
    )


@pytest.mark.parametrize("module", ["numpy", "onnx", "onnx.onnx_cpp2py_export"])
def test_while_a_command_imports_its_engine(module: str, tmp_path: Path, digits: Path) -> None:
    code = WHILE_IMPORTED.format(module=module, args=["run", str(digits)])
    assert python(code, tmp_path) == (INTERRUPTED, "sardonyx: interrupted\n")


@pytest.mark.parametrize("what", ["interrupt()", FINALIZED, "eval('interrupt()')"])
def test_while_a_command_runs(what: str, tmp_path: Path) -> None:
    assert python(IN_A_COMMAND.format(what=what, before="signal.default_int_handler"), tmp_path) == (
        INTERRUPTED,
        "sardonyx: interrupted\n",
    )


def test_a_process_that_ignores_it_goes_on(tmp_path: Path) -> None:
    code = IN_A_COMMAND.format(what="interrupt(); return 0", before="signal.SIG_IGN")
    assert python(code, tmp_path) == (GOOD, "")


def test_while_streams_are_reconfigured(tmp_path: Path) -> None:
    assert python(RECONFIGURED, tmp_path) == (INTERRUPTED, "reconfigured; sardonyx: interrupted\n")
