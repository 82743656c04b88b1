"""The step table of a part: everything that does not depend on the sizes of its inputs.

Argument blocks are one array of int64 words. Most words are the same for every shape. For the others the table records
position and expression (``argument_blocks``), and the first run of a new shape writes them (``shape_program``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.ir import dims
from sardonyx.ir.dims import Expr, Known
from sardonyx.lower.check import Check
from sardonyx.lower.groups import IndirectStorage, Storage, View
from sardonyx.lower.lowering import Counted
from sardonyx.partition.provider import StepRow
from sardonyx.plan.liveness import Access, intervals, lifetimes
from sardonyx.plan.sizes import Binding, Results, Sizes, Unplannable, multiple
from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.codegen.object_loader import Address
from sardonyx.providers.cpu.language.context import CONTROL, MEET, NONE, Row
from sardonyx.providers.cpu.language.dsl import Spec
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.steps import Ref, Slot, Step
from sardonyx.providers.cpu.runtime.argument_blocks import ArgumentBlocks, nbytes_of
from sardonyx.providers.cpu.runtime.shape_program import ROW_WORDS
from sardonyx.providers.cpu.runtime.shape_sizes import named
from sardonyx.providers.cpu.runtime.trim import Trim

Array = np.ndarray[Any, Any]


class StepTable:
    """Steps and their argument blocks, for any sizes."""

    def __init__(
        self,
        steps: Sequence[Step],
        inputs: Sequence[View],
        outputs: Sequence[View],
        checks: Sequence[Check],
        isa: Isa,
        counted: Mapping[int, Counted] | None = None,
        *,
        baseline: bool = False,
        room: int | None = None,
    ) -> None:
        """``baseline``: kernels that are not compiled yet may have baseline code. ``room``: the size, at first, of the
        last input, if that is an array of room (``Lowered``)."""
        self.room = room
        self.steps = tuple(steps)
        self.binding = Binding([v.shape for v in inputs])
        self.sizes = Sizes(self.binding.names)
        self.trim = Trim(counted, len(outputs), self.binding.names) if counted else None
        outputs = (*outputs, *(self.trim.counts if self.trim is not None else ()))
        self.inputs, self.outputs = [v.dtype.numpy for v in inputs], [v.dtype.numpy for v in outputs]
        self._number_bases([v.storage for v in (*inputs, *outputs)])
        self._find_lifetimes()
        self._number_sizes()
        for c in checks:
            self.sizes.require(self.sizes.satisfies(c.size, c.allowed, c.least), c.what, c.size)
        self._lay_out()
        self._link(isa, linker.baseline if baseline else linker.address)
        measured = self._measured(outputs)
        if self.sizes.unbound:
            raise Unplannable(f"no input gives a size to {', '.join(sorted(self.sizes.unbound))}")
        self.evaluate = self.sizes.compiled()
        """From sizes to the values of all expressions; raises if a check fails."""
        self.measure = self.sizes.compiled(measured, self.binding, **named(self.outputs))
        """From input shapes to ``ShapeSizes``; raises if a check fails."""

    def _number_bases(self, given: Sequence[Storage]) -> None:
        """Number the addresses that a run brings: constants, inputs and outputs, moving storages. Number 0 is none."""
        touched = [arg.storage for step in self.steps for arg in step.args.values() if isinstance(arg, (Ref, Slot))]
        self.temporaries = _unique(touched, "temporary")
        self.constants = _unique(touched, "constant")
        storages = [None, *self.constants, *given, *_unique(touched, "indirect")]
        self.bases = {s: i for i, s in enumerate(storages) if s is not None}
        self.first_input, self.given_count = 1 + len(self.constants), len(given)
        self.base_count = len(storages)

    def _find_lifetimes(self) -> None:
        """Divide the steps into intervals without a barrier, and find those in which each temporary lives."""
        accesses = [_access(step) for step in self.steps]
        self.intervals = intervals(accesses)
        loops = [(i - step.repeats, i) for i, step in enumerate(self.steps) if step.repeats]
        self.has_loops, self.is_bounded = bool(loops), all(step.is_bounded for step in self.steps)
        lives = lifetimes([_backed(a) for a in accesses], self.intervals, loops)
        self.lives = [lives[s] for s in self.temporaries]

    def _number_sizes(self) -> None:
        """Number the expressions of memory and work."""
        steps = self.steps
        self.nbytes = self._numbers([nbytes_of(s) for s in self.temporaries])
        conditional = {i: found for i, step in enumerate(steps) if (found := self._condition(step)) is not None}
        self.conditions = tuple(dict.fromkeys(conditional.values()))
        """Conditions on sizes, by number, under which steps run."""
        self.conditional = [(i, self.conditions.index(number)) for i, number in conditional.items()]
        """Steps that run for some sizes only, with the index of the condition of each."""
        self.scratch = self.sizes.largest(s.scratch_nbytes for s in steps)
        """The expression, by number, of the largest scratch of a step."""
        self.extents, self.bounded = self._bounded()
        """``extents``: expressions whose buckets identify a plan. ``bounded``: for each size-dependent number of bytes,
        the extent that it is a multiple of, and the factor."""
        self.flops = self._numbers([s.flops for s in steps])
        self.traffic = self._numbers([s.nbytes for s in steps])
        meets = _meets(steps, self.intervals)
        self.meetings = self._numbers([s.executions if m else 0 for s, m in zip(steps, meets, strict=True)])
        """How many barriers a run has in front of each step."""
        self.executions = self._numbers([s.executions for s in steps])

    def _condition(self, step: Step) -> int | None:
        """The condition under which a step runs, None if it always runs.

        Nothing is written to results that are empty. A kernel would count its rows, of which there may be any number.
        """
        found = [self.sizes.in_range(step.only)] if step.only else []
        refs = [ref for name, ref in step.args.items() if name in step.writes and isinstance(ref, Ref)]
        sizes = [ref.storage.elements for ref in refs if ref.storage.kind != "indirect"]
        is_certain = len(sizes) < len(step.writes) or any(dims.at_least(size, 1) for size in sizes)
        if sizes and not (is_certain or step.is_control or step.can_fail):
            found.append(self.sizes.any_at_least(dict.fromkeys(sizes), 1))
        return self.sizes.all(found) if found else None

    def _lay_out(self) -> None:
        """Write the words that are the same for all shapes; record the others."""
        blocks = ArgumentBlocks(self.sizes, self.bases, self.temporaries)
        for step in self.steps:
            blocks.add(step)
        self.words, self.starts = np.array(blocks.words, np.int64), blocks.starts
        rows, places = self.sizes.program(number for _, number in blocks.sized)
        self.program = np.array(rows, np.int64).reshape(-1, ROW_WORDS)
        """The shape program: rows that compute the size-dependent words."""
        self.sized_at, self.sized_by = _columns([(at, places[number]) for at, number in blocks.sized])
        self.placed_at, self.placed_by = _columns(blocks.placed)

    def _link(self, isa: Isa, find: Callable[[Spec, Isa], Address]) -> None:
        """Write the table's rows, with the addresses of compiled kernels."""
        self.kernels = [(linker.name(step.spec, isa), step.spec.name) for step in self.steps]
        """Keys of the steps' object files, and the names of the functions in them."""
        self.code = [find(step.spec, isa) for step in self.steps]
        """Keeps the code alive whose addresses ``rows`` holds."""
        self.rows = np.zeros((len(self.steps), Row.WORDS), np.int64)
        for i, step in enumerate(self.steps):
            meets = i > 0 and self.intervals[i] != self.intervals[i - 1]
            before = CONTROL if step.is_control else MEET if meets else NONE
            self.rows[i] = self.code[i], self.starts[i] * 8, before, 0

    def _numbers(self, expressions: Sequence[Known]) -> Array:
        return np.array([self.sizes.number(e) for e in expressions], np.int64)

    def _bounded(self) -> tuple[tuple[int, ...], list[tuple[int, int, int]]]:
        """``extents`` and ``bounded``. Most models need few: all memory of a transformer is a multiple of one."""
        found: dict[int, tuple[int, int]] = {}
        for storage in self.temporaries:
            nbytes = nbytes_of(storage)
            if isinstance(nbytes, Expr):
                extent, times = multiple(nbytes)
                found[self.sizes.number(nbytes)] = self.sizes.number(extent), times
        if any(isinstance(step.scratch_nbytes, Expr) for step in self.steps):
            found[self.scratch] = self.scratch, 1
        extents = tuple(dict.fromkeys(extent for extent, _ in found.values()))
        return extents, [(i, extents.index(extent), times) for i, (extent, times) in found.items()]

    def _measured(self, outputs: Sequence[View]) -> Results:
        """The expressions that make up ``ShapeSizes``."""
        sizes = self.sizes
        work = sizes.bit_or(size for s in self.steps for size in (s.flops, s.nbytes))
        described: list[tuple[tuple[int, ...], str, int]] = []
        for name, v in zip(named(self.outputs), outputs, strict=True):
            shape = tuple(map(sizes.number, v.shape))
            described.append((shape, name, sizes.product([*shape, sizes.number(v.dtype.itemsize)])))
        names, most = tuple(range(len(self.binding.names))), sizes.maximum([nbytes for _, _, nbytes in described])
        return names, self.extents, work, self.conditions, tuple(described), most


