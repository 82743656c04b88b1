"""Two tables of rewrites, each a function that writes the new form with a Builder.

``upgrade``: a node written for an opset below ``to`` becomes the form that holds from ``to`` on. A node climbs all
the steps above the version its model imports, in order. ``expand``: an operator that is not ai.onnx's becomes a body
over ai.onnx.

A rewrite either returns the values that stand for the node's outputs (None for one that nobody reads), or returns None
after having edited the node in place, or found it right as it was. Whatever it makes, in subgraphs too, is in
``op.made`` and climbs on from there. A node that breaks its operator's rules raises InvalidGraph.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node

Result: TypeAlias = Any
"""A Value, a tuple of Values and Nones, or None: a Builder's results have no static type."""
Rewrite: TypeAlias = Callable[[Builder, Node], Result]

FAMILIES = ("pointwise", "shape", "reduce", "resize", "nn", "recurrent", "control", "ml")

UPGRADES: dict[tuple[str, str], list[tuple[int, Rewrite]]] = {}
EXPANSIONS: dict[tuple[str, str], Rewrite] = {}


def upgrade(*op_types: str, to: int, domain: str = "") -> Callable[[Rewrite], Rewrite]:
    def register(fn: Rewrite) -> Rewrite:
        for op_type in op_types:
            steps = UPGRADES.setdefault((domain, op_type), [])
            steps.append((to, fn))
            steps.sort(key=lambda step: step[0])
        return fn

    return register


def steps_of(domain: str, op_type: str) -> list[tuple[int, Rewrite]]:
    """The upgrades of an operator, lowest first."""
    _load_steps()
    return UPGRADES.get((domain, op_type), [])


@cache
def _load_steps() -> None:
    for family in FAMILIES:
        importlib.import_module(f"sardonyx.normalize.upgrades_{family}")


def expand(op_type: str, *, domain: str) -> Callable[[Rewrite], Rewrite]:
    def register(fn: Rewrite) -> Rewrite:
        assert (domain, op_type) not in EXPANSIONS, f"{domain}.{op_type} has a body already"
        EXPANSIONS[domain, op_type] = fn
        return fn

    return register
