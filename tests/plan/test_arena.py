"""Placement: nothing that lives at once overlaps, and little is wasted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sardonyx.plan.arena import ALIGNMENT, Block, lower_bound, place
from sardonyx.plan.buckets import SMALLEST, bucket
from sardonyx.plan.liveness import Access, intervals, lifetimes

BLOCKS = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 20), st.integers(0, 6)).map(
        lambda t: Block(t[0], t[1], t[1] + t[2])
    ),
    max_size=40,
)  # fmt: skip


@given(BLOCKS)
def test_blocks_that_live_at_once_do_not_overlap(blocks: list[Block]) -> None:
    placed = place(blocks)
    for i, (a, at) in enumerate(zip(blocks, placed.offsets, strict=True)):
        assert at % ALIGNMENT == 0 and at + a.nbytes <= placed.nbytes
        for b, other in zip(blocks[:i], placed.offsets, strict=False):
            if a.first <= b.last and b.first <= a.last and a.nbytes and b.nbytes:
                assert at + a.nbytes <= other or other + b.nbytes <= at


@given(BLOCKS)
def test_no_placement_is_below_the_lower_bound(blocks: list[Block]) -> None:
    placed = place(blocks)
    assert lower_bound(blocks) <= placed.nbytes <= 2 * lower_bound(blocks) + ALIGNMENT


def test_a_chain_takes_two_blocks() -> None:
    chain = [Block(1000, i, i + 1) for i in range(50)]
    assert place(chain).nbytes == lower_bound(chain) == 2 * 1024


@given(st.integers(0, 1 << 40))
def test_a_bucket_is_at_most_a_quarter_above(size: int) -> None:
    below, top = bucket(size)
    assert below < size <= top <= max(size * 1.25, SMALLEST) + SMALLEST
    assert bucket(top) == bucket(below + 1) == (below, top) and top % SMALLEST == 0
    assert below < 0 or bucket(below)[1] == below


def test_buckets_are_four_to_a_doubling() -> None:
    assert len({bucket(n) for n in range(1 << 20, 1 << 21, 4096)}) <= 5


def test_barriers_stand_where_memory_crosses_steps() -> None:
    def access(reads: str, writes: str) -> Access:
        return Access(frozenset(reads), frozenset(writes))

    steps = [access("", "a"), access("", "b"), access("ab", "c"), access("x", "d"), access("c", "a"), access("d", "e")]
    numbers = intervals(steps)
    assert numbers == [0, 0, 1, 1, 2, 2]
    lives = lifetimes(steps, numbers)
    assert lives["a"] == (0, 2) and lives["c"] == (1, 2) and lives["e"] == (2, 2)
