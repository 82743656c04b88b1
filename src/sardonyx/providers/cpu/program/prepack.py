"""Prepacked constants: a kernel packs a tensor of the model, at the first start and again at later starts.

The compiled-model cache does not store large packed constants. It stores a ``Source``: where in the model's file the
tensor is, and the call of the packing kernel, in plain values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.files import SourceFile
from sardonyx.forks import cached_property
from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.codegen.launch import Launch, Signature, code_for_one_call
from sardonyx.providers.cpu.memory.allocator import allocate
from sardonyx.providers.cpu.program.constants import as_stored, identity, once
from sardonyx.records import Record

if TYPE_CHECKING:
    from sardonyx.ir.tensor import Tensor
    from sardonyx.providers.cpu.language.dsl import Spec
    from sardonyx.providers.cpu.machine.isa import Isa

Array = np.ndarray[Any, Any]


class Packing(Record):
    """The call of a packing kernel: what it writes to ``y`` when ``x`` is a tensor."""

    tensor: Tensor
    first: int
    """The tensor's element that is element 0 of ``x``."""
    spec: Spec
    isa: Isa
    numbers: Mapping[str, Any]
    """The kernel's other parameters, except ``flags``."""
    elements: int
    dtype: DType
    """The type of ``y``."""
    flags: int = 0
    """The length of the parameter ``flags``, if the kernel has one: it sets a flag where numbers of a block are outside
    the representable range of the layout."""
    refused: object = None
    """The identity that ``Unrepresentable`` reports in that case."""

    def __call__(self) -> Array:
        code = code_for_one_call(self.spec, self.isa, self.tensor.nbytes)
        made, is_carried = _pack(self.tensor.peek(), self.spec, code, *self._numbers)
        if not is_carried:
            from sardonyx.providers.cpu.program.steps import Unrepresentable

            raise Unrepresentable(self.refused)
        return made

    @property
    def _numbers(self) -> tuple[int, dict[str, int], int, DType, int]:
        return self.first, {k: int(v) for k, v in self.numbers.items()}, self.elements, self.dtype, self.flags

    @cached_property
    def call(self) -> tuple[Any, ...]:
        """The call without the tensor, in plain values."""
        params = tuple((name, kind, dtype.name) for name, (kind, dtype) in self.spec.params.items())
        first, numbers, elements, dtype, flags = self._numbers
        name = linker.name(self.spec, self.isa)
        return name, self.spec.name, params, first, tuple(numbers.items()), elements, dtype.name, flags

    @property
    def key(self) -> tuple[Any, ...]:
        """The key by which equal packed constants are shared."""
        return identity(self.tensor), self.call


class Source(NamedTuple):
    """What a constant is made of at a later start: a tensor in the model's files, and the call that packs it.

    All fields are plain values, so that the compiled-model cache can store them.
    """

    span: tuple[int, ...]
    """The tensor's place in the model's files: the number of the file, and the offset in it."""
    dtype: str
    shape: tuple[int, ...]
    call: tuple[Any, ...] | None
    """The call that packs it; None where it is used as stored."""

    @classmethod
    def of(cls, tensor: Tensor, files: Mapping[object, int], packing: Packing | None = None) -> Source | None:
        """The source of a tensor; None if no file of the model has its elements as they are used."""
        span = tensor.span_in(files)
        if span is None:
            return None
        return cls(span, tensor.dtype.name, tensor.shape, None if packing is None else packing.call)

    def array(self, files: Sequence[SourceFile], scratch: Scratch) -> Array:
        """The constant, read from a file of the model and packed; shared with equal ones of this process.

        Raises ``FileNotFoundError`` where the object file of the kernel is gone.
        """
        number, *place = self.span
        file = files[number]
        origin = (file.identity, *place)
        if self.call is None:
            return once(as_stored(origin, self.dtype, self.shape), lambda: self._read(file, allocate(self._nbytes)))
        return once((origin, self.call), partial(self._packed, file, scratch, *self.call))

    @property
    def _nbytes(self) -> int:
        return dtypes.of_name(self.dtype).nbytes(math.prod(self.shape))

    def _read(self, file: SourceFile, memory: Array) -> Array:
        file.read_into(memory, self.span[1])
        made: Array = memory.view(dtypes.of_name(self.dtype).numpy).reshape(self.shape)
        made.flags.writeable = False
        return made

    def _packed(
        self, file: SourceFile, scratch: Scratch, name: str, function: str, params: Any, first: int, numbers: Any,
        elements: int, made: str, flags: int,
    ) -> Array:  # fmt: skip
        at = linker.cached(name, function)
        if at is None:
            raise FileNotFoundError(name)
        signature = Signature(function, {name: (kind, dtypes.of_name(t)) for name, kind, t in params})
        with scratch.taken(self._nbytes) as memory:
            content = self._read(file, memory)
            return _pack(content, signature, at, first, dict(numbers), elements, dtypes.of_name(made), flags)[0]


class StreamSource(NamedTuple):
    """The state of a stream of random numbers. Each executable gets a stream of its own, or the process's."""

    seed: int | None
    """None for the stream that nodes without a seed share."""

    def array(self) -> Array:
        from sardonyx.ops import random

        return random.stream(self.seed).words


class Scratch:
    """A reused buffer for elements that are packed next: fresh pages would take as long as reading the file."""

    def __init__(self) -> None:
        self._free: list[Array] = []

    @contextmanager
    def taken(self, nbytes: int) -> Iterator[Array]:
        """A buffer of ``nbytes`` bytes for one thread; it is reused afterwards."""
        try:
            block = self._free.pop()
        except IndexError:
            block = np.empty(0, np.uint8)
        if len(block) < nbytes:
            block = np.empty(nbytes, np.uint8)
        yield block[:nbytes]
        self._free.append(block)


def _pack(
    content: Array, kernel: Spec | Signature, at: int, first: int, numbers: dict[str, int], elements: int, dtype: DType,
    flags: int,
) -> tuple[Array, bool]:  # fmt: skip
    """What the kernel at address ``at`` packs of ``content``, and whether its layout can represent all numbers."""
    content = np.ascontiguousarray(content).reshape(-1)
    made = aligned(elements, dtype)
    found = np.zeros(flags, np.int32)
    flag_args = {"flags": found} if "flags" in kernel.params else {}
    Launch(kernel, {**numbers, **flag_args, "x": content[first:], "y": made}, at=at)()
    return made, not found.any()


def aligned(elements: int, dtype: DType) -> Array:
    """Memory for a packed operand."""
    return allocate(dtype.nbytes(elements)).view(dtype.numpy)
