"""Findings on the screen: the title, and below it why, the evidence and the change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.profile.findings import Finding


def print_findings(out: Console, problems: Sequence[Finding], opportunities: Sequence[Finding]) -> None:
    if not problems:
        out.print("No problem found.")
    for name, style, found in (("Problem", "bold yellow", problems), ("To gain", "bold cyan", opportunities)):
        for each in found:
            out.print(Text.assemble((f"{name}: ", style), (each.headline, "bold")))
            out.print(Padding(_details(each), (0, 0, 0, 2)))


def print_disturbances(out: Console, disturbances: Sequence[str]) -> None:
    if disturbances:
        out.print("The machine was busy, so that these figures mean little: " + " ".join(disturbances))


def _details(finding: Finding) -> Table:
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    made.add_row("why", finding.why)
    made.add_row("evidence", finding.evidence_text)
    if finding.nodes:
        made.add_row("nodes", finding.nodes_text)
    made.add_row("change", finding.fix.text)
    return made
