"""Passes applied to a small model, whose answers they must not change."""

from __future__ import annotations

from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Model
from sardonyx.optimize import feeds
from sardonyx.optimize.check import answers
from sardonyx.optimize.report import Report
from tests.comparing import Tolerance, assert_same
from tests.optimize.graphs import apply

BEFORE = ("InferShapes", "FoldConstants", "InferShapes", "ShareConstants", "ShareDuplicates", "RemoveDeadCode")
"""What runs before fusions in the pipelines, and they rely on."""


def apply_and_compare(model: Model, *passes: str, rtol: float = 1e-4, atol: float = 1e-6) -> Report:
    """Rewrite a model by passes, and fail where it answers otherwise than before."""
    given = feeds.generate(model.graph, seed=3)
    expected = answers(clone(model), given)
    report = apply(model, *BEFORE, *passes, "RemoveDeadCode")
    for want, got in zip(expected, answers(model, given), strict=True):
        assert_same(got, want, Tolerance(relative=rtol, absolute=atol))
    return report
