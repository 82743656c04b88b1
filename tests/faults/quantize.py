"""No space, a broken disk, or kill -9 at each call of a file system while a quantized model is written over another.

python -m tests.faults.quantize (ERRNO | kill) FOLDER
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import sardonyx.quantization as quantization
from sardonyx.errors import SardonyxError
from tests.faults import harness
from tests.faults.harness import WRITES, Fault, error, faulty, killed, points

FUNCTIONS = (*WRITES, (os, "link"))
SAMPLES = [harness.feed()]


def dynamic(source: Path, folder: Path) -> None:
    quantization.quantize_dynamic(source, folder / "model.onnx")


def outside(source: Path, folder: Path) -> None:
    quantization.quantize_dynamic(source, folder / "model.onnx", use_external_data_format=True)


def static(source: Path, folder: Path) -> None:
    (folder / "ranges.json").unlink(missing_ok=True)
    quantization.quantize_static(source, folder / "model.onnx", SAMPLES, calibration_cache_path=folder / "ranges.json")


QUANTIZERS: dict[str, Callable[[Path, Path], None]] = {"dynamic": dynamic, "weights outside": outside, "static": static}


def main(how: str, folder: str) -> None:
    os.environ["SARDONYX_CACHE"] = "off"
    harness.remember_compiled()
    old, new = harness.write(Path(folder) / "old.onnx", 2), harness.write(Path(folder) / "new.onnx")
    home = Path(folder) / "quantized"
    for name, quantize in QUANTIZERS.items():
        for n in points():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            quantize(old, home)
            before = contents(home)
            fault = killed if how == "kill" else error(int(how))
            if how == "kill":
                code = harness.in_a_child(
                    lambda n=n, quantize=quantize, act=fault: faulted(quantize, new, home, n, act)
                )
                assert code in (0, -signal.SIGKILL), code
                is_done, is_met = code == 0, code != 0
            else:
                is_done, is_met = faulted(quantize, new, home, n, fault)
            check(home, before, is_done=is_done, was_killed=how == "kill")
            if not is_met:
                break
            print(name, n, is_done, flush=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def faulted(
    quantize: Callable[[Path, Path], None], source: Path, home: Path, n: int, act: Callable[[str], None]
) -> tuple[bool, bool]:
    """Whether the quantizer ended well, and whether the fault was met."""
    with faulty(FUNCTIONS, Fault(n, act)) as fault:
        try:
            quantize(source, home)
        except SardonyxError as problem:
            assert "\n" not in str(problem), problem
            return False, fault.is_met
    return True, fault.is_met


def check(home: Path, before: dict[str, bytes], *, is_done: bool, was_killed: bool) -> None:
    """The old model or the new one, whole; no other files but what a killed process could not remove. It may leave no
    model where the weights are in another file.
    """
    left = {name: data for name, data in contents(home).items() if name != "ranges.json"}
    before = {name: data for name, data in before.items() if name != "ranges.json"}
    if was_killed:
        left = {name: data for name, data in left.items() if name in before}
    if was_killed and "model.onnx.data" in before and "model.onnx" not in left:
        return
    assert set(left) == set(before), left.keys()
    assert is_done or was_killed or left == before
    (found, _) = harness.started(home / "model.onnx").run(None, harness.feed())
    w = harness.weights()
    exact = harness.feed()["x"] @ w["w"] + w["c"]
    errors = [np.abs(found - factor * exact).max() for factor in (1, 2)]
    assert min(errors) < 0.02 * np.abs(exact).max(), errors
    assert was_killed or is_done == (errors[0] < errors[1])
    ranges = home / "ranges.json"
    if ranges.exists():
        quantization.load_tensors_data(ranges)


if __name__ == "__main__":
    main(*sys.argv[1:])
