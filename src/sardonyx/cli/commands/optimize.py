"""A model rewritten by the optimizer, checked and saved."""

from __future__ import annotations

from enum import Enum
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli import FAILED, GOOD
from sardonyx.cli.console import hanging, show, table
from sardonyx.cli.options import AsJson, Dimensions, ModelPath, dimensions, require_writable
from sardonyx.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """
sardonyx optimize model.onnx -o optimized.onnx
sardonyx optimize model.onnx -o small.onnx --level basic --spelling portable
sardonyx optimize model.onnx -o optimized.onnx --check --explain
sardonyx optimize model.onnx --bisect
"""


class Level(str, Enum):
    disabled = "disabled"
    basic = "basic"
    extended = "extended"
    layout = "layout"
    all = "all"


class Spelling(str, Enum):
    contrib = "contrib"
    portable = "portable"


def command(
    model: ModelPath,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File of the optimized model.", show_default=False)
    ] = None,
    level: Annotated[Level, typer.Option(help="Which passes run.")] = Level.extended,
    spelling: Annotated[
        Spelling, typer.Option(help="contrib: with onnxruntime's own operators; portable: with ONNX's only.")
    ] = Spelling.contrib,
    disable: Annotated[
        list[str] | None,
        typer.Option("--disable", metavar="PASS", help="A pass to leave out; several times.", show_default=False),
    ] = None,
    dims: Dimensions = None,
    check: Annotated[
        bool, typer.Option("--check", help="Replay every rewrite on numbers; undo those that differ.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="List each rewrite, and each near miss with its reason.")
    ] = False,
    bisect: Annotated[bool, typer.Option("--bisect", help="Name the passes that change the results, if any.")] = False,
    as_json: AsJson = False,
) -> int:
    """Rewrite a model: fold constants, fuse operators, remove what does nothing; and save the result.

    With --bisect nothing is saved: passes are tried until those are found that change the results, and the status is 1
    if there are any. With --check the status is 1 if a rewrite was undone.
    """
    from sardonyx.optimize.api import bisect_model, optimize_model

    given: dict[str, Any] = {"spelling": spelling.value, "disabled": disable or (), "free_dims": dimensions(dims)}
    if bisect:
        culprit = bisect_model(model, level.value, **given)
        told = f"{culprit}" if culprit else "no pass changes the results"
        show({"culprit": culprit}, lambda out: out.print(told, soft_wrap=True), as_json)
        return FAILED if culprit else GOOD
    if output is None:
        raise InvalidArgument("no file is named for the optimized model", hint="give --output FILE")
    require_writable(output)
    result = optimize_model(model, level.value, check=check, **given)
    result.save(output)
    before, after = result.node_counts
    report = result.report
    facts: dict[str, Any] = {
        "output": output,
        "nodes": {"before": before, "after": after},
        "operators": result.statistics(),
        "passes": report.count(),
        "rewrites": report.rewrites,
        "declined": report.declined,
        "rolled_back": report.rolled_back,
        "unchecked": result.unchecked,
        "seconds": report.seconds,
    }

    def text(out: Console) -> None:
        out.print(f"{output}: {before} nodes became {after}", soft_wrap=True)
        if explain:
            out.print(hanging(str(result), out.width, 4), soft_wrap=True)
        elif counts := report.count():
            out.print(table(("pass", ">rewrites"), sorted(counts.items(), key=itemgetter(1), reverse=True)))
        if check:
            undone = "; ".join(map(str, report.rolled_back))
            out.print(f"undone: {undone}" if undone else "every rewrite gives the same results", soft_wrap=True)
            for what in result.unchecked:
                out.print(f"not checked: {what}", soft_wrap=True)

    show(facts, text, as_json)
    return FAILED if report.rolled_back else GOOD
