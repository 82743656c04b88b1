"""The one place where the order of passes is decided."""

from __future__ import annotations

from collections.abc import Collection

from sardonyx.ir.graph import Graph
from sardonyx.optimize import cleanup, fold, manager, noop, shapes
from sardonyx.optimize.report import Report

BASIC = (
    "InferShapes",
    "RemoveNoOps",
    "FoldConstants",
    "InferShapes",
    "RemoveNoOps",
    "ShareConstants",
    "ShareDuplicates",
    "RemoveDeadCode",
)

LEVELS: dict[str, tuple[str, ...]] = {
    "disabled": (),
    "basic": BASIC,
    "extended": BASIC,
    "layout": BASIC,
    "all": BASIC,
}

ONNXRUNTIME_NAMES: dict[str, str] = {
    "ConstantFolding": "FoldConstants",
    "ConstantSharing": "ShareConstants",
    "CommonSubexpressionElimination": "ShareDuplicates",
    "EliminateIdentity": "RemoveNoOps",
    "EliminateSlice": "RemoveNoOps",
    "EliminateDropout": "RemoveNoOps",
    "CastElimination": "RemoveNoOps",
    "ExpandElimination": "RemoveNoOps",
    "NoopElimination": "RemoveNoOps",
}
"""onnxruntime's optimizers and the pass that does their work here, so that ``disabled_optimizers`` keeps its meaning."""

_MODULES = (cleanup, fold, noop, shapes)


def optimize(graph: Graph, level: str, disabled: Collection[str] = ()) -> Report:
    """Rewrite a graph in place by the passes of a level, leaving out those named in ``disabled``."""
    off = {ONNXRUNTIME_NAMES.get(name, name) for name in disabled}
    return manager.run(graph, LEVELS[level], off)
