"""Chains of operations from a byte to a byte become lookups in tables of 256 bytes.

Quantizers put a QuantizeLinear and a DequantizeLinear after each operator, so that an activation such as Gelu is a
chain of pointwise operators with bytes in between. Where all other operands are constant scalars, the last byte is a
function of the first, which is computed once for each of the 256. A table is a further operand of its group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir.scalar import Emitter, Expr, run_numpy, trace
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.fusion.fuse import MAX_VIEWS
from sardonyx.lower.groups import (
    Apply,
    Contraction,
    Convolution,
    Count,
    Expression,
    Group,
    Loop,
    Reduce,
    Storage,
    View,
)
from sardonyx.providers.cpu.kernels.loops.passes import operations
from sardonyx.providers.cpu.kernels.math.byte_lookup import permutes_words
from sardonyx.providers.cpu.language.values import bool_, f32, i8, i32, u8
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.records import Record, replace

Array = np.ndarray[Any, Any]
BYTES = (i8, u8)
TYPES = (i8, u8, bool_, i32, f32)
"""Of values in chains. Kernels do not round intermediate values of narrower floats, numpy would."""
MAX_TABLES = 4
"""Of a group."""
MAX_CONSTANT = 1 << 12
"""Elements of a constant of which one is looked at."""
LEAST_OPERATIONS, LEAST_WITHOUT_PERMUTATION = 20, 40
"""Instructions of a chain that take longer than a lookup: by permutations of bytes or words, and without them."""


class _Value(Record):
    """What is known of a value of an expression."""

    content: Array | None = None
    """A constant, or the results for all 256 bytes of ``source``."""
    source: int | None = None
    """The byte of which it is a function."""
    operations: int = 0
    """From the source on."""


def with_byte_tables(groups: Sequence[Group], analysis: Analysis) -> list[Group]:
    """The groups, with lookups where they are quicker than what they replace."""
    is_quick = analysis.isa.byte_permute or permutes_words(analysis.isa)
    least = LEAST_OPERATIONS if is_quick else LEAST_WITHOUT_PERMUTATION
    return [_with_tables(group, least) for group in groups]


def _with_tables(group: Group, least: int) -> Group:
    if isinstance(group, Loop):
        room = MAX_VIEWS - len(group.inputs) - len(group.outputs)
        made = _rewritten(group.expression, group.inputs, group.extents, least, room)
        return group if made is None else replace(group, expression=made[0], inputs=made[1])
    if isinstance(group, (Contraction, Convolution)):
        made = _rewritten(group.epilogue, group.extra, group.box, least)
        return group if made is None else replace(group, epilogue=made[0], extra=made[1])
    return group


def _rewritten(
    e: Expression, views: Sequence[View], box: Sequence[Any], least: int, room: int = MAX_TABLES
) -> tuple[Expression, tuple[View, ...]] | None:
    """The expression with lookups, and its operands; None if there is nothing to look up."""
    if not any(e.dtype_of(i) in BYTES for i in range(len(e.operands) + len(e.steps))):
        return None
    first = len(e.operands) - len(views)
    known = [_Value(source=i if dtype in BYTES else None) for i, dtype in enumerate(e.operands)]
    for i, view in enumerate(views):
        constant = _scalar(view)
        if constant is not None:
            known[first + i] = _Value(constant)
    for step in e.steps:
        known.append(_after(e, step, known, len(known)))
    tables = _Tables(e, known, least, min(room, MAX_TABLES))
    results = tuple(tables.needed(r) for r in e.results)
    if not tables.contents:
        return None
    made = tables.finished(results)
    content = [np.frombuffer(c, np.uint8) for c in tables.contents]
    shape = tuple(box)
    more = tuple(_table(c, shape) for c in content)
    return made, (*views, *more)


def _scalar(view: View) -> Array | None:
    """The number that a view of a constant repeats."""
    tensor, offset = view.storage.tensor, view.offset
    axes = zip(view.shape, view.strides, strict=True)
    if tensor is None or not isinstance(offset, int) or view.storage.kind != "constant" or tensor.size > MAX_CONSTANT:
        return None
    if view.storage.stream is not None or not all(stride == 0 or size == 1 for size, stride in axes):
        return None
    return np.asarray(np.asarray(tensor.peek()).reshape(-1)[offset])


def _after(e: Expression, step: Any, known: Sequence[_Value], number: int) -> _Value:
    itself = _Value(source=number if step.dtype in BYTES else None)
    if not isinstance(step, Apply):
        return itself
    args = [known[a] for a in step.args]
    sources = {x.source for x in args if x.content is None or x.source is not None}
    source = next(iter(sources), None)
    if len(sources) != 1 or source is None or step.dtype not in TYPES:
        return itself
    every = _every_byte(e.dtype_of(source))
    given = [np.broadcast_to(every if x.content is None else x.content, (256,)) for x in args]
    work = sum(x.operations for x in args if x.source is not None) + operations(step.program)
    return _Value(run_numpy(step.program, *given), source, work)


def _every_byte(dtype: DType) -> Array:
    """All bytes, in the order of their bits."""
    return np.arange(256, dtype=np.uint8).view(dtype.numpy)


def _lookup(e: Emitter, x: Expr, table: Expr, *, to: DType) -> Expr:
    return Expr("lookup", (x, table), to)


class _Tables:
    """The expression in the making."""

    def __init__(self, e: Expression, known: Sequence[_Value], least: int, room: int) -> None:
        self.e, self.known, self.least, self.room = e, known, least, room
        self.contents: list[bytes] = []
        self.steps: dict[int, Apply | Reduce | Count] = {}
        self.lookups: dict[int, int] = {}

    def needed(self, number: int) -> int:
        """Note that a value is needed, and what it needs."""
        n = len(self.e.operands)
        todo = [number]
        while todo:
            v = todo.pop()
            if v < n or v in self.steps:
                continue
            step = self.steps[v] = self.e.steps[v - n]
            source = self._looked_up(v, step)
            if source is not None:
                todo.append(source)
            elif isinstance(step, Apply):
                todo += step.args
            elif isinstance(step, Reduce):
                todo.append(step.arg)
        return number

    def _looked_up(self, v: int, step: Apply | Reduce | Count) -> int | None:
        """The byte in whose place in a table a value is found; None if it is computed."""
        own = self.known[v]
        if step.dtype not in BYTES or own.content is None or own.operations < self.least:
            return None
        content = np.asarray(own.content, step.dtype.numpy).tobytes()
        if content not in self.contents:
            if len(self.contents) >= self.room:
                return None
            self.contents.append(content)
        self.lookups[v] = self.contents.index(content)
        return own.source

    def finished(self, results: Sequence[int]) -> Expression:
        n, count = len(self.e.operands), len(self.contents)
        number = {v: v for v in range(n)} | {v: n + count + i for i, v in enumerate(sorted(self.steps))}
        steps: list[Apply | Reduce | Count] = []
        for v in sorted(self.steps):
            step = self.steps[v]
            if v in self.lookups:
                source = self.known[v].source
                assert source is not None
                program = trace(_lookup, (True, True), to=step.dtype)
                steps.append(Apply(program, (number[source], n + self.lookups[v]), step.dtype))
            elif isinstance(step, Apply):
                steps.append(replace(step, args=tuple(number[a] for a in step.args)))
            elif isinstance(step, Reduce):
                steps.append(replace(step, arg=number[step.arg]))
            else:
                steps.append(step)
        return Expression((*self.e.operands, *[u8] * count), tuple(steps), tuple(number[r] for r in results))


def _table(content: Array, shape: tuple[Any, ...]) -> View:
    """A table as an operand: its first byte, repeated. Kernels read from there on."""
    storage = Storage("constant", u8, content.size, tensor=Tensor.of(content))
    return View(storage, shape, (0,) * len(shape))
