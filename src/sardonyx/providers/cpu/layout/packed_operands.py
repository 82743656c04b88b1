"""Chooses the intermediates that are stored packed for AMX matrix products, once for all groups.

The result of an AMX product, of an AMX attention or of a row-wise loop that products read as A is packed by its
producer (``gemm.packed_epilogue``): no step splits it. An unpacked copy is kept only for other readers. With three
terms, 6 bytes are then written and read for each number, instead of 4 written, 4 read, 6 written and 6 read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sardonyx.errors import NotImplemented
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Attention, Contraction, Group, Loop, Storage, View
from sardonyx.providers.cpu.kernels.attention import amx
from sardonyx.providers.cpu.kernels.common.matrices import of_known
from sardonyx.providers.cpu.kernels.gemm import contraction, int8_slices
from sardonyx.providers.cpu.kernels.gemm.contraction import OnTiles
from sardonyx.providers.cpu.kernels.loops import loop
from sardonyx.providers.cpu.kernels.split.bf16 import PANEL, STEP, PackedOperand, TiledOperand, step_elements
from sardonyx.providers.cpu.language.values import bf16, i32
from sardonyx.providers.cpu.program.steps import Only, Target


@dataclass(frozen=True)
class _Made:
    """A matrix that may be written in tiles."""

    rows: Known
    columns: Known
    terms: int | None
    """None: as many as wanted."""
    few: Only | None
    """Sizes for which it is written as numbers only."""
    flags: Known
    flags_panel: Known


def packed_operands(groups: Sequence[Group], target: Target) -> dict[Storage, PackedOperand]:
    """The intermediates that their producers write in packed tiles."""
    if not (target.isa.amx or target.isa.bf16_dot):
        return {}
    reads, writes = defaultdict[Storage, list[tuple[Group, View]]](list), defaultdict[Storage, list[Group]](list)
    for group in groups:
        for view in group.reads:
            reads[view.storage].append((group, view))
        for view in group.writes:
            writes[view.storage].append(group)
    products = [g for g in groups if isinstance(g, Contraction)]
    on_tiles = {id(g): way for g in products if (way := contraction.on_tiles(g, target)) is not None}
    packed_inputs = {number: way for number, way in on_tiles.items() if way.terms is not None}
    found: dict[Storage, PackedOperand] = {}
    for storage, writers in writes.items():
        if storage.kind not in ("temporary", "output") or len(writers) > 1:
            continue
        lefts = {
            id(g): packed_inputs[id(g)] for g, view in reads[storage] if id(g) in packed_inputs and view is _left(g)
        }
        try:
            made = _made(writers[0], storage, on_tiles, target) if lefts else None
            one = None if made is None else _packed_operand(made, storage, list(lefts.values()), len(reads[storage]))
        except NotImplemented:  # sizes that are too long expressions
            continue
        if one is not None:
            found[storage] = one
    return found


def _left(group: Group) -> View | None:
    return group.a if isinstance(group, Contraction) else None


def _packed_operand(made: _Made, storage: Storage, lefts: Sequence[OnTiles], reads: int) -> PackedOperand | None:
    """``lefts`` are the products that read it as their left operand, out of all that read it."""
    terms = made.terms or lefts[0].terms
    assert terms is not None
    panels, steps = (of_known(dims.ceildiv(n, unit)) for n, unit in ((made.rows, PANEL), (made.columns, STEP)))
    tiles = Storage("temporary", bf16, of_known(dims.product((panels, steps, step_elements(terms)))))
    tiled = TiledOperand(tiles, (), Storage("temporary", i32, made.flags), (), made.flags_panel)
    found = PackedOperand(tiled, made.rows, made.columns, terms, has_unpacked=False)
    takers = [reader for reader in lefts if found.serves(reader.problem, reader.terms)]
    if not takers or any(made.few not in (None, reader.few) for reader in takers):
        return None
    has_unpacked = len(takers) < reads or storage.kind == "output" or any(one.few != made.few for one in takers)
    return replace(found, has_unpacked=has_unpacked)


def _made(group: Group, storage: Storage, on_tiles: dict[int, OnTiles], target: Target) -> _Made | None:
    if isinstance(group, Attention):
        return _context(group, target)
    if isinstance(group, Loop):
        return _rows(group, storage)
    maker = on_tiles.get(id(group))
    if maker is None:
        return None
    p = maker.problem
    (out,) = (y for y in p.outputs if y.storage is storage)
    steps = of_known(dims.ceildiv(p.n, STEP))
    micro_tiles = of_known(dims.mul(dims.ceildiv(p.m, PANEL), steps))
    terms = maker.terms or int8_slices.TERMS
    return _Made(p.m, p.n, terms, maker.few, micro_tiles, steps) if out.covers_storage(p.m, p.n) else None


def _rows(group: Loop, storage: Storage) -> _Made | None:
    """Rows of whole steps."""
    (out,) = (view for view in group.outputs if view.storage is storage)
    columns = group.extents[-1]
    is_even = isinstance(columns, int) and columns % STEP == 0
    if not is_even or len(out.shape) != len(group.extents) or not views.is_whole(out) or not loop.is_row_by_row(group):
        return None
    rows = of_known(dims.product(group.extents[:-1]))
    return _Made(rows, columns, None, None, rows, PANEL)


def _context(group: Attention, target: Target) -> _Made | None:
    """What heads of whole steps see, side by side in a row."""
    batch, heads, rows, width = group.out.shape
    is_even = isinstance(width, int) and width % STEP == 0 and isinstance(heads, int)
    if not is_even or amx.terms_for((group.q, group.k, group.v, group.out), target) is None:
        return None
    if not views.is_whole(views.permuted(group.out, (0, 2, 1, 3))):
        return None
    count, columns = of_known(dims.mul(batch, rows)), of_known(dims.mul(heads, width))
    return _Made(count, columns, None, None, of_known(dims.mul(count, heads)), PANEL * int(heads))
