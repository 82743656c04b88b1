"""Which provider and which kernels run each node, and why."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli.console import placements, seconds_text, show, table
from sardonyx.cli.options import AsJson, ModelPath, Providers, Threads, usable_providers

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.session.explain import Explanation

EXAMPLES = """
sardonyx explain model.onnx
sardonyx explain model.onnx --stage cpu
sardonyx explain model.onnx --all --json
"""
REWRITES, DECLINED = 12, 8
"""How many are listed unless all are asked for."""


class Stage(str, Enum):
    placement = "placement"
    cpu = "cpu"


def command(
    model: ModelPath,
    stage: Annotated[
        Stage, typer.Option(help="placement: nodes and providers; cpu: the kernels in order.")
    ] = Stage.placement,
    all_: Annotated[bool, typer.Option("--all", help="List every node, rewrite and near miss.")] = False,
    providers: Providers = None,
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """Compile a model, then tell where each node runs and why, what the optimizer rewrote, and where it declined."""
    from sardonyx.session.options import SessionOptions
    from sardonyx.session.session import InferenceSession

    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.cache", "0")
    session = InferenceSession(model, options, providers=usable_providers(providers))
    if stage is Stage.cpu:
        steps = session.explain(stage="cpu")
        show(steps, lambda out: out.print(str(steps), soft_wrap=True), as_json)
        return
    found = session.explain()
    show(_facts(found), lambda out: _print(found, out, all_), as_json)


def _facts(found: Explanation) -> dict[str, Any]:
    report = found.report
    return {
        "placements": found.placements,
        "rewrites": report.rewrites,
        "declined": report.declined,
        "rolled_back": report.rolled_back,
        "seconds": found.phases,
    }


def _print(found: Explanation, out: Console, is_all: bool) -> None:
    if is_all:
        out.print(str(found), soft_wrap=True)
        return
    out.print(f"{len(found.placements)} nodes after optimization")
    out.print(placements(found.counts(), out.width))
    slow = [(p.node, p.op_type, why) for p in found.placements if (why := p.why_not_compiled) is not None]
    if slow:
        out.print()
        out.print(table(("on numpy", "operator", "why"), slow, title="Nodes that are not compiled"))
    if counts := found.report.count():
        out.print()
        ranked = sorted(counts.items(), key=lambda item: -item[1])
        out.print(table(("pass", ">rewrites"), ranked[:REWRITES], title="Rewrites"))
    if declined := [*found.report.declined, *found.report.rolled_back]:
        shown = [(d.name, d.node, d.reason) for d in declined[:DECLINED]]
        out.print()
        title = f"Near misses ({len(shown)} of {len(declined)}; --all lists them)"
        out.print(table(("pass", "node", "why it declined"), shown, title=title))
    out.print()
    seconds = [(name, seconds_text(s)) for name, s in found.phases.items() if "/" not in name]
    out.print(table(("phase", ">time"), seconds, title="Loading"))
