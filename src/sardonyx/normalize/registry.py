"""Two tables of rewrites. Each rewrite is a function that writes the new form with a Builder.

``upgrade``: a node written for an opset below ``to`` is rewritten to the form valid from ``to`` on. A node passes
through all upgrades above its model's version, in order. ``expand``: an operator outside ai.onnx is replaced by a body
over ai.onnx.

A rewrite returns the values that replace the node's outputs (None for an unused output), or None if it edited the node
in place or left it unchanged. Nodes that it makes, also in subgraphs, are in ``op.made`` and are upgraded further. A
node that violates its operator's rules raises InvalidGraph.
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
