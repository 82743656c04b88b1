"""Inputs of a model as commands take them: from files, and generated where no file gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sardonyx.cli.options import dimensions, shapes
from sardonyx.errors import RUN, SardonyxError

LISTED = 6
"""Names of inputs that are printed."""


def feeds_of(
    model: Path,
    files: Sequence[str] | None,
    dims: Sequence[str] | None,
    shape: Sequence[str] | None,
    seed: int = 0,
    usual: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The feeds, and what was assumed of those that were generated.

    ``usual`` are shapes by name, for inputs whose shapes the user does not give.
    """
    from sardonyx.bench.files import read_inputs
    from sardonyx.bench.inputs import declared_inputs, generate_inputs

    declared = declared_inputs(model)
    given = read_inputs(declared, files or ())
    if len(given) == len(declared):
        return given, ()
    known = {**(usual or {}), **{name: value.shape for name, value in given.items()}, **shapes(shape)}
    made = generate_inputs(model, dimensions=dimensions(dims), shapes=known, seed=seed)
    missing = [each.name for each in declared if each.name not in given]
    listed = missing if len(missing) <= LISTED else [*missing[: LISTED - 1], f"and {len(missing) - LISTED + 1} more"]
    said = f"Generated: {', '.join(listed)}, from the seed {seed}."
    return {**made.feeds, **given}, (said, *made.statements)


@contextmanager
def sizes_were_assumed(statements: Sequence[str]) -> Iterator[None]:
    """A model whose run fails may not like the sizes that were assumed."""
    try:
        yield
    except SardonyxError as error:
        if len(statements) > 1 and error.phase == RUN and error.hint is None:
            error.hint = "sizes were assumed: name them with --dim or --shape"
        raise
