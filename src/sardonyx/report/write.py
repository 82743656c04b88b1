"""``write_report``: collect the facts about a model, and write the page."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.report.records import Finding, Measurement, ReportData, Table

if TYPE_CHECKING:
    from sardonyx.session.options import SessionOptions

DIAGNOSED_RUNS = 10


def write_report(
    model: Any,
    path: str | os.PathLike[str],
    *,
    options: SessionOptions | None = None,
    providers: Sequence[Any] | None = None,
    feeds: Mapping[str, Any] | None = None,
    title: str | None = None,
    measurements: Sequence[Measurement] = (),
    verdict: str = "",
    tables: Sequence[Table] = (),
    findings: Sequence[Finding] = (),
    diagnose: bool = True,
) -> ReportData:
    """Write a self-contained HTML page about a model: a path, bytes or an ``onnx.ModelProto``.

    The model is compiled and run on ``feeds``, or on generated inputs. ``measurements`` (of benchmarks), ``tables`` (of
    accuracy or quantization) and ``findings`` are shown besides what is collected here; with ``diagnose``, so are the
    findings of ``profile.diagnose``. Returns the page's data.
    """
    from sardonyx.errors import Fail
    from sardonyx.report.page import page
    from sardonyx.writing import write_whole

    require_writable(path)
    data = collect_report(
        model,
        options=options,
        providers=providers,
        feeds=feeds,
        title=title,
        measurements=measurements,
        verdict=verdict,
        tables=tables,
        findings=findings,
        diagnose=diagnose,
    )
    try:
        write_whole(os.fspath(path), [page(data).encode()])
    except OSError as error:
        raise Fail(f"the report cannot be written ({error.strerror})", where=os.fspath(path)) from None
    return data


def collect_report(
    model: Any,
    *,
    options: SessionOptions | None = None,
    providers: Sequence[Any] | None = None,
    feeds: Mapping[str, Any] | None = None,
    title: str | None = None,
    measurements: Sequence[Measurement] = (),
    verdict: str = "",
    tables: Sequence[Table] = (),
    findings: Sequence[Finding] = (),
    diagnose: bool = True,
) -> ReportData:
    """The data of a report; the arguments are those of ``write_report``."""
    from sardonyx.report.collect.model import collect

    collected = collect(model, options, providers, feeds)
    if diagnose:
        findings = (*findings, *_diagnosed(collected.source, options, providers, collected.feeds))
    return ReportData(
        title=title or collected.name,
        created=time.strftime("%Y-%m-%d %H:%M"),
        summary=collected.summary,
        environment=collected.environment,
        graphs=collected.graphs,
        layers=collected.layers,
        run_s=collected.run_s,
        machine=collected.machine,
        memory=collected.memory,
        findings=tuple(findings),
        measurements=tuple(measurements),
        verdict=verdict,
        tables=tuple(tables),
        rewrites=collected.rewrites,
        declined=collected.declined,
    )


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise before minutes of work are lost."""
    from sardonyx.errors import Fail

    path = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise Fail("the report cannot be written: there is no such folder", where=folder)
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise Fail("the report cannot be written here", where=path)


def _diagnosed(
    source: Any, options: SessionOptions | None, providers: Sequence[Any] | None, feeds: Mapping[str, Any]
) -> list[Finding]:
    from sardonyx import profile
    from sardonyx.report.adapt import findings_of

    names = [p if isinstance(p, str) else p[0] for p in providers or ("CPUExecutionProvider",)]
    return findings_of(profile.diagnose(source, feeds, options=options, providers=names, runs=DIAGNOSED_RUNS))
