"""``sardonyx bench``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli import FAILED, GOOD
from sardonyx.cli.bench_text import print_result
from sardonyx.cli.console import show
from sardonyx.cli.options import (
    AsJson,
    Dimensions,
    InputFiles,
    ModelPath,
    Precision,
    Providers,
    Seed,
    Shapes,
    Threads,
    dimensions,
    numbers,
    require_writable,
    shapes,
    words,
)
from sardonyx.cli.progress import progress
from sardonyx.errors import Fail, InvalidArgument, NoSuchFile

if TYPE_CHECKING:
    from sardonyx.bench import Contestant, Result

COMPARED, MEASURED, KEPT = "What is compared", "How it is measured", "Earlier results"

EXAMPLES = """
sardonyx bench model.onnx
sardonyx bench model.onnx --peer none --dim batch=8 --dim sequence=128
sardonyx bench model.onnx --batches 1,2,4,8 --callers 1,2,4
sardonyx bench model.onnx --thread-counts 1,2,4 --precisions highest,high,medium
sardonyx bench model.onnx --torch model.pt2 --dim batch=8
sardonyx bench model.onnx --history times.jsonl
sardonyx bench model.onnx --against times.jsonl
"""
NO_PEER = "none"


def command(
    model: ModelPath,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=COMPARED,
            metavar="ENGINE",
            help=f"Engine to compare with: onnxruntime, openvino; {NO_PEER} for none. Those installed by default.",
            show_default=False,
        ),
    ] = None,
    torch: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=COMPARED,
            metavar="FILE",
            help="The same model as torch.export.save wrote it, which torch runs; its arguments are the inputs.",
            show_default=False,
        ),
    ] = None,
    threads: Threads = 0,
    precision: Precision = "highest",
    provider: Providers = None,
    inputs: InputFiles = None,
    dim: Dimensions = None,
    shape: Shapes = None,
    batches: Annotated[
        str,
        typer.Option(rich_help_panel=COMPARED, metavar="1,4,...", help="Batch sizes to compare.", show_default=False),
    ] = "",
    callers: Annotated[
        str,
        typer.Option(
            rich_help_panel=COMPARED,
            metavar="1,2,...",
            help="Numbers of callers at once to compare.",
            show_default=False,
        ),
    ] = "",
    thread_counts: Annotated[
        str,
        typer.Option(
            rich_help_panel=COMPARED, metavar="1,2,...", help="Numbers of threads to compare.", show_default=False
        ),
    ] = "",
    precisions: Annotated[
        str,
        typer.Option(rich_help_panel=COMPARED, metavar="high,...", help="Precisions to compare.", show_default=False),
    ] = "",
    seconds: Annotated[
        float,
        typer.Option(rich_help_panel=MEASURED, metavar="S", min=0.01, help="Seconds of the rounds of each comparison."),
    ] = 10.0,
    rounds: Annotated[
        int, typer.Option(rich_help_panel=MEASURED, metavar="N", min=1, help="Rounds of each comparison.")
    ] = 24,
    starts: Annotated[
        int, typer.Option(rich_help_panel=MEASURED, metavar="N", min=1, help="Starts of each engine.")
    ] = 3,
    warm: Annotated[
        float, typer.Option(rich_help_panel=MEASURED, metavar="S", min=0.0, help="Most seconds to warm up.")
    ] = 5.0,
    history: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=KEPT,
            metavar="FILE",
            help="File to add the result to, one JSON object a line.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=KEPT,
            metavar="FILE",
            help="File with an earlier result; status 1 if this one is worse.",
            show_default=False,
        ),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            rich_help_panel=KEPT, metavar="PERCENT", min=0.0, help="Per cent by which a time must be worse to count."
        ),
    ] = 5.0,
    require_quiet: Annotated[
        bool,
        typer.Option(
            "--require-quiet", rich_help_panel=MEASURED, help="Measure nothing if the machine is busy (status 2)."
        ),
    ] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Time a model beside other engines, and say whether differences are real.

    Each engine runs in a process of its own; all take turns on the same cores. The figures are those of warm runs,
    times of single runs among them. A ratio has a 95 % interval over rounds and starts.

    A result that seems worse than --against is measured again, and counts if it is worse twice. With --history and
    --against the same file is good for both.
    """
    from sardonyx import bench
    from sardonyx.bench.history import earlier_result
    from sardonyx.bench.machine import cores, why_busy

    if history is not None:
        require_writable(history)
    earlier = None if against is None else earlier_result(against, model.name)
    if require_quiet and (reasons := why_busy(threads or len(cores()))):
        raise Fail("the machine is too busy to measure", got=" ".join(reasons))
    feeds = _feeds(model, inputs)

    def measure() -> Result:
        with progress() as step:
            return bench.benchmark(
                model,
                feeds,
                peers=_peers(peer, torch),
                threads=threads,
                precision=precision,
                providers=tuple(provider or ()),
                batches=numbers(batches, "--batches"),
                callers=numbers(callers, "--callers"),
                thread_counts=numbers(thread_counts, "--thread-counts"),
                precisions=words(precisions),
                dimensions=dimensions(dim),
                shapes=shapes(shape),
                rounds=rounds,
                seconds=seconds,
                starts=starts,
                warm_s=warm,
                seed=seed,
                step=step,
            )

    result = measure()
    worse = [] if earlier is None else bench.regressions(earlier, result, margin / 100)
    if worse and earlier is not None:
        again = {(r.name, r.figure) for r in bench.regressions(earlier, measure(), margin / 100)}
        worse = [regression for regression in worse if (regression.name, regression.figure) in again]
    if history is not None:
        bench.append_history(history, result)
    found: dict[str, Any] = result.to_json()
    if earlier is not None:
        found["regressions"] = [str(regression) for regression in worse]
    show(found, lambda out: print_result(out, result, earlier, worse), as_json)
    return FAILED if worse else GOOD


def _feeds(model: Path, inputs: Sequence[str] | None) -> dict[str, Any] | None:
    if not inputs:
        return None
    from sardonyx.bench.files import read_inputs
    from sardonyx.bench.inputs import declared_inputs

    declared = declared_inputs(model)
    found = read_inputs(declared, inputs)
    if missing := [each.name for each in declared if each.name not in found]:
        raise InvalidArgument("no file gives these inputs", got=missing)
    return found


def _peers(given: Sequence[str] | None, torch: Path | None) -> Sequence[str | Contestant] | None:
    from sardonyx.bench.api import installed_peers
    from sardonyx.bench.engines import Contestant

    if torch is None:
        return None if given is None else [name for name in given if name != NO_PEER]
    if not torch.is_file():
        raise NoSuchFile(f"there is no file {torch}")
    named = installed_peers() if given is None else [name for name in given if name != NO_PEER]
    return [*named, Contestant("torch", model=str(torch.absolute()))]
