"""One self-contained HTML page about a model: its graph before and after, where time and memory go, what to change.

    from sardonyx.report import write_report
    write_report("model.onnx", "report.html")

``collect/`` gathers the facts as records, ``layout/`` draws graphs, ``page.py`` writes the page with the scripts and
styles of ``assets/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.lazy import attributes

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

__getattr__, __dir__ = attributes(__name__, _HOMES)
