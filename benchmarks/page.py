"""Pages of benchmarks/results: what a program found, under a head that says where, with what, how and when."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path

import sardonyx
from sardonyx.bench.machine import machine

RESULTS = Path(__file__).parent / "results"


def head(title: str, packages: tuple[str, ...] = (), note: str = "") -> str:
    """Title, machine (its note: threads, say), versions, the command at hand, and the day."""
    about = machine()
    versions = [f"python {platform.python_version()}", f"sardonyx {sardonyx.__version__}", *map(version, packages)]
    lines = [
        f"# {title}",
        "",
        f"- Machine: {about['cpu']}, {about['cores']} cores, {about['system']}{note and ', ' + note}",
        f"- Versions: {', '.join(versions)}",
        f"- Command: `{command()}`",
        f"- Date: {datetime.now(timezone.utc):%Y-%m-%d}",
    ]
    return "\n".join(lines) + "\n"


def version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package).split('-')[0]}"
    except importlib.metadata.PackageNotFoundError:
        return f"no {package}"


def command() -> str:
    """What was called, with the names of files and folders alone: paths belong to a machine."""
    root = Path(__file__).resolve().parent
    program = Path(sys.argv[0]).resolve()
    parts = program.relative_to(root.parent).with_suffix("").parts if root in program.parents else (program.stem,)
    module = ".".join(part for part in parts if part != "__main__")
    words = (Path(word).name if "/" in word else word for word in sys.argv[1:])
    return shlex.join(("python", "-m", module, *words))


def write(path: Path | None, text: str) -> None:
    """The page, whole or not at all, where one is wanted."""
    if path is not None:
        part = path.with_name(path.name + ".part")
        part.write_text(text.rstrip() + "\n", encoding="utf-8")
        part.replace(path)
