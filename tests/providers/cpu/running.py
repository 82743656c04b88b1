"""Runs groups without a session: arrays in, arrays out, on simulated threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.lower.groups import Storage, View
from sardonyx.plan.sizes import SizeRange
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.language.dsl import Spec
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.steps import Ref, Step

Array = np.ndarray[Any, Any]


def view_of(array: Array) -> View:
    """An array as a view of a storage of its own."""
    storage = Storage("input", dtypes.of_numpy(array.dtype), array.size)
    if array.size == 0:
        array = np.empty([max(n, 1) for n in array.shape], array.dtype)[tuple(slice(n) for n in array.shape)]
    steps = tuple(s // array.itemsize if n != 1 else 0 for n, s in zip(array.shape, array.strides, strict=True))
    return View(storage, array.shape, steps)


def holds(only: SizeRange, size: int) -> bool:
    """Whether a step is carried out for a size."""
    return size >= only.least and (only.most is None or size <= only.most)


def x86_assembly(spec: Spec, chip: Isa) -> str:
    """A kernel as x86 code, which any LLVM that knows of x86 writes."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM writes no x86 code")
    module = llvm.parse_assembly(str(spec.emit(chip, checked=False).module))
    module.verify()
    machine = target.create_target_machine(cpu=chip.cpu, features=chip.features, opt=2)
    return str(machine.emit_assembly(module))


def by_pixel(array: Array, room: int = 0) -> Array:
    """The same elements in NHWC, in memory with room for further channels."""
    last = np.moveaxis(array, 1, -1)
    held = np.full((*last.shape[:-1], last.shape[-1] + room), 7, array.dtype)
    held[..., : last.shape[-1]] = last
    return np.moveaxis(held[..., : last.shape[-1]], -1, 1)


class Memory:
    """The arrays of storages, and the values of symbolic sizes."""

    garbage = b"\x77"
    """What new memory is full of."""

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        self.sizes = dict(sizes or {})
        self._flat: dict[int, Array] = {}

    def input(self, array: Array) -> View:
        """A view of an array, with its strides; repeated axes have stride 0."""
        view = view_of(array)
        self._flat[view.storage.number] = _flat(array)
        return view

    def output(self, shape: Sequence[Any], dtype: Any, *, order: Sequence[int] | None = None) -> View:
        """A new tensor whose axes lie in memory in this order."""
        strides: list[Any] = [0] * len(shape)
        elements: Any = 1
        for axis in reversed(order if order is not None else range(len(shape))):
            strides[axis], elements = elements, dims.mul(elements, shape[axis])
        storage = Storage("output", dtypes.of_numpy(np.dtype(dtype)), elements)
        view = View(storage, tuple(shape), tuple(strides))
        self._allocate(storage)
        return view

    def _allocate(self, storage: Storage) -> None:
        n = self.number(storage.elements)
        self._flat[storage.number] = (
            np.frombuffer(self.garbage * (n * storage.dtype.numpy.itemsize), np.uint8).copy().view(storage.dtype.numpy)
        )

    def number(self, d: Any) -> Any:
        return dims.evaluate(d, self.sizes) if isinstance(d, (int, str)) else d

    def array(self, view: View) -> Array:
        """What a view shows."""
        flat = self._flat[view.storage.number]
        shape = [self.number(n) for n in view.shape]
        strides = [self.number(s) * flat.itemsize for s in view.strides]
        plain = flat.view(f"u{flat.itemsize}")[self.number(view.offset) :]  # as_strided supports only numpy's own types
        return np.lib.stride_tricks.as_strided(plain, shape, strides).view(flat.dtype)

    def launches(self, steps: Sequence[Step], **options: Any) -> list[Launch]:
        return [self._launch(s, **options) for s in steps if s.only is None or holds(s.only, self.number(s.only.size))]

    def _launch(self, step: Step, **options: Any) -> Launch:
        arguments: dict[str, Any] = {}
        for name, given in step.args.items():
            if isinstance(given, Ref):
                if given.storage.number not in self._flat:
                    self._allocate(given.storage)
                arguments[name] = self._flat[given.storage.number], self.number(given.offset)
                continue
            arguments[name] = self.number(given)
        made = Launch(step.spec, arguments, scratch_nbytes=self.number(step.scratch_nbytes), **options)
        made.scratch[:] = self.garbage[0]
        return made

    def run(self, steps: Sequence[Step], *, threads: int = 1, isa: Isa | None = None, checked: bool = False) -> None:
        for launch in self.launches(steps, threads=threads, isa=isa, checked=checked):
            launch()


def _flat(array: Array) -> Array:
    """The memory from an array's first element to its last."""
    span = 1 + sum((n - 1) * abs(s) // array.itemsize for n, s in zip(array.shape, array.strides, strict=True))
    return np.lib.stride_tricks.as_strided(array, (span if array.size else 0,), (array.itemsize,))
