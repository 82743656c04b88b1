"""Which intermediates lie as matrix products on tiles read them, chosen once for all groups.

What one such product makes and others alone read, as rows along k, goes from one to the other in tiles
(``tile_epilogue``): no step splits it, and it is not there as numbers. With three parts that is 6 bytes written and
read where it would be 4 written, 4 read, 6 written and 6 read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Contraction, Group, Storage, View
from sardonyx.providers.cpu.kernels import contraction
from sardonyx.providers.cpu.kernels.contraction import OnTiles
from sardonyx.providers.cpu.kernels.matrices import Matrix, of_known
from sardonyx.providers.cpu.kernels.split import PANEL, STEP, Tiled, step_elements
from sardonyx.providers.cpu.steps import Target
from sardonyx.providers.cpu.values import bf16, i32


def handed(groups: Sequence[Group], target: Target) -> dict[Storage, Tiled]:
    """The intermediates that matrix products on tiles hand on."""
    if not (target.isa.amx or target.isa.bf16_dot):
        return {}
    reads, writes = defaultdict[Storage, list[tuple[Group, View]]](list), defaultdict[Storage, list[Group]](list)
    on_tiles: dict[int, OnTiles] = {}
    for group in groups:
        for view in group.reads:
            reads[view.storage].append((group, view))
        for view in group.writes:
            writes[view.storage].append(group)
        found = contraction.on_tiles(group, target) if isinstance(group, Contraction) else None
        if found is not None:
            on_tiles[id(group)] = found
    made: dict[Storage, Tiled] = {}
    for storage, writers in writes.items():
        maker, users = on_tiles.get(id(writers[0])), reads[storage]
        if storage.kind != "temporary" or len(writers) > 1 or maker is None or not users:
            continue
        if all(_takes(on_tiles.get(id(group)), group, view, maker, storage) for group, view in users):
            made[storage] = _tiled(maker)
    return made


def _takes(reader: OnTiles | None, group: Group, view: View, maker: OnTiles, storage: Storage) -> bool:
    """Whether a product reads what another makes as rows along k, all of it, in as many parts."""
    if reader is None or not isinstance(group, Contraction) or view is not group.a:
        return False
    a, b = reader.problem, maker.problem
    (out,) = (y for y in b.outputs if y.storage is storage)
    is_same = (reader.parts, reader.few, a.m, a.k) == (maker.parts, maker.few, b.m, b.n)
    return is_same and all(_is_all(x, a.m, a.k) for x in (a.a, out))


def _is_all(x: Matrix, rows: Known, columns: Known) -> bool:
    """Whether a matrix is all of its storage, row by row."""
    is_whole = dims.mul(rows, columns) == x.storage.elements
    return is_whole and (x.offset, x.batch, x.column) == (0, (), 1) and (x.row == columns or rows == 1)


def _tiled(maker: OnTiles) -> Tiled:
    p, size = maker.problem, step_elements(maker.parts)
    panels, steps = (of_known(dims.ceildiv(n, unit)) for n, unit in ((p.m, PANEL), (p.n, STEP)))
    squares = of_known(dims.mul(panels, steps))
    tiles = Storage("temporary", bf16, of_known(dims.mul(squares, size)))
    return Tiled(tiles, (), Storage("temporary", i32, squares), (), steps)
