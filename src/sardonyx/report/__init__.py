"""One self-contained HTML page about a model: its graph before and after, where time and memory go, what to change.

    from sardonyx.report import write_report
    write_report("model.onnx", "report.html")

``collect/`` gathers the facts as records, ``layout/`` draws graphs, ``page.py`` writes the page with the scripts and
styles of ``assets/``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES: dict[str, str] = {
    **dict.fromkeys(("collect_report", "write_report"), "write"),
    **dict.fromkeys(("Finding", "Measurement", "ReportData", "Table"), "records"),
}

__all__ = ["Finding", "Measurement", "ReportData", "Table", "collect_report", "write_report"]

if TYPE_CHECKING:
    from sardonyx.report.records import Finding as Finding
    from sardonyx.report.records import Measurement as Measurement
    from sardonyx.report.records import ReportData as ReportData
    from sardonyx.report.records import Table as Table
    from sardonyx.report.write import collect_report as collect_report
    from sardonyx.report.write import write_report as write_report


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sardonyx.report' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"sardonyx.report.{_HOMES[name]}"), name)
    return value
