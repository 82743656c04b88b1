"""What is made once from the attributes of a node, and kept for further runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sardonyx import forks

T = TypeVar("T")


class IdentityCache:
    """A cache keyed by the identity of attribute objects, which it keeps alive."""

    def __init__(self, size: int = 32) -> None:
        self.size, self.lock = size, forks.lock()
        self.made: dict[tuple[int, ...], tuple[object, Any]] = {}

    def get(self, make: Callable[..., T], *attrs: Any) -> T:
        key = tuple(map(id, (make, *attrs)))
        with self.lock:
            if key in self.made:
                return self.made[key][1]  # type: ignore[no-any-return]
        result = make(*attrs)
        with self.lock:
            if len(self.made) >= self.size:
                del self.made[next(iter(self.made))]
            self.made[key] = (attrs, result)
        return result
