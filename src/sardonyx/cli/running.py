"""From arguments to an exit status: the application is made from the table, errors become one line."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any, TextIO

import typer
from rich.markup import escape

import sardonyx
from sardonyx.cli import DEFECT, GOOD, INTERRUPTED, UNUSABLE, interrupts, table
from sardonyx.errors import REPORT, EngineError, SardonyxError

NAME = "sardonyx"
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
_shows_tracebacks = False


def run(argv: Sequence[str]) -> int:
    """Run a command line; returns the exit status and raises nothing."""
    global _shows_tracebacks
    _shows_tracebacks = False
    with interrupts.blocked():  # an exception in the middle of it would make a stream unusable
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal may lack the characters of tables
    with warnings.catch_warnings(), _logged():
        warnings.showwarning = _show_warning
        try:
            status = command_tree(argv[0] if argv else "").main(list(argv), NAME, standalone_mode=False)
            sys.stdout.flush()
        except SystemExit as ended:  # by typer: the reader of our output has left, as `head` does
            if not isinstance(ended.__context__, BrokenPipeError):
                raise
            return _failed(ended.__context__)
        except Exception as error:
            return _failed(error)
    if status == INTERRUPTED:  # typer returns it for a KeyboardInterrupt
        _tell("interrupted")
    return status if isinstance(status, int) else GOOD


class _Lines(logging.Handler):
    """Warnings of the library, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        _tell(f"warning: {record.getMessage()}")


@contextmanager
def _logged() -> Iterator[None]:
    handler, logger = _Lines(logging.WARNING), logging.getLogger(NAME)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def command_tree(first: str = "") -> Any:
    """The application as commands and parameters: of all commands, or of the first word's alone, which is quicker.

    The help shows no type of flags, which take no value.
    """
    tree: Any = typer.main.get_command(application([first] if first in table.COMMANDS else table.COMMANDS))
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        waiting += getattr(each, "commands", {}).values()
        asked = typer.Context(each, **SETTINGS)
        for param in (*each.params, each.get_help_option(asked)):
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
    return tree


def application(names: Iterable[str]) -> typer.Typer:
    """The commands of these names."""
    app = typer.Typer(
        rich_markup_mode="rich",
        no_args_is_help=True,
        context_settings=SETTINGS,
        pretty_exceptions_enable=False,
        epilog=_examples("sardonyx COMMAND --help"),
    )
    app.callback()(_general)
    for name in names:
        module: Any = import_module(f"sardonyx.cli.commands.{name}")
        style: dict[str, Any] = {
            "context_settings": SETTINGS,
            "rich_help_panel": table.COMMANDS[name],
            "epilog": _examples(module.EXAMPLES),
        }
        if isinstance(module.command, dict):
            group = typer.Typer(rich_markup_mode="rich", no_args_is_help=True)
            for subname, function in module.command.items():
                own = [line for line in module.EXAMPLES.splitlines() if line.startswith(f"{NAME} {name} {subname}")]
                epilog = _examples("\n".join(own))
                group.command(subname, help=_help(function), context_settings=SETTINGS, epilog=epilog)(function)
            app.add_typer(group, name=name, help=_help(module), **style)
        else:
            app.command(name, help=_help(module.command), **style)(module.command)
    return app


def _help(documented: Any) -> str:
    """The docstring, one line a paragraph, which typer wraps."""
    return "\n\n".join(escape(" ".join(part.split())) for part in cleandoc(documented.__doc__).split("\n\n"))


def _examples(lines: str) -> str:
    shown = [f"[cyan]  {escape(line.strip())}[/cyan]" for line in lines.strip().splitlines()]
    return "\n".join(["[bold]Examples[/bold]" if len(shown) > 1 else "[bold]Example[/bold]", *shown])


def _show_version(value: bool) -> None:
    if value:
        print(f"{NAME} {sardonyx.__version__}")
        raise typer.Exit


def _general(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
    shows_tracebacks: Annotated[
        bool, typer.Option("--traceback", help="Show where an error came from, for a bug report.")
    ] = False,
) -> None:
    """Run, measure, understand and improve ONNX models."""
    global _shows_tracebacks
    _shows_tracebacks = shows_tracebacks


def _failed(error: Exception) -> int:
    """Tell an error in one line; the exit status that it means."""
    if isinstance(error, BrokenPipeError):
        with suppress(OSError, AttributeError):  # nothing is left to be told when the streams are closed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]
        return GOOD
    if _shows_tracebacks:
        traceback.print_exception(error)
    if isinstance(error, typer.TyperException):
        if text := error.format_message():  # none: the help was printed
            context = getattr(error, "ctx", None)
            _tell(text if context is None else f"{text.removesuffix('.')}; see {context.command_path} --help")
        return UNUSABLE
    if isinstance(error, EngineError):
        _tell(str(error))
        return DEFECT
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        _tell(f"{where}{error.strerror or error}")
        return UNUSABLE
    if isinstance(error, (SardonyxError, MemoryError)):
        _tell(str(error) or "out of memory")
        return UNUSABLE
    _tell(f"{type(error).__name__}: {error}; {REPORT}; sardonyx --traceback ... shows where")
    return DEFECT


def _tell(text: str) -> None:
    print(f"{NAME}: {' '.join(text.split())}", file=sys.stderr)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    _tell(f"warning: {message}")
