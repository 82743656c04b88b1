"""The allocator: huge pages where they fill, and nothing that a forked child shares."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from sardonyx.providers.cpu.memory.allocator import HUGE_PAGE, Pool, address, allocate
from sardonyx.providers.cpu.memory.slabs import SLAB_NBYTES, Slabs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and forks")


def flags_at(place: int) -> list[str]:
    """What the kernel says of the mapping that an address is in."""
    is_here = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            is_here = start <= place < end
        elif is_here and first == "VmFlags:":
            return line.split()[1:]
    raise AssertionError("no mapping has this address")


@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 20, 40 << 20])
def test_large_blocks_may_have_huge_pages_and_are_private(nbytes: int) -> None:
    block = allocate(nbytes)
    flags = flags_at(address(block))
    assert "hg" in flags and "sh" not in flags


def test_an_output_that_does_not_fill_a_huge_page_has_none() -> None:
    small, large = (Pool().empty((n,), np.dtype(np.uint8), n) for n in (HUGE_PAGE // 4, HUGE_PAGE))
    assert ["hg" in flags_at(address(block)) for block in (small, large)] == [False, True]
    assert not any("sh" in flags_at(address(block)) for block in (small, large))


def test_a_forked_child_changes_only_its_own_copy() -> None:
    block = allocate(1 << 20)
    output = Pool().empty((1 << 20,), np.dtype(np.uint8), 1 << 20)
    for array in (block, output):
        array[:] = 1
    child = os.fork()
    if not child:
        block[:] = output[:] = 2
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert block.max() == output.max() == 1


def resident_nbytes(place: int) -> int:
    """Of the mapping that an address is in, what has pages."""
    is_here = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            is_here = start <= place < end
        elif is_here and first == "Rss:":
            return int(line.split()[1]) * 1024
    return 0


def test_returned_memory_is_reused_and_zeroed() -> None:
    slabs = Slabs()
    kept, first, behind = slabs.take(100_000), slabs.take(200_000), slabs.take(300_000)
    first[:] = behind[:] = 7
    at = address(first)
    view = first[5:].view(np.int8)
    del first
    assert address(slabs.take(150_000)) != at  # a view is left
    del view
    again = slabs.take(200_000)
    assert address(again) == at and not again.any()
    assert behind.min() == 7 and kept.max() == 0 and len(slabs.all) == 1


def test_adjacent_returned_blocks_are_merged() -> None:
    slabs = Slabs()
    blocks = [slabs.take(64_000) for _ in range(5)]
    at = address(blocks[1])
    for i in (1, 3, 2):
        blocks[i] = blocks[0]
    assert address(slabs.take(3 * 64_000)) == at


def test_an_unused_slab_is_released() -> None:
    slabs = Slabs()
    blocks = [slabs.take(SLAB_NBYTES // 3) for _ in range(5)]
    assert len(slabs.all) == 3
    place = address(blocks[-1])
    blocks[-1][:] = 1
    assert resident_nbytes(place) >= SLAB_NBYTES // 3
    del blocks[-1]
    assert len(slabs.all) == 2 and resident_nbytes(place) < SLAB_NBYTES // 3
    blocks.clear()
    assert not slabs.all


def test_huge_pages_of_returned_memory_are_released_at_once() -> None:
    slabs = Slabs()
    kept, large = slabs.take(100_000), slabs.take(5 * HUGE_PAGE)
    kept[:] = large[:] = 1
    place, before = address(kept), resident_nbytes(address(kept))
    del large
    assert before - resident_nbytes(place) >= 4 * HUGE_PAGE
    assert kept.min() == 1 and not slabs.take(5 * HUGE_PAGE).any()


def test_blocks_that_die_while_a_lender_is_at_work_are_put_away_later() -> None:
    slabs, pool = Slabs(), Pool()
    block, output = slabs.take(100_000), pool.empty((1 << 20,), np.dtype(np.uint8), 1 << 20)
    with slabs.returns.lock, pool.returns.lock:
        del block, output
        assert slabs.all[0].gaps[0][0] and pool.lent_nbytes
    slabs.returns.settle()
    pool.returns.settle()
    assert not slabs.all and not pool.lent_nbytes


def output(pool: Pool, nbytes: int) -> np.ndarray:
    return pool.empty((nbytes,), np.dtype(np.uint8), nbytes)


def test_the_output_pool_is_bounded_for_many_sizes() -> None:
    pool, largest = Pool(least_nbytes=1 << 20), 5 << 20
    rng = np.random.default_rng(0)
    for nbytes in [largest, *rng.integers(1 << 18, largest, 300)]:
        made = output(pool, int(nbytes))
        made[-1] = 1
        del made
        assert pool.free_nbytes <= 1.2 * largest and not pool.lent_nbytes


def test_outputs_that_come_again_are_the_same_memory() -> None:
    pool = Pool(least_nbytes=0)
    for sizes in ((3 << 20,), (1 << 20, 2 << 20, 2 << 20)):
        held = [output(pool, n) for n in sizes]
        places = {address(a) for a in held}
        for _ in range(5):
            held.clear()
            held = [output(pool, n) for n in sizes]
            assert {address(a) for a in held} == places
        held.clear()


def test_the_pool_keeps_no_more_than_callers_held_at_once() -> None:
    pool = Pool(most_nbytes=3 << 20, least_nbytes=0)
    held = [output(pool, 1 << 20) for _ in range(10)]
    assert pool.lent_nbytes == 10 << 20
    held.clear()
    assert pool.free_nbytes == 3 << 20
    pool.release()
    assert not pool.free_nbytes


def test_an_output_lives_as_long_as_any_view() -> None:
    pool = Pool(least_nbytes=0)
    made = output(pool, 1 << 20)
    made[:] = 5
    view = made.view(np.int32).reshape(2, -1)[1:, ::2]
    del made
    other = output(pool, 1 << 20)
    other[:] = 6
    assert view.view().min() == 0x05050505 == view.max() and pool.lent_nbytes == 2 << 20
    del view
    assert pool.lent_nbytes == 1 << 20


def test_a_child_leaves_its_parents_lenders_alone() -> None:
    block = allocate(1 << 20)
    child = os.fork()
    if not child:
        del block
        fresh = allocate(1 << 20)
        fresh[:] = 1
        del fresh
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
