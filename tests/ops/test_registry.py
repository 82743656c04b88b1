"""Operators are found again in a process that has imported nothing but their own module."""

from __future__ import annotations

import subprocess
import sys

EACH = """
import sardonyx.ops.ml, sardonyx.ops.tokenizer  # as a module of another layer may have done, before the table is read
from sardonyx.ops import registry
print(*{(registry.family_of(op), op.domain, op.name) for op in registry.every()}, sep="\\n")
"""
ALONE = """
import sys
from sardonyx.ops import registry
found = [eval(line) for line in sys.stdin]
assert len(found) > 200
for family in {family for family, *_ in found}:
    for module in [m for m in sys.modules if m.startswith("sardonyx.ops.") and m != "sardonyx.ops.registry"]:
        del sys.modules[module]
    registry._OPS.clear()
    for other, domain, name in found:
        if other == family:
            registry.of_family(family, domain, name)
"""


def test_an_operator_is_in_the_table_once_its_family_is_imported() -> None:
    listed = subprocess.run([sys.executable, "-c", EACH], stdout=subprocess.PIPE, check=True).stdout
    subprocess.run([sys.executable, "-c", ALONE], input=listed, check=True)
