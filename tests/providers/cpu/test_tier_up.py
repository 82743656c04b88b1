"""Baseline code: it runs first, optimized code replaces it, and nobody sees a difference but in time."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx import knobs
from sardonyx.errors import Fail
from sardonyx.providers.cpu.codegen import jit
from sardonyx.providers.cpu.codegen.jit import BaselineKernel, linker
from sardonyx.providers.cpu.codegen.object_loader import Address, Replaceable
from sardonyx.providers.cpu.language.dsl import Kernel, function
from sardonyx.providers.cpu.language.values import Buf, f64
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.runtime import tier_up
from sardonyx.providers.cpu.runtime.executable import CpuExecutable
from sardonyx.providers.cpu.runtime.tier_up import TierUp
from sardonyx.session import cache_writer

MODEL = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 3, 16, 16] x) => (float[N, 8] y)
<float[8, 3, 3, 3] w = {%s}>
{
  a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
  b = Mul (a, a)
  c = Softmax <axis = 1> (b)
  axes = Constant <value_ints = [2, 3]> ()
  y = ReduceSum <keepdims = 0> (c, axes)
}"""


@function(x=(f64,))
def twice(k: Kernel, x: Buf, times: int) -> None:
    """For each number of times a kernel that is compiled anew."""
    for _ in range(times):
        x.store(0, x.load(0) * 2)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SARDONYX_BASELINE", "1")
    monkeypatch.delenv("SARDONYX_VERIFY", raising=False)
    linker._addresses.clear()


def called(code: Address, x: float) -> float:
    """The result of ``twice``."""
    array = np.full(1, x)
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(code)(array.ctypes.data, 1)
    return float(array[0])


def baseline(times: int) -> BaselineKernel:
    found = linker.baseline(twice(times=times), isa.current())
    assert isinstance(found, BaselineKernel)
    return found


def model(seed: int = 0) -> bytes:
    weights = np.random.default_rng(seed).standard_normal(8 * 27)
    return onnx.parser.parse_model(MODEL % ", ".join(map(str, weights))).SerializeToString()


def images(seed: int = 1, count: int = 2) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).standard_normal((count, 3, 16, 16)).astype(np.float32)}


def session(content: bytes, **config: str) -> sx.InferenceSession:
    options = sx.SessionOptions()
    for key, value in config.items():
        options.add_session_config_entry(f"session.{key}", value)
    return sx.InferenceSession(content, options)


def executable(found: sx.InferenceSession) -> CpuExecutable:
    made = found._sess.engine.planned
    assert isinstance(made, CpuExecutable)
    return made


def test_code_is_replaced_behind_one_address() -> None:
    codes = [linker.address(twice(times=n)) for n in (1, 3)]
    at = Replaceable.to(codes[0])
    assert called(at, 5) == 10
    at.replace(codes[1])
    assert called(at, 5) == 40


def test_what_was_replaced_stays_loaded_for_threads_inside() -> None:
    old, new = (linker.address(twice(times=n)) for n in (1, 2))
    place = int(old)
    at = Replaceable.to(old)
    at.replace(new)
    del old
    linker._addresses.clear()
    assert called(Address(place), 5) == 10 and called(at, 5) == 20


def test_baseline_code_gives_way_to_optimized_code() -> None:
    before = len(jit.statistics.compiled)
    found = baseline(times=4)
    assert called(found, 1) == 16 and found.text is not None and len(jit.statistics.compiled) == before
    linker.replace(found)
    assert called(found, 1) == 16 and found.text is None and jit.statistics.compiled[before:] == ["twice"]
    linker.replace(found)
    assert len(jit.statistics.compiled) == before + 1
    assert linker.baseline(twice(times=4), isa.current()) is linker.address(twice(times=4))


def test_sessions_share_baseline_code() -> None:
    assert baseline(times=5) is baseline(times=5)


def test_what_is_in_the_object_cache_needs_no_baseline_code() -> None:
    linker.address(twice(times=6))
    linker._addresses.clear()
    assert not isinstance(linker.baseline(twice(times=6), isa.current()), BaselineKernel)


