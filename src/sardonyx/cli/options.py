"""Arguments and options that several commands have, so that they are named and explained once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sardonyx.errors import InvalidArgument

ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="File of an ONNX model.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Threads = Annotated[int, typer.Option("--threads", min=0, help="Threads of a run; 0: as many as the cores allow.")]
Providers = Annotated[
    list[str] | None,
    typer.Option("--provider", help="Execution provider, the preferred one first; several times.", show_default=False),
]
Dimensions = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Size of a symbolic dimension; several times.", show_default=False),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="INPUT=1x3x224x224", help="Shape of an input; several times.", show_default=False),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of generated inputs.")]


def dimensions(given: Sequence[str] | None) -> dict[str, int]:
    """``batch=4`` and the like as sizes by name."""
    found = {}
    for text in given or ():
        name, _, size = text.rpartition("=")
        if not name or not size.isdecimal():
            raise InvalidArgument("--dim is not NAME=SIZE", got=text, hint="for example: --dim batch=4")
        found[name] = int(size)
    return found


def shapes(given: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """``x=1x3x224x224`` and the like as shapes by name; ``x=`` is a scalar."""
    found = {}
    for text in given or ():
        name, equals, sizes = text.rpartition("=")
        if not name or not equals or not re.fullmatch(r"(\d+([x,]\d+)*)?", sizes):
            raise InvalidArgument("--shape is not INPUT=SIZES", got=text, hint="for example: --shape x=1x3x224x224")
        found[name] = tuple(map(int, re.findall(r"\d+", sizes)))
    return found
