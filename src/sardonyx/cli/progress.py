"""Progress of long work on stderr: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sardonyx.cli.console import console

Step = Callable[[str], None]
"""Called before each step with what it is."""


@contextmanager
def progress(total: int | None = None) -> Iterator[Step]:
    """A bar for work of so many steps (None: unknown), which vanishes at the end."""
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=total)
        begun = False

        def step(what: str) -> None:
            nonlocal begun
            bar.update(task, description=what, advance=int(begun))
            begun = True

        yield step
