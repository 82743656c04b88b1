"""The table of generators: by operator, functions that draft a node of it."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.drafts import Draft, Maker
from fuzz.schemas import Key

Generator = Callable[[Maker], Draft]
GENERATORS: dict[Key, Generator] = {}


def generator(*names: str, domain: str = "") -> Callable[[Generator], Generator]:
    """Register what drafts nodes of these operators."""

    def register(make: Generator) -> Generator:
        for name in names:
            assert (domain, name) not in GENERATORS, name
            GENERATORS[domain, name] = make
        return make

    return register
