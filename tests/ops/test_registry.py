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


LISTED = """
from sardonyx.ops import registry
for family, names in registry.FAMILIES.operators.items():
    for name in names:
        domain, _, op_type = name.rpartition(".")
        found = registry.find(domain, op_type)
        assert found is not None and registry.family_of(found) == family, (family, name)
listed = {name for names in registry.FAMILIES.operators.values() for name in names}
made = {f"{domain}.{name}" if domain else name for domain, name in registry._OPS}
assert made <= listed, f"FAMILIES in ops/registry.py does not list {made - listed}"
"""
ASKED_FOR = """
import sys
from sardonyx.ops import registry
from sardonyx.ops.pointwise import program_of
assert registry.find("", "Einsum") is not None and registry.find("", "NoOperator") is None
assert program_of("Celu", 1) is not None
found = {name for name in registry.FAMILIES.operators if f"sardonyx.ops.{name}" in sys.modules}
assert found == {"matmul", "pointwise", "activation"}, found
"""


def test_every_family_lists_the_operators_that_it_registers() -> None:
    subprocess.run([sys.executable, "-c", LISTED], check=True)


def test_families_are_imported_when_they_are_asked_for() -> None:
    subprocess.run([sys.executable, "-c", ASKED_FOR], check=True)
