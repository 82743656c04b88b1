"""Operators one by one: in turn, each of its versions, from generators and from the cases of ONNX's suite."""

from __future__ import annotations

import functools
from typing import Any

from fuzz import hints_data, hints_nn, hints_values, schemas, templates  # noqa: F401
from fuzz.cases import Case
from fuzz.drafts import Draft, Maker, changed, dress
from fuzz.draws import Draw
from fuzz.schemas import Key
from fuzz.table import GENERATORS

WITHOUT = {("ai.onnx.preview.training", "Gradient")}
"""Operators that are no node of a graph that runs; ``graphs`` makes them."""


def keys() -> tuple[Key, ...]:
    """The operators in the order in which they are fuzzed."""
    return tuple(k for k in schemas.every() if k not in WITHOUT)


def missing() -> list[Key]:
    """Operators that nothing generates."""
    return [k for k in keys() if k not in GENERATORS and k not in templates.every()]


@functools.cache
def _texts(key: Key) -> dict[str, list[Any]]:
    """What the suite's cases have for attributes that are text."""
    found: dict[str, list[Any]] = {}
    for draft in templates.every().get(key, ()):
        for name, value in draft.attributes.items():
            if isinstance(value, str) and value not in found.setdefault(name, []):
                found[name].append(value)
    return found


def draft_of(draw: Draw, key: Key) -> Draft:
    """A node of the operator, altered in up to three ways."""
    known = templates.every().get(key, [])
    make = GENERATORS.get(key)
    if make is not None and (not known or draw.maybe(0.7)):
        versions = schemas.versions(key)
        newest = [v for v in versions if not schemas.schema(key, v).deprecated]
        version = draw.one(versions) if draw.maybe(0.3) or not newest else newest[-1]
        draft = make(Maker(draw, key, version))
        count = draw.one((0, 0, 0, 1, 2))
    else:
        draft = draw.one(known)
        count = draw.one((0, 1, 1, 2, 3))
    for _ in range(count):
        draft = changed(draw, draft, _texts(key))
    return draft


def case(seed: int, index: int, mutation: int | None = None) -> Case:
    """The case of an index; its mutations alter the draft once more and dress it anew."""
    key = keys()[index % len(keys())]
    name = f"operators/{seed}/{index}"
    draw = Draw(name)
    draft = draft_of(draw, key)
    if mutation is not None:
        name = f"{name}+{mutation}"
        draw = Draw(name)
        draft = changed(draw, draft, _texts(key))
    return dress(draw, draft, name)