def row_of(step: Step) -> StepRow:
    """A step as ``explain()`` shows it."""
    nodes, choice = tuple(node.label for node in step.nodes), step.choice
    if choice is None:
        return StepRow(step.spec.name, step.variant, nodes)
    is_few = choice.few is not None and step.only == choice.few[0]
    chosen = choice.few[1].name if choice.few is not None and is_few else choice.name
    return StepRow(step.spec.name, step.variant, nodes, chosen, choice.refusals)


def _columns(pairs: list[tuple[int, int]]) -> tuple[Array, Array]:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def _unique(storages: Sequence[Storage], kind: str) -> list[Storage]:
    return list(dict.fromkeys(s for s in storages if s.kind == kind))


def _access(step: Step) -> Access:
    refs = {name: ref.storage for name, ref in step.args.items() if isinstance(ref, Ref)}
    writes = frozenset(s for name, s in refs.items() if name in step.writes)
    reads = frozenset(s for name, s in refs.items() if name not in step.writes)
    return Access(_changing(reads), _changing(writes), step.is_control)


def _meets(steps: Sequence[Step], numbers: Sequence[int]) -> Iterator[bool]:
    """Whether there is a barrier in front of each step. Consecutive control steps share one."""
    for i, step in enumerate(steps):
        if step.is_control:
            yield i == 0 or not steps[i - 1].is_control
        else:
            yield i > 0 and numbers[i] != numbers[i - 1]


def _changing(storages: frozenset[Storage]) -> frozenset[object]:
    """Inputs and constants are never written; outputs may be read again by a later step."""
    return frozenset(s for s in storages if s.kind in ("temporary", "output", "indirect"))


def _backed(access: Access) -> Access:
    """The access with moving storages replaced by the memory that they alternate between."""
    reads, writes = (frozenset(b for s in side for b in _backing(s)) for side in (access.reads, access.writes))
    return Access(reads, writes)


def _backing(storage: object) -> Iterator[object]:
    if isinstance(storage, IndirectStorage):
        for backing in storage.backing:
            yield from _backing(backing)
    else:
        yield storage
