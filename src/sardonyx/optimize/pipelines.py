"""The one place where the order of passes is decided."""

from __future__ import annotations

from collections.abc import Collection

from sardonyx.ir.graph import Graph
from sardonyx.optimize import cleanup, fold, manager, noop, shapes
from sardonyx.optimize.fusions import norm
from sardonyx.optimize.report import Report

SHAPES = ("InferShapes", "RemoveNoOps", "FoldConstants", "InferShapes")
"""What is known decides what fits: shapes and constants first."""

SIMPLIFY = ("RemoveNoOps",)
"""Rewrites that leave fewer or cheaper nodes of the same vocabulary."""

CLEANUP = ("FoldConstants", "ShareConstants", "ShareDuplicates", "RemoveDeadCode")

RAISE = (
    "FuseLayerNorm",
    "FuseRMSNorm",
)
"""Fusions of written-out expressions into operators of ai.onnx."""

CONTRIB: tuple[str, ...] = ()
"""Fusions into onnxruntime's own operators, for models that are saved in its spelling."""

BASIC = (*SHAPES, *SIMPLIFY, *CLEANUP)
EXTENDED = (*BASIC, *RAISE, *CLEANUP)

LEVELS: dict[str, tuple[str, ...]] = {
    "disabled": (),
    "basic": BASIC,
    "extended": EXTENDED,
    "layout": EXTENDED,
    "all": EXTENDED,
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

_MODULES = (cleanup, fold, noop, norm, shapes)


def optimize(graph: Graph, level: str, disabled: Collection[str] = ()) -> Report:
    """Rewrite a graph in place by the passes of a level, leaving out those named in ``disabled``."""
    off = {ONNXRUNTIME_NAMES.get(name, name) for name in disabled}
    return manager.run(graph, LEVELS[level], off)
