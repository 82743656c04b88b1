"""Chooses the intermediates that are stored packed for AMX matrix products, once for all groups.

The result of an AMX product, of an AMX attention or of a row-wise loop that products read as A is packed by its
producer (``gemm.packed_epilogue``): no step splits it. An unpacked copy is kept only for other readers. With three
terms, 6 bytes are then written and read for each number, instead of 4 written, 4 read, 6 written and 6 read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sardonyx.errors import NotImplemented
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Attention, Contraction, Group, Loop, Storage, View
from sardonyx.providers.cpu.kernels.common.matrices import Problem
from sardonyx.providers.cpu.kernels.gemm import amx as gemm_amx
from sardonyx.providers.cpu.kernels.gemm import blocks_amx, int8_slices
from sardonyx.providers.cpu.kernels.gemm.contraction import problem_of
from sardonyx.providers.cpu.kernels.loops import loop
from sardonyx.providers.cpu.kernels.split.bf16 import PANEL, STEP, PackedOperand, TiledOperand, step_elements
from sardonyx.providers.cpu.language.values import bf16, i32
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import SizeRange
from sardonyx.records import Record, replace


class _Made(Record):
    """A matrix that may be written in tiles."""

    rows: Known
    columns: Known
    terms: int | None
    """bf16 terms; None: as many as the reader multiplies."""
    few: SizeRange | None
    """Sizes for which another variant writes it, unpacked."""
    flags: Known
    flags_panel: Known


class _TileProduct(Record):
    """A contraction on tiles."""

    problem: Problem
    terms: int | None
    """In bf16 terms; None: in int8 slices."""
    few: SizeRange | None
    """Numbers of rows for which it is multiplied on vectors."""

    @staticmethod
    def of(group: Contraction, analysis: Analysis) -> _TileProduct | None:
        choice, p = analysis.choices[id(group)], problem_of(group, analysis)
        terms_of = {"gemm.amx": gemm_amx.terms, "gemm.blocks_amx": blocks_amx.terms, "gemm.int8_slices": None}
        if choice.name not in terms_of:
            return None
        count = terms_of[choice.name]
        terms = None if count is None else count(p, analysis)
        return _TileProduct(p, terms, None if choice.few is None else choice.few[0])


def packed_operands(groups: Sequence[Group], analysis: Analysis) -> dict[Storage, PackedOperand]:
    """The intermediates that their producers write in packed tiles."""
    if not (analysis.isa.amx or analysis.isa.bf16_dot):
        return {}
    reads, writes = defaultdict[Storage, list[tuple[Group, View]]](list), defaultdict[Storage, list[Group]](list)
    for group in groups:
        for view in group.reads:
            reads[view.storage].append((group, view))
        for view in group.writes:
            writes[view.storage].append(group)
    products = [g for g in groups if isinstance(g, Contraction)]
    on_tiles = {id(g): product for g in products if (product := _TileProduct.of(g, analysis)) is not None}
    packed_inputs = {number: product for number, product in on_tiles.items() if product.terms is not None}
    found: dict[Storage, PackedOperand] = {}
    for storage, writers in writes.items():
        if storage.kind not in ("temporary", "output") or len(writers) > 1 or storage in analysis.shared:
            continue
        lefts = {
            id(g): packed_inputs[id(g)] for g, view in reads[storage] if id(g) in packed_inputs and view is _left(g)
        }
        try:
            made = _made(writers[0], storage, on_tiles, analysis) if lefts else None
            one = None if made is None else _packed_operand(made, storage, list(lefts.values()), len(reads[storage]))
        except NotImplemented:  # sizes that are too long expressions
            continue
        if one is not None:
            found[storage] = one
    return found


def _left(group: Group) -> View | None:
    return group.a if isinstance(group, Contraction) else None


def _packed_operand(made: _Made, storage: Storage, lefts: Sequence[_TileProduct], reads: int) -> PackedOperand | None:
    """The packed form of a matrix in ``storage``; None if none of its readers can read it packed.

    ``lefts`` are the products that read it as their A, out of ``reads`` readers.
    """
    terms = made.terms or lefts[0].terms
    assert terms is not None
    panels, steps = (expressible(dims.ceildiv(n, unit)) for n, unit in ((made.rows, PANEL), (made.columns, STEP)))
    tiles = Storage("temporary", bf16, expressible(dims.product((panels, steps, step_elements(terms)))))
    tiled = TiledOperand(tiles, (), Storage("temporary", i32, made.flags), (), made.flags_panel)
    found = PackedOperand(tiled, made.rows, made.columns, terms, has_unpacked=False)
    takers = [reader for reader in lefts if found.serves(reader.problem, reader.terms)]
    if not takers or any(made.few not in (None, reader.few) for reader in takers):
        return None
    has_unpacked = len(takers) < reads or storage.kind == "output" or any(one.few != made.few for one in takers)
    return replace(found, has_unpacked=has_unpacked)


def _made(group: Group, storage: Storage, on_tiles: dict[int, _TileProduct], analysis: Analysis) -> _Made | None:
    if isinstance(group, Attention):
        return _context(group, analysis)
    if isinstance(group, Loop):
        return _rows(group, storage)
    maker = on_tiles.get(id(group))
    if maker is None:
        return None
    p = maker.problem
    (out,) = (y for y in p.outputs if y.storage is storage)
    steps = expressible(dims.ceildiv(p.n, STEP))
    micro_tiles = expressible(dims.mul(dims.ceildiv(p.m, PANEL), steps))
    terms = maker.terms or int8_slices.TERMS
    return _Made(p.m, p.n, terms, maker.few, micro_tiles, steps) if out.covers_storage(p.m, p.n) else None


def _rows(group: Loop, storage: Storage) -> _Made | None:
    """The matrix that a row-wise loop writes; None unless its rows are whole steps along k."""
    (out,) = (view for view in group.outputs if view.storage is storage)
    columns = group.extents[-1]
    is_even = isinstance(columns, int) and columns % STEP == 0
    if not is_even or len(out.shape) != len(group.extents) or not views.is_whole(out) or not loop.is_row_by_row(group):
        return None
    rows = expressible(dims.product(group.extents[:-1]))
    return _Made(rows, columns, None, None, rows, PANEL)


def _context(group: Attention, analysis: Analysis) -> _Made | None:
    """The matrix that an attention writes, the results of all heads side by side in a row.

    None unless the results of a head are whole steps along k.
    """
    batch, heads, rows, width = group.out.shape
    is_even = isinstance(width, int) and width % STEP == 0 and isinstance(heads, int)
    choice = analysis.choices[id(group)]
    if not is_even or choice.name != "attention.amx":
        return None
    if not views.is_whole(views.permuted(group.out, (0, 2, 1, 3))):
        return None
    count, columns = expressible(dims.mul(batch, rows)), expressible(dims.mul(heads, width))
    few = None if choice.few is None else choice.few[0]
    return _Made(count, columns, None, few, expressible(dims.mul(count, heads)), PANEL * int(heads))
