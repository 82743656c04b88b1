"""List, empty or fill the cache of compiled models and kernels."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli import FAILED, GOOD
from sardonyx.cli.console import nbytes_text, show, table
from sardonyx.cli.options import AsJson, Threads
from sardonyx.cli.progress import progress
from sardonyx.errors import NoSuchFile, NotFound

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """
sardonyx cache list
sardonyx cache warm model.onnx other.onnx --threads 4
sardonyx cache clear model.onnx
sardonyx cache clear
"""
LISTED = 20


def list_(
    all_: Annotated[bool, typer.Option("--all", help=f"List more than the last {LISTED} models.")] = False,
    as_json: AsJson = False,
) -> None:
    """What the cache holds, the last used models first."""
    from sardonyx import cache

    place = _folder()
    items = cache.items()
    models = [item for item in items if item.kind not in (cache.KERNEL, cache.RATES)]
    kernels = [item.nbytes for item in items if item.kind == cache.KERNEL]
    total = sum(item.nbytes for item in items)
    result = {
        "folder": place,
        "nbytes": total,
        "kernels": len(kernels),
        "kernels_nbytes": sum(kernels),
        "models": [{"kind": m.kind, "path": m.path, "nbytes": m.nbytes, "used_at": m.used_at} for m in models],
    }

    def text(out: Console) -> None:
        out.print(f"{place}: {len(items)} files, {nbytes_text(total)}", soft_wrap=True)
        rows = [
            (
                time.strftime("%Y-%m-%d %H:%M", time.localtime(m.used_at)),
                nbytes_text(m.nbytes),
                m.kind,
                m.path or "given as bytes",
            )
            for m in (models if all_ else models[:LISTED])
        ]
        if rows:
            out.print(table(("used", ">size", "kind", "model"), rows))
        if len(rows) < len(models):
            out.print(f"and {len(models) - len(rows)} more; --all lists them")
        out.print(f"{len(kernels)} kernels, {nbytes_text(sum(kernels))}")

    show(result, text, as_json)


def clear(
    model: Annotated[
        Path | None, typer.Argument(help="Only the entries of this model.", metavar="[MODEL]", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete everything, or the entries of one model. Sessions that run are not affected."""
    from sardonyx import cache

    _folder()
    nbytes = cache.clear(model)
    if model is not None and not nbytes and not model.exists():
        raise NoSuchFile(f"there is no file {model}, and the cache has nothing of it")
    show({"nbytes": nbytes}, lambda out: out.print(f"{nbytes_text(nbytes)} deleted"), as_json)


def warm(
    models: Annotated[list[Path], typer.Argument(help="Files of models.", metavar="MODEL...", show_default=False)],
    threads: Threads = 0,
    as_json: AsJson = False,
) -> int:
    """Compile models, so that their first start is quick.

    The status is 1 if a model cannot be cached. Entries depend on the number of threads: give the one that your program
    sets.
    """
    from sardonyx import cache
    from sardonyx.session.options import SessionOptions

    _folder()
    options = SessionOptions()
    options.intra_op_num_threads = threads
    found = {}
    with progress(len(models)) as step:
        for path in models:
            step(f"compiling {path.name}")
            found[str(path)] = cache.warm(path, options)

    def text(out: Console) -> None:
        for path, is_cached in found.items():
            out.print(f"{path}: {'cached' if is_cached else 'cannot be cached'}", soft_wrap=True)

    show(found, text, as_json)
    return GOOD if all(found.values()) else FAILED


def _folder() -> str:
    """The cache folder, which is made where it is missing."""
    from sardonyx import folders

    found = folders.cache_folder()
    if found is None:
        raise NotFound(folders.why_off())
    return found.path


command = {"list": list_, "clear": clear, "warm": warm}
