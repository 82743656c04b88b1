"""Lowering rules are found when nodes of their operators are lowered."""

from __future__ import annotations

import subprocess
import sys

LISTED = """
from sardonyx.lower import families, lowering
for family, names in families.FAMILIES.operators.items():
    families.FAMILIES.load_family(family)
    for name in names:
        domain, _, op_type = name.rpartition(".")
        assert lowering.RULES[domain, op_type].__module__ == f"sardonyx.lower.rules.{family}", (family, name)
listed = {name for names in families.FAMILIES.operators.values() for name in names}
made = {f"{domain}.{name}" if domain else name for domain, name in lowering.RULES if name}
assert made == listed, f"lower/families.py does not list {made - listed}, or lists without a rule {listed - made}"
"""
ASKED_FOR = """
import sys
import sardonyx
from tests.session import models
sardonyx.InferenceSession(models.model(models.MUL).SerializeToString())
assert "sardonyx.lower.lowering" in sys.modules
found = [name for name in ("recurrent", "conv", "tree_ensemble") if f"sardonyx.lower.rules.{name}" in sys.modules]
assert not found, found
"""
MODULES = """
import pkgutil, sys
from sardonyx.lower import families, lowering, rules
families.FAMILIES.load_all()
known = dict(lowering.RULES)
for module in pkgutil.iter_modules(rules.__path__):
    __import__(f"sardonyx.lower.rules.{module.name}")
assert lowering.RULES.keys() - known.keys() <= {("*", "")}, lowering.RULES.keys() - known.keys()
"""


def test_every_family_lists_the_operators_that_it_has_rules_for() -> None:
    for code in (LISTED, MODULES):
        subprocess.run([sys.executable, "-c", code], check=True)


def test_families_are_imported_when_they_are_asked_for() -> None:
    subprocess.run([sys.executable, "-c", ASKED_FOR], check=True)
