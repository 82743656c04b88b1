"""What all commands have in common: help, errors, exit statuses."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from sardonyx import cli
from sardonyx.cli import table
from sardonyx.errors import EngineError, InvalidArgument
from tests.cli.commands import Commands, command_line, run_process
from tests.test_house import HEAVY, ROOT

SUBCOMMANDS = [
    (name, *sub)
    for name in table.COMMANDS
    for module in [import_module(f"sardonyx.cli.commands.{name}")]
    for sub in ([(s,) for s in module.command] if isinstance(module.command, dict) else [()])
]


@pytest.mark.parametrize("columns", [80, 120])
def test_help_lists_all_commands(commands: Commands, columns: int) -> None:
    done = commands("--help", columns=columns)
    assert done.status == 0
    assert all(f" {name} " in done.out for name in table.COMMANDS)
    assert max(map(len, done.out.splitlines())) <= columns


@pytest.mark.parametrize("command", SUBCOMMANDS, ids=" ".join)
def test_each_command_has_help(commands: Commands, command: tuple[str, ...]) -> None:
    done = commands(*command, "--help")
    assert done.status == 0 and f"Usage: sardonyx {' '.join(command)}" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize("name", table.COMMANDS)
def test_each_command_shows_examples(commands: Commands, name: str) -> None:
    out = commands(name, "--help", columns=200).out
    examples = import_module(f"sardonyx.cli.commands.{name}").EXAMPLES.strip().splitlines()
    assert examples and all(line in out and line.startswith(f"sardonyx {name}") for line in examples)


@pytest.mark.parametrize("command", SUBCOMMANDS, ids=" ".join)
def test_each_command_can_print_json(commands: Commands, command: tuple[str, ...]) -> None:
    assert "--json" in commands(*command, "--help").out


def test_help_imports_no_engine() -> None:
    heavy = (*(name for name in HEAVY if name not in ("rich", "typer")), "numpy", "sardonyx.session")
    code = (
        "import sys; from sardonyx.cli import main; main(['--help']);"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_process_of_its_own() -> None:
    assert run_process("--version").out.startswith("sardonyx ")
    done = run_process("cache", "lst")
    assert done.status == cli.UNUSABLE and "'list'" in done.error


@pytest.mark.parametrize("args", [["nothing"], ["cache", "list", "--unknown"], ["cache", "warm"], ["--jsn"]])
def test_bad_usage(commands: Commands, args: list[str]) -> None:
    done = commands(*args)
    assert done.status == cli.UNUSABLE and done.out == "" and done.error


def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch, commands: Commands) -> None:
    monkeypatch.setattr(cli, "REQUIRED", ("typer", "no_such_package"))
    done = commands("--version")
    assert done.status == cli.UNUSABLE
    assert done.error == "sardonyx: no_such_package not installed; pip install 'sardonyx[cli]'"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InvalidArgument("no", got=1), cli.UNUSABLE, "sardonyx: no; got: 1"),
        (PermissionError(13, "Permission denied", "out.npz"), cli.UNUSABLE, "sardonyx: out.npz: Permission denied"),
        (EngineError("broken\ninvariant"), cli.DEFECT, "sardonyx: broken invariant"),
        (MemoryError(), cli.UNUSABLE, "sardonyx: out of memory"),
        (KeyboardInterrupt(), cli.INTERRUPTED, "sardonyx: interrupted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_errors_become_one_line(
    monkeypatch: pytest.MonkeyPatch, commands: Commands, error: BaseException, status: int, line: str
) -> None:
    def fails() -> None:
        """Fails."""
        raise error

    module = import_module("sardonyx.cli.commands.cache")
    monkeypatch.setattr(module, "command", fails)
    done = commands("cache")
    assert (done.status, done.error, done.out) == (status, line, "")


def test_defects_ask_for_a_report_and_show_where_on_request(
    monkeypatch: pytest.MonkeyPatch, commands: Commands
) -> None:
    def fails() -> None:
        """Fails."""
        raise KeyError("lost")

    monkeypatch.setattr(import_module("sardonyx.cli.commands.cache"), "command", fails)
    done = commands("cache")
    assert done.status == cli.DEFECT and "KeyError: 'lost'" in done.error and "please report" in done.error
    assert "Traceback" in commands("--traceback", "cache").err
    assert "Traceback" not in commands("cache").err


@pytest.mark.parametrize("name", [" ".join(command) for command in SUBCOMMANDS])
def test_each_help_has_an_example(commands: Commands, name: str) -> None:
    out = commands(*name.split(), "--help", columns=160).out
    assert f"sardonyx {name}" in out.partition("Example")[2] and "<bool>" not in out


def test_warnings_of_the_library_are_lines_too(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def warns() -> None:
        """Warns."""
        logging.getLogger("sardonyx.quantization").warning("two\nlines")
        logging.getLogger("sardonyx.quantization").info("no more")

    monkeypatch.setattr(import_module("sardonyx.cli.commands.cache"), "command", warns)
    assert commands("cache").error == "sardonyx: warning: two lines"


@pytest.mark.parametrize("name", table.COMMANDS)
def test_each_command_has_a_page(name: str) -> None:
    folder = ROOT / "docs" / "commands"
    page = (folder / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# sardonyx {name}\n") and f"\n$ sardonyx {name}" in page
    assert f"]({name}.md)" in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("more", [["--graph"], ["--json"]])
def test_a_reader_that_leaves_is_no_error(digits: Path, more: list[str]) -> None:
    """As `head` does."""
    command = command_line("inspect", digits, *more)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
