"""The optimized model in the spelling in which it is saved."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Model
from sardonyx.optimize import manager, pipelines
from sardonyx.optimize.api import finished
from sardonyx.optimize.report import Report


def spell(
    model: Model,
    spelling: str,
    written: Mapping[str, int],
    *,
    level: str,
    report: Report,
    disabled: Collection[str] = (),
) -> Model:
    """A copy of an optimized model, at the lowest opsets from ``written`` on, with a record of its rewrites.

    ``portable`` uses only ONNX's operators, ``contrib`` also those that onnxruntime has kernels for.
    """
    copy = clone(model)
    if level not in ("disabled", "basic"):
        spelled = manager.run(copy.graph, pipelines.SPELLINGS[spelling], pipelines.our_names(disabled))
        report = Report([*report.rewrites, *spelled.rewrites])
    return finished(copy, written, level=level, spelling=spelling, report=report)
