"""Parameters of the recurrent kernels: the register tile, the configuration and the arguments."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Stage
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.language.amx import COUNT, ROWS
from sardonyx.providers.cpu.language.arguments import Arguments, M, N, named
from sardonyx.providers.cpu.language.values import Buf, Val, i32
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.records import Record

CHAINS = 6
"""Independent accumulators that nearly hide the latency of an fma."""


class RecurrenceTile(Record):
    """The register tile: vectors of a panel, partial sums of each sum, rows.

    A tile of several rows leaves 8 registers for weights and elements.
    """

    lanes: int
    vectors: int
    chains: int
    heights: tuple[int, ...]
    """Row counts with their own code; others use the next larger one and repeat their last row."""

    @staticmethod
    def of(isa: Isa, dtype: DType, units: int, gates: int, batch: Known) -> RecurrenceTile:
        lanes = lanes_of(isa.lanes, dtype)
        while lanes > 4 and lanes // 2 >= units:
            lanes //= 2
        vectors = 1 if -(-units // lanes) % 2 else 2
        chains = next(n for n in (1, 2, 4) if gates * vectors * n >= CHAINS or n == 4)
        return RecurrenceTile(lanes, vectors, chains, _heights(_most_rows(isa, gates * chains), batch))

    @staticmethod
    def of_bytes(isa: Isa, gates: int) -> RecurrenceTile:
        """For products of integers: panels of one whole vector are read one byte after the other; with AMX, a tile has
        16 rows."""
        lanes = lanes_of(isa.lanes, i32)
        chains = next(n for n in (1, 2, 4) if gates * n >= CHAINS or n == 4)
        return RecurrenceTile(
            lanes, 1, chains, (ROWS if isa.amx and gates < COUNT - 2 else _most_rows(isa, gates * chains),)
        )

    @property
    def rows(self) -> int:
        """The rows of a whole tile."""
        return self.heights[-1]

    @property
    def units(self) -> int:
        """U, the units of a panel."""
        return self.lanes * self.vectors

    def vectors_of(self, height: int, gates: int, isa: Isa) -> int:
        """Vectors of a panel that are multiplied at once: all of them, where their sums and weights fit into registers
        beside two elements.
        """
        taken = gates * self.vectors * (height * self.chains + 1) + 2
        return self.vectors if height == 1 or taken <= isa.registers else 1


def _most_rows(isa: Isa, sums: int) -> int:
    return max(1, (isa.registers - 8) // sums)


def _heights(most: int, batch: Known) -> tuple[int, ...]:
    """For any batch 1, 2, 4 and so on up to a whole tile; for a known one that of whole tiles and of the last."""
    if not isinstance(batch, int):
        return (*(n for n in (1, 2, 4, 8) if n < most), most)
    found = {most} if batch >= most else set[int]()
    return tuple(sorted(found | {batch % most} - {0})) or (1,)


class RecurrenceConfig(Record):
    """The compile-time configuration of ``recurrence``."""

    dtype: DType
    """The type of accumulators, states and projected inputs."""
    weights: DType
    shape: RecurrenceTile
    stages: tuple[Stage, ...]
    gates: int
    has_full_panels: bool
    """The last panel is full, so that no masks are needed."""
    constants: tuple[DType, ...]
    lengths: DType | None
    initial: tuple[DType | None, ...]
    y: DType | None
    finals: tuple[DType | None, ...]
    is_int8: bool = False
    """The weights are bytes, and states are quantized before they are multiplied."""
    has_zeros: bool = False
    """Some zero points of the weights may not be 0."""

    @property
    def states(self) -> int:
        return len(self.initial)

    @property
    def slots(self) -> int:
        """State vectors of a sequence: the first state twice, the others, and the results of stages."""
        return 1 + self.states + sum(len(s.expression.results) for s in self.stages[:-1])


class OperandArgs(Arguments[M, N]):
    """The parameters of one of the caller's buffers. It has strides along some axes; units are contiguous."""

    memory: M = field(metadata=named("{}"))
    direction: N | None = None
    step: N | None = None
    row: N | None = None
    gate: N | None = None

    def at(
        self: OperandArgs[Buf, Val], *, direction: Val | None = None, step: Val | None = None, row: Val | None = None
    ) -> Buf:
        """The address of the operand's units at these indices; axes along which it has no stride are ignored."""
        found = self.memory
        for index, stride in ((direction, self.direction), (step, self.step), (row, self.row)):
            if index is not None:
                assert stride is not None
                found = found.at(index * stride)
        return found


class Int8Args(Arguments[M, N]):
    """What products of integers add to the parameters."""

    scale: OperandArgs[M, N]
    """Of the weights, as operands with strides along directions and gates."""
    zero: OperandArgs[M, N] | None
    depth: N
    """The elements of a source, padded as the panels are."""
    shared_rows: N
    """Sequences from which on threads share panels."""


class RecurrenceArgs(Arguments[M, N]):
    """The parameters of ``recurrence``."""

    is_inline: ClassVar[bool] = True
    x: OperandArgs[M, N]
    r: OperandArgs[M, N]
    constants: tuple[OperandArgs[M, N], ...] = field(metadata=named("constant"))
    lengths: OperandArgs[M, N] | None
    initial: tuple[OperandArgs[M, N] | None, ...]
    y: OperandArgs[M, N] | None
    finals: tuple[OperandArgs[M, N] | None, ...] = field(metadata=named("final"))
    memory: M
    """The state vectors of all sequences."""
    directions: N
    steps: N
    rows: N
    units: N
    forward: N
    """Directions that go forward; the others go backward."""
    max_blocks: N
    shared_from: N
    """Steps from which on threads share panels; -1: never."""
    int8: Int8Args[M, N] | None = None
