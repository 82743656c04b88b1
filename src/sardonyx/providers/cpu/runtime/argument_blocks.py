"""The argument blocks of a step table: the words that kernels read, before sizes are known.

A block is the number of its step, one word for each number that the kernel takes, and four for each memory: the base,
the offset from it in bytes, and, where addresses are checked, how many bytes lie after and before that place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx import knobs
from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Expr, Known
from sardonyx.lower.groups import Storage
from sardonyx.plan.sizes import Sizes
from sardonyx.providers.cpu.codegen.launch import word
from sardonyx.providers.cpu.language.context import ARENA, STEP_SLOT
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Holds, Ref, Slot, Step


class ArgumentBlocks:
    """Blocks one after the other. Words that depend on sizes or on the place of a temporary are recorded."""

    def __init__(self, sizes: Sizes, bases: Mapping[Storage, int], temporaries: Sequence[Storage]) -> None:
        assert STEP_SLOT == 0
        self.words: list[int] = []
        self.starts: list[int] = []
        """Where each block begins."""
        self.sized: list[tuple[int, int]] = []
        """Words that are values of expressions: position, number of the expression."""
        self.placed: list[tuple[int, int]] = []
        """Words that the offset of a temporary in the arena is added to: position, number of the temporary."""
        self._sizes, self._bases = sizes, bases
        self._temporaries = {s: i for i, s in enumerate(temporaries)}
        self._is_checked = knobs.CHECK_ADDRESSES.get()

    def add(self, step: Step) -> None:
        """Append the block of the next step."""
        self.words.append(len(self.starts))
        self.starts.append(len(self.words) - 1)
        assert set(step.args) == set(step.spec.params), (step.spec.name, set(step.args) ^ set(step.spec.params))
        for name, (kind, dtype) in step.spec.params.items():
            given = step.args[name]
            assert isinstance(given, Ref) == (kind != "number"), name
            if isinstance(given, Ref):
                self._add_memory(given)
            else:
                self._add_number(given, dtype)

    def _add_memory(self, given: Ref) -> None:
        storage = given.storage
        offset = expressible(dims.mul(given.offset, storage.dtype.itemsize))
        self.words.append(self._bases.get(storage, ARENA))
        if storage in self._temporaries:
            self.placed.append((len(self.words), self._temporaries[storage]))
        self._add_size(offset)
        self._add_size(expressible(dims.sub(nbytes_of(storage), offset)) if self._is_checked else 0)
        self._add_size(offset if self._is_checked else 0)

    def _add_number(self, given: Slot | Holds | Known | float, dtype: DType) -> None:
        if isinstance(given, Holds):
            self._add_value(self._sizes.all([self._sizes.satisfies(c.size, c.allowed, c.least) for c in given.checks]))
        elif isinstance(given, Slot):
            self.words.append(self._bases[given.storage])
        elif isinstance(given, Expr):
            self._add_size(given)
        else:
            self.words.append(word(given, dtype))

    def _add_size(self, size: Known) -> None:
        if isinstance(size, Expr):
            self._add_value(self._sizes.number(size))
        else:
            self.words.append(int(size))

    def _add_value(self, number: int) -> None:
        self.sized.append((len(self.words), number))
        self.words.append(0)


def nbytes_of(storage: Storage) -> Known:
    return expressible(dims.mul(storage.elements, storage.dtype.itemsize))
