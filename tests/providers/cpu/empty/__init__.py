"""Models of which any axis may have no elements: every operator that is compiled, and every kernel variant."""

from __future__ import annotations

from tests.providers.cpu.empty.case import Case
from tests.providers.cpu.empty.convolutions import CONVOLUTIONS
from tests.providers.cpu.empty.images import IMAGES
from tests.providers.cpu.empty.indexed import INDEXED
from tests.providers.cpu.empty.moved import FLOW, MOVED, TRAINED
from tests.providers.cpu.empty.products import ATTENTION, PRODUCTS, RECURRENT
from tests.providers.cpu.empty.rows import ROWS

CASES: dict[str, Case] = {
    f"{family}: {name}": case
    for family, cases in {
        "conv": CONVOLUTIONS, "image": IMAGES, "product": PRODUCTS, "attention": ATTENTION, "recurrent": RECURRENT,
        "rows": ROWS, "index": INDEXED, "moved": MOVED, "flow": FLOW, "trained": TRAINED,
    }.items()
    for name, case in cases.items()
}  # fmt: skip

__all__ = ["CASES", "Case"]
