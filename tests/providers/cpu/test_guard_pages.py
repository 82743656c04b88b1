"""Guard pages: stray accesses end the process, and runs that stay in their memory go on as before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.providers.cpu.language.context import ARENA, Context
from sardonyx.providers.cpu.memory import allocator, guard_pages
from sardonyx.providers.cpu.runtime.executable import CpuExecutable
from tests.conftest import ROOT

MODES = (guard_pages.END, guard_pages.FRONT)
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSEGV") or sys.platform == "win32", reason="no mprotect here")


def run(code: str, where: str | None, cpu: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("SARDONYX_GUARD_PAGES", "SARDONYX_CPU")}
    env |= {"SARDONYX_GUARD_PAGES": where} if where else {}
    env |= {"SARDONYX_CPU": cpu} if cpu else {}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("where", MODES)
@pytest.mark.parametrize("nbytes", [0, 1, 64, 4095, 4096, 10_000])
def test_memory_touches_a_page(where: str, nbytes: int) -> None:
    for alignment in (1, 64):
        made = guard_pages.allocate(nbytes, alignment, where)
        at = made.ctypes.data
        assert made.shape == (nbytes,) and not made.any() and at % alignment == 0
        rest = at % 4096 if where == guard_pages.FRONT else -(at + nbytes) % 4096
        assert rest == (0 if where == guard_pages.FRONT else -nbytes % alignment)
        made[:] = 7


def test_allocations_have_guard_pages_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_GUARD_PAGES", "end")
    assert (allocator.address(allocator.allocate(128)) + 128) % 4096 == 0
    monkeypatch.setenv("SARDONYX_GUARD_PAGES", "sideways")
    with pytest.raises(InvalidArgument, match="end or front"):
        allocator.allocate(128)


TOUCH = """
import numpy as np
from sardonyx.providers.cpu.memory.allocator import address, allocate
a = allocate(64 * 100)
at = address(a)
import ctypes
print(ctypes.string_at(at, 6400) == bytes(6400), flush=True)
ctypes.string_at({}, 1)
"""


@pytest.mark.parametrize(("where", "place"), [("end", "at + 6400"), ("front", "at - 1")])
def test_one_byte_outside_is_fatal(where: str, place: str) -> None:
    found = run(TOUCH.format(place), where)
    assert found.stdout == "True\n" and found.returncode == -signal.SIGSEGV
    assert run(TOUCH.format(place), None).returncode == 0


PLANTED = """
import numpy as np
import onnx.parser
import sardonyx
from sardonyx.providers.cpu.runtime.plans import Plan
text = '<ir_version: 10, opset_import: ["": 21]> g (float[1000] x) => (float[1000] y) {{ y = Relu(x) }}'
model = onnx.parser.parse_model(text)
session = sardonyx.InferenceSession(model.SerializeToString())
before = Plan.__init__
def planted(self, *given):
    before(self, *given)
    assert (self.words == 1000).any()
    self.words[self.words == 1000] = 1000 + {}
Plan.__init__ = planted
x = np.arange(-500, 500, dtype="f")
y = session.run(None, {{"x": x}})[0]
np.testing.assert_array_equal(y, np.maximum(x, 0))
print("done")
"""


def test_an_access_past_the_end_is_fatal() -> None:
    assert run(PLANTED.format(0), "end").stdout == "done\n"
    assert run(PLANTED.format(1), "end").returncode == -signal.SIGSEGV


SORTED = """
<ir_version: 10, opset_import: ["": 21]>
g (float[n, 64] x) => (float[n, 64] y) { axis = Constant<value_int = 0>() s = CumSum(x, axis) y = Softmax(s) }
"""


@pytest.mark.parametrize("where", MODES)
def test_a_run_has_each_kind_of_memory_at_a_page(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_GUARD_PAGES", where)
    session = sardonyx.InferenceSession(onnx.parser.parse_model(SORTED).SerializeToString())
    executable = session._sess.engine.parts.whole
    assert isinstance(executable, CpuExecutable)
    for n in (30, 500, 30, 29):
        x = np.ones((n, 64), "f")
        np.testing.assert_allclose(session.run(None, {"x": x})[0], np.full((n, 64), 1 / 64), rtol=1e-5)
        (arena,) = executable._arenas.idle
        ((plan, frame),) = ((plan, plan.frames[arena]) for plan in executable._plans._all if arena in plan.frames)
        assert plan.arena_nbytes >= 4 * 64 * n
        sizes = plan.arena_nbytes, plan.scratch_nbytes * plan.threads, plan.run_nbytes - plan.counters_at
        starts = frame.bases[ARENA], frame.slots[Context.SCRATCH], frame.slots[Context.COUNTERS]
        for at, nbytes in zip(starts, sizes, strict=True):
            assert (at if where == guard_pages.FRONT else at + allocator.aligned(nbytes)) % 4096 == 0


MODEL = """
import numpy as np, sardonyx
images = np.load("demo/heldout.npz")
labels = {k: images[k] for k in images.files}
session = sardonyx.InferenceSession("demo/digits.onnx")
x = [v for v in labels.values() if v.ndim == 3][0][:7]
name = session.get_inputs()[0].name
for n in (7, 0, 3):
    print(session.run(None, {name: x[:n]})[0].tolist())
binding = session.io_binding()
binding.bind_cpu_input(name, x)
out = session.get_outputs()[0].name
binding.bind_output(out)
session.run_with_iobinding(binding)
print(binding.copy_outputs_to_cpu()[0].tolist())
"""


@pytest.mark.parametrize("cpu", [None, "sapphirerapids"])
def test_models_run_in_guarded_memory(cpu: str | None, demo_dir: Path) -> None:
    plain = run(MODEL, None, cpu)
    assert plain.returncode == 0, plain.stderr
    for where in MODES:
        found = run(MODEL, where, cpu)
        assert (found.returncode, found.stdout) == (0, plain.stdout), found.stderr


TABLE = """
import warnings; warnings.simplefilter("ignore")
import numpy as np, sardonyx
from tests.providers.cpu.empty import CASES
for name in {}:
    case = CASES[name]
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = 2
    session = sardonyx.InferenceSession(case.model.SerializeToString(), options)
    for sizes in (case.sizes, *case.emptied):
        print(name, sizes, flush=True)
        try:
            session.run(None, case.feeds(sizes))
        except sardonyx.errors.InvalidArgument:
            pass
print("done")
"""
SOME = (
    "conv: 3 x 3", "conv: inverted residual", "conv: pools around", "image: resize linear", "product: layers",
    "product: matmul of bytes", "attention: attention", "recurrent: LSTM, forward", "index: gather", "flow: loop",
)  # fmt: skip


@pytest.mark.parametrize("where", MODES)
@pytest.mark.parametrize("cpu", [None, "haswell", "sapphirerapids"])
def test_kernels_stay_in_guarded_memory(cpu: str | None, where: str) -> None:
    found = run(TABLE.format(SOME), where, cpu)
    assert found.returncode == 0 and found.stdout.endswith("done\n"), found.stdout[-200:] + found.stderr[-2000:]


def test_copies_are_equal() -> None:
    given = [np.arange(6).reshape(2, 3).T, np.zeros((0, 4), "f"), np.array(3.0)]
    for a, b in zip(given, guard_pages.copies(given, guard_pages.END), strict=True):
        np.testing.assert_array_equal(a, b)
        assert b.flags.c_contiguous and b.flags.aligned
