"""Objects and how they come into memory: the same bytes from any number of threads, references that meet targets."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from sardonyx import writing
from sardonyx.errors import Fail
from sardonyx.providers.cpu.codegen import jit, object_loader
from sardonyx.providers.cpu.codegen.compiler import BASELINE, OPTIMIZED, compiled, text_of
from sardonyx.providers.cpu.codegen.launch import launch
from sardonyx.providers.cpu.kernels.gemm.pack import numpy_panels, pack_panels
from sardonyx.providers.cpu.language.dsl import Kernel, Spec, function
from sardonyx.providers.cpu.language.values import Buf, f32, f64, i64
from sardonyx.providers.cpu.machine import isa

IR = """
declare ptr @memcpy(ptr, ptr, i64)
define void @copy(ptr %to, ptr %from, i64 %n) {
  %r = call ptr @memcpy(ptr %to, ptr %from, i64 %n)
  ret void
}
define void @scale(ptr %x) {
  %v = load <4 x float>, ptr %x, align 4
  %w = fmul <4 x float> %v, <float 1.5, float 2.5, float 3.5, float 4.5>
  store <4 x float> %w, ptr %x, align 4
  %p = getelementptr i8, ptr %x, i64 16
  %d = load double, ptr %p, align 8
  %e = fmul double %d, 0x3FD5555555555555
  store double %e, ptr %p, align 8
  ret void
}
"""
X86 = "x86_64-unknown-linux-gnu"


def made(triple: str) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip(f"this LLVM knows nothing of {triple}")
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(IR)
    module.triple = triple
    return bytes(machine.emit_object(module))


def native(content: bytes, name: str, *args: int) -> None:
    at = object_loader.load(content, name)
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))(at)(*args)


def test_an_object_is_linked_to_itself_and_to_the_c_library() -> None:
    content = made(llvm.get_default_triple())
    x = np.array([1, 2, 3, 4, 0, 0], "f")
    x[4:].view("d")[:] = 9
    native(content, "scale", x.ctypes.data)
    np.testing.assert_array_equal(x[:4], [1.5, 5, 10.5, 18])
    assert x[4:].view("d")[0] == 9 * struct.unpack("d", struct.pack("Q", 0x3FD5555555555555))[0]
    source, to = np.arange(1000), np.zeros(1000, np.int64)
    native(content, "copy", to.ctypes.data, source.ctypes.data, to.nbytes)
    np.testing.assert_array_equal(to, source)


def test_x86_relocations_resolve_to_their_targets() -> None:
    content = made(X86)
    found = object_loader.Object(content)
    symbols = found.symbols()
    held = object_loader.load(content, "copy")
    base = held - next(s.value for s in symbols if s.name == "copy")
    starts, _ = object_loader._places(found)
    assert base % 4096 == starts[min(starts)] == 0
    met = set()
    for section, offset, _, number, addend in found.relocations():
        at = base + starts[section] + offset
        target = at - addend + ctypes.c_int32.from_address(at).value
        symbol = symbols[number]
        if symbol.section:
            wanted = found.sections[symbol.section]
            expected = content[wanted.offset + symbol.value : wanted.offset + wanted.size]
            if wanted.flags & 4:  # code, in which references were filled in
                assert target == base + starts[symbol.section] + symbol.value
            else:
                assert ctypes.string_at(target, len(expected)) == expected
        else:
            assert ctypes.string_at(target, 6) == bytes.fromhex("ff2502000000")
            address = ctypes.c_uint64.from_address(target + 8).value
            assert address == ctypes.cast(ctypes.CDLL(None)[symbol.name], ctypes.c_void_p).value
        met.add(symbol.section)
    assert 0 in met and len(met) >= 2


def test_a_reference_of_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = made(llvm.get_default_triple())
    monkeypatch.setattr(object_loader, "FILLS", {})
    with pytest.raises(Fail, match="unknown kind"):
        object_loader.load(content, "scale")


@function(x=(f64,), n=i64)
def add_up(k: Kernel, x: Buf, n: object, *, times: int) -> None:
    for i in range(times):
        x.store(0, x.load(0) + (i + 0.25))


@function(x=(f64,))
def wrong(k: Kernel, x: Buf) -> None:
    raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("level", [BASELINE, OPTIMIZED])
def test_threads_make_the_same_objects(level: int) -> None:
    def made(spec: Spec) -> bytes:
        return compiled(spec.name, text_of(spec, isa.current()), isa.current(), level)

    specs = [add_up(times=n) for n in range(1, 9)]
    alone = [made(spec) for spec in specs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(made, specs)) == alone


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_kernel_is_compiled_once_for_all_sessions(folder: Path) -> None:
    linker, before = jit.Linker(), jit.statistics.compiled.count("add_up")
    gate = threading.Barrier(6)

    def ask(_: int) -> int:
        gate.wait()
        return linker.address(add_up(times=3))

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(ask, range(6)))) == 1
    assert jit.statistics.compiled.count("add_up") == before + 1 and not linker._makers


def test_many_are_prepared_side_by_side(folder: Path) -> None:
    linker = jit.Linker()
    specs = [add_up(times=n % 4) for n in range(12)]
    linker.prepare(specs, isa.current(), 3)
    assert len(linker._addresses) == 4
    for n, spec in enumerate(specs):
        x = np.zeros(1)
        at = linker.address(spec)
        ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(at)(x.ctypes.data, 1)
        assert x[0] == sum(i + 0.25 for i in range(n % 4))


def is_mapped(at: int) -> bool:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    stretches = ([int(end, 16) for end in line.split()[0].split("-")] for line in lines)
    return any(start <= at < end for start, end in stretches)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_code_is_counted_while_other_threads_add_to_it() -> None:
    class Slow:
        """Code whose size takes a moment to read, so that another thread comes in between."""

        @property
        def nbytes(self) -> int:
            time.sleep(1e-5)
            return 1

    def load() -> Any:
        time.sleep(1e-3)
        return Slow()

    linker = jit.Linker()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: linker._made(str(i % 50), load), range(200)))
    assert len(found) == 200 and len({id(each) for each in found}) == 50


def test_code_lives_while_it_is_referenced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linker = jit.Linker()
    had = linker.address(add_up(times=1))
    other = int(linker.address(add_up(times=2)))
    assert is_mapped(had) and is_mapped(other)
    monkeypatch.setattr(jit, "CODE_NBYTES", had.nbytes)
    last = int(linker.address(add_up(times=3)))
    assert len(linker._addresses) == 1
    assert is_mapped(had) and not is_mapped(other) and is_mapped(last)
    x = np.zeros(1)
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(had)(x.ctypes.data, 1)
    assert x[0] == 0.25
    place = int(had)
    del had
    assert not is_mapped(place)
    assert linker.address(add_up(times=2))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_code_with_threads_inside_is_never_freed() -> None:
    at = jit.Linker().native("language.system", "read_ticks")
    place = int(at)
    del at
    assert is_mapped(place)


def test_errors_of_compile_threads_are_raised_and_retried(folder: Path) -> None:
    linker = jit.Linker()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            linker.prepare([add_up(times=1), wrong(), add_up(times=2)], isa.current(), 2)
    assert linker.address(add_up(times=2))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_was_forked_meanwhile_compiles(folder: Path) -> None:
    with jit.linker._lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if jit.linker.address(add_up(times=7)) else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_full_disk_only_means_compiling_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "write_in", full)
    for _ in range(2):
        before = len(jit.statistics.compiled)
        assert jit.Linker().address(add_up(times=5)) and len(jit.statistics.compiled) == before + 1


def test_the_hosts_name_is_cached(folder: Path) -> None:
    isa._told.cache_clear()
    asked = isa._told()
    isa._told.cache_clear()
    assert isa._told() == asked == (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    assert len(list((folder / "kernels").iterdir())) == 1


@pytest.mark.parametrize("unit", ["rows", "columns", "any"])
@pytest.mark.parametrize(
    ("batch", "rows", "columns", "nr"),
    [(1, 5, 16, 8), (3, 7, 13, 4), (1, 1, 3, 8), (2, 4, 8, 8), (0, 3, 5, 4), (1, 0, 5, 8), (2, 3, 0, 8)],
)
def test_numpy_packs_as_the_kernel_does(unit: str, batch: int, rows: int, columns: int, nr: int) -> None:
    x = np.random.default_rng(0).standard_normal((batch, rows, columns, 2)).astype("f")[..., 0]
    if unit != "any":
        x = np.ascontiguousarray(x)
    if unit == "rows":
        x = np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1)
    panels = -(-columns // nr)
    by_kernel, by_numpy = (np.zeros(batch * panels * rows * nr, "f") for _ in range(2))
    base = np.lib.stride_tricks.as_strided(x, (batch * rows * columns * 2,), (4,))
    strides = [s // 4 for s in x.strides]
    launch(
        pack_panels(source=f32, target=f32, unit=unit, nr=nr, axes=1),
        x=base, y=by_kernel, rows=rows, columns=columns, x_row=strides[1], x_col=strides[2],
        **_batch(batch, strides[0]),
    )  # fmt: skip
    numpy_panels(x, by_numpy.reshape(batch, panels, rows, nr))
    np.testing.assert_array_equal(by_numpy, by_kernel)


def _batch(count: int, stride: int) -> dict[str, int]:
    spec = pack_panels(source=f32, target=f32, unit="any", nr=4, axes=1)
    others = [name for name in spec.params if name not in ("x", "y", "rows", "columns", "x_row", "x_col")]
    return {name: stride if name.startswith("x") else count for name in others}