def test_several_threads_replace_a_kernel_once() -> None:
    found, before = baseline(times=7), len(jit.statistics.compiled)
    gate = threading.Barrier(4)

    def replace() -> None:
        gate.wait()
        linker.replace(found)

    threads = [threading.Thread(target=replace) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(jit.statistics.compiled) == before + 1 and called(found, 1) == 128


def test_the_first_run_uses_baseline_code_and_the_second_waits_for_optimized_code() -> None:
    found = session(model(), cache="0")
    mine = executable(found)
    assert mine.tier_up is not None and not mine.tier_up.is_over
    first = found.run(None, images())
    assert mine.tier_up is not None
    second = found.run(None, images())
    assert mine.tier_up is None
    assert all(code.text is None for code in mine.table.code if isinstance(code, BaselineKernel))
    assert np.array_equal(first[0], second[0])
    plain = session(model(), cache="0", baseline_code="0").run(None, images())
    assert np.array_equal(first[0], plain[0])


def test_another_shape_also_waits() -> None:
    found = session(model(), cache="0")
    found.run(None, images())
    found.run(None, images(count=5))
    assert executable(found).tier_up is None


def test_a_profile_measures_optimized_code(tmp_path: Path) -> None:
    options = sx.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    options.add_session_config_entry("session.cache", "0")
    found = sx.InferenceSession(model(seed=8), options)
    mine = executable(found)
    assert mine.tier_up is not None
    found.run(None, images())
    assert mine.tier_up is None
    found.end_profiling()


@pytest.mark.parametrize("off", ["the session's option", "the variable"])
def test_it_can_be_switched_off(off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"baseline_code": "0"} if off == "the session's option" else {}
    if not config:
        monkeypatch.setenv(knobs.BASELINE.name, "0")
    assert executable(session(model(), cache="0", **config)).tier_up is None


def test_an_entry_of_the_cache_has_optimized_code(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(seed=2))
    time.sleep(0.05)  # a file that was written just now is not cached
    first = sx.InferenceSession(path).run(None, images())
    cache_writer.wait()
    linker._addresses.clear()
    again = sx.InferenceSession(path)
    assert executable(again).tier_up is None
    assert np.array_equal(first[0], again.run(None, images())[0])


def test_many_callers_at_once() -> None:
    found, feeds = session(model(seed=3), cache="0"), [images(seed=i, count=i % 3 + 1) for i in range(12)]
    told: dict[int, Any] = {}

    def call(i: int) -> None:
        told[i] = found.run(None, feeds[i])[0]

    threads = [threading.Thread(target=call, args=(i,)) for i in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    plain = session(model(seed=3), cache="0", baseline_code="0")
    assert all(np.array_equal(told[i], plain.run(None, feeds[i])[0]) for i in range(12))


def test_code_that_cannot_be_made_is_said_and_the_baseline_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> bytes:
        raise Fail("there is no memory for code")

    found = session(model(seed=4), cache="0")
    first = found.run(None, images())
    mine = executable(found).tier_up
    assert mine is not None
    monkeypatch.setattr(tier_up.linker, "replace", refuse)
    with caplog.at_level(logging.WARNING, "sardonyx"):
        TierUp([baseline(times=9)], threads=1).finish()
    assert "kernel twice stays baseline code" in caplog.text
    assert np.array_equal(first[0], found.run(None, images())[0])


def _in_child(work: Callable[[], bool]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_was_forked_after_the_first_run_goes_on() -> None:
    found = session(model(seed=5), cache="0")
    first = found.run(None, images())[0]

    def work() -> bool:
        return bool(np.array_equal(first, found.run(None, images())[0])) and executable(found).tier_up is None

    assert _in_child(work) == 0
    assert np.array_equal(first, found.run(None, images())[0])


@pytest.mark.parametrize("cache", ["off", "on"])
def test_a_program_that_ends_after_its_first_run(cache: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(seed=6))
    code = (
        "import sys, numpy as np, sardonyx as sx\n"
        "s = sx.InferenceSession(sys.argv[1])\n"
        "s.run(None, {'x': np.ones((1, 3, 16, 16), np.float32)})\n"
        "print(type(s._sess.engine).__name__)"
    )
    env = {**os.environ, "SARDONYX_CACHE": "off" if cache == "off" else str(tmp_path / "own")}
    told = [
        subprocess.run([sys.executable, "-c", code, path], env=env, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [each.stdout.strip() for each in told] == ["Engine", "Engine" if cache == "off" else "CachedEngine"]
    assert not any(each.stderr for each in told)


NATIVES = {"run", "execute", "worker", "read_ticks"}


@pytest.mark.parametrize("by", ["second run", "session without baseline code"])
def test_native_functions_of_the_team_begin_as_baseline_code(by: str) -> None:
    linker.natives.clear()
    found = session(model(), cache="0")
    natives = {kernel.spec.name: kernel for kernel in _kernels(found) if kernel.spec.name in NATIVES}
    assert natives.keys() == NATIVES and all(kernel.text for kernel in natives.values())
    (first,) = found.run(None, images())
    if by == "second run":
        np.testing.assert_array_equal(found.run(None, images())[0], first)
    else:
        session(model(2), cache="0", baseline_code="0")
    assert not any(kernel.text for kernel in natives.values())
    assert linker.native("runtime.executor", "execute") != natives["execute"]


def _kernels(found: sx.InferenceSession) -> list[BaselineKernel]:
    tier_up = executable(found).tier_up
    assert tier_up is not None
    return list(tier_up._kernels)
