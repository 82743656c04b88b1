"""What is larger than the caches gives the same results, wherever those lie."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sardonyx import dtypes
from sardonyx.lower.groups import Storage, View
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES, named
from sardonyx.providers.cpu.program import analysis
from sardonyx.providers.cpu.program.analysis import Target
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Memory

TWICE = "s = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>()"
CASES = {
    "relu": "y = Relu(x)",
    "transpose": "y = Transpose<perm = [0, 2, 3, 1]>(x)",
    "transpose back": "y = Transpose<perm = [0, 3, 1, 2]>(x)",
    "softmax": "y = Softmax<axis = -1>(x)",
    "split": "y = Mul(x, x) z = Neg(x)",
    "halved": "y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x)",
    "maxpool": "y = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)",
    "nearest": f'{TWICE} y = Resize<mode = "nearest", nearest_mode = "floor", '
    'coordinate_transformation_mode = "asymmetric">(x, , s)',
    "linear": f'{TWICE} y = Resize<mode = "linear">(x, , s)',
    "cubic": f'{TWICE} y = Resize<mode = "cubic">(x, , s)',
    "larger": f'{TWICE.replace("2.0", "1.6")} y = Resize<mode = "linear">(x, , s)',
}


def at_offset(offset: int) -> Callable[[Memory, Storage], None]:
    """Memory that begins some bytes after the start of a cache line."""

    def allocate(self: Memory, storage: Storage) -> None:
        nbytes = self.number(storage.elements) * storage.dtype.itemsize
        raw = np.frombuffer(self.garbage * (nbytes + 2 * LINE_NBYTES), np.uint8).copy()
        start = -raw.ctypes.data % LINE_NBYTES + offset
        self._flat[storage.number] = raw[start : start + nbytes].view(storage.dtype.numpy)

    return allocate


@pytest.mark.parametrize("width", [32, 37, 80, 128, 413])
@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same(case: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((2, 20, 5, width)).astype("f")
    outputs = "float[A,B,C,D] y" + (", float[E,F,G,H] z" if case == "split" else "")
    given = CASES[case], f"float[2,20,5,{width}] x", outputs, "skylake-avx512"
    wanted = Compiled(*given).run([x])
    monkeypatch.setattr(Target, "exceeds_cache", lambda *_: True)
    compiled = Compiled(*given)
    assert any("is_non_temporal=True" in repr(step.spec.statics) for step in compiled.steps)
    for offset in (0, 32, 4):
        monkeypatch.setattr(Memory, "_allocate", at_offset(offset))
        for got, y in zip(compiled.run([x], threads=2, checked=True), wanted, strict=True):
            np.testing.assert_array_equal(got, y)


def test_non_temporal_stores_are_for_large_outputs() -> None:
    def view(rows: int, kind: str = "output") -> View:
        return View(Storage(kind, dtypes.f32, rows << 20), (rows, 1 << 20), (1 << 20, 1))

    x86, arm = Target(named("skylake-avx512")), Target(named("neoverse-n1"))
    far = analysis.FAR * x86.isa.l2_nbytes // (4 << 20) + 1
    assert x86.writes_non_temporal(view(far))
    assert not x86.writes_non_temporal(view(0))
    assert not x86.writes_non_temporal(view(far, "temporary"))
    assert not arm.writes_non_temporal(view(far))
