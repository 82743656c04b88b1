"""What commands print: text by rich at the terminal's width, or JSON.

Without a terminal, text is plain and as wide as ``COLUMNS`` says, 80 columns by default.
"""

from __future__ import annotations

import json
import math
import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


def console(stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, emoji=False, markup=False)


def show(result: Any, text: Callable[[Console], None], as_json: bool) -> None:
    """Print a result: as JSON (see ``plain``), or by ``text``, which prints to the console that it is given."""
    if as_json:
        print(json.dumps(plain(result), indent=1, allow_nan=False))
    else:
        text(console())


def plain(value: Any) -> Any:
    """A result as JSON's types: records become objects, numbers that are not finite null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (Sequence, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> Table:
    """A table without frames. A column whose name begins with ``>`` is aligned to the right; it is never wrapped, as
    is one whose name begins with ``=``.
    """
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for name in columns:
        kind = name[0] if name[:1] in (">", "=") else ""
        justify: Any = "right" if kind == ">" else "left"
        made.add_column(name.removeprefix(kind), justify=justify, overflow="fold", no_wrap=bool(kind))
    for row in rows:
        made.add_row(*map(str, row))
    return made


def placements(operators: Mapping[str, Mapping[str, int]], width: int) -> Table:
    """How many nodes of each operator every provider runs."""
    provider, nodes = "provider", ">nodes"
    left = width - max(map(len, (provider, *operators))) - len(nodes) - 3
    rows = []
    for name, counts in operators.items():
        ranked = sorted(counts.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{op} {count}" for op, count in ranked)
        rows.append((name, sum(counts.values()), hanging(listed, left, 0)))
    return table((provider, nodes, "operators"), rows)


def facts(pairs: Mapping[str, object]) -> Table:
    """Names and values, one pair a line."""
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs.items():
        made.add_row(name, str(value))
    return made


def hanging(text: str, width: int, indent: int) -> str:
    """Text whose long lines go on below, indented; a count stays with what it counts (``Conv 3``)."""
    joined = re.sub(r"(?<=\w) (\d+)(?=,|\)|$)", "\xa0\\1", text, flags=re.MULTILINE)
    wrapped = (
        textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        )
        if len(line) > width
        else [line]
        for line in joined.splitlines()
    )
    return "\n".join(line for lines in wrapped for line in lines).replace("\xa0", " ")


def shortened(text: str, most: int) -> str:
    """Text of at most so many characters: the middle of a longer one is left out."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[head + 1 - most :]}"


def nbytes_text(nbytes: float) -> str:
    """Bytes for people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"


def seconds_text(seconds: float) -> str:
    """Seconds for people, in three digits: 1.23 ms."""
    if not math.isfinite(seconds):
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size or unit == "us":
            break
    value = seconds / size
    return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f} {unit}"
