"""The allocator: huge pages where they fill, and nothing that a forked child shares."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from sardonyx.providers.cpu.memory import HUGE_PAGE, Pool, address, allocate

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
