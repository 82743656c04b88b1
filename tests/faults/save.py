"""No space, or a broken disk, at each call of a file system while a model is saved over another.

python -m tests.faults.save ERRNO FOLDER
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import sardonyx as sx
from tests.faults import harness
from tests.faults.harness import WRITES, Fault, error, faulty, points

FUNCTIONS = (*WRITES, (os, "link"))


def optimized(source: Path, to: Path, *, outside: bool) -> None:
    options = sx.SessionOptions()
    options.optimized_model_filepath = str(to)
    if outside:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    sx.InferenceSession(str(source), options)


def compiled(source: Path, to: Path) -> None:
    sx.ModelCompiler(sx.SessionOptions(), str(source), external_initializers_file_path="weights.bin").compile_to_file(
        str(to)
    )


SAVES: dict[str, Callable[[Path, Path], None]] = {
    "optimized": lambda source, to: optimized(source, to, outside=False),
    "optimized, weights outside": lambda source, to: optimized(source, to, outside=True),
    "compiled": compiled,
}


def main(number: str, folder: str) -> None:
    os.environ["SARDONYX_CACHE"] = "off"
    harness.remember_compiled()
    old, new = harness.write(Path(folder) / "old.onnx", 2), harness.write(Path(folder) / "new.onnx")
    home = Path(folder) / "saved"
    for name, save in SAVES.items():
        for n in points():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            to = home / "model.onnx"
            save(old, to)
            before = {p.name: p.read_bytes() for p in home.iterdir()}
            with faulty(FUNCTIONS, Fault(n, error(int(number)))) as fault:
                try:
                    save(new, to)
                    is_saved = True
                except (*harness.allowed(), OSError) as problem:
                    is_saved = False
                    assert isinstance(problem, harness.allowed()) or fault.name == "mkdir", repr(problem)
            left = {p.name: p.read_bytes() for p in home.iterdir()}
            assert set(left) == set(before), left.keys()
            assert is_saved or left == before, (name, n, fault.name)
            harness.check(harness.started(to), factor=1 if is_saved else 2)
            if not fault.is_met:
                break
            print(name, n, fault.name, is_saved, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
