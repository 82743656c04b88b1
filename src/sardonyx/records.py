"""Frozen dataclasses that compile no code of their own.

``dataclass(frozen=True)`` generates and compiles six functions for every class, which took a third of a warm start. A
``Record`` inherits them. ``dataclasses.fields``, ``replace`` and ``astuple`` accept it.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record:
    """Base of classes whose annotations are fields. With ``eq=False``, instances compare by identity."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __match_args__: ClassVar[tuple[str, ...]]
    _compared: ClassVar[attrgetter[Any]]
    _hashed: ClassVar[attrgetter[Any]]

    def __init_subclass__(cls, *, eq: bool = True) -> None:
        super().__init_subclass__()
        dataclass(init=False, repr=False, eq=False)(cls)
        fields = cls.__dataclass_fields__
        cls._compared = attrgetter(*fields)
        cls._hashed = attrgetter(*(name for name, f in fields.items() if f.hash is not False))
        if not eq:
            cls.__eq__, cls.__hash__ = object.__eq__, object.__hash__  # type: ignore[method-assign]

    def __init__(self, *args: Any, **named: Any) -> None:
        names = self.__match_args__
        self.__dict__.update(zip(names, args, strict=False))
        if named or len(args) != len(names):
            self._fill(len(args), named)

    def _fill(self, given: int, named: dict[str, Any]) -> None:
        """Set the fields that were not given by position."""
        for name in self.__match_args__[given:]:
            f = self.__dataclass_fields__[name]
            if name in named:
                value = named.pop(name)
            elif f.default is not MISSING:
                value = f.default
            elif f.default_factory is not MISSING:
                value = f.default_factory()
            else:
                raise TypeError(f"{type(self).__name__} lacks its field {name!r}")
            self.__dict__[name] = value
        if named or given > len(self.__match_args__):
            raise TypeError(f"{type(self).__name__} has the fields {self.__match_args__}; got more: {list(named)}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(self._compared(self) == self._compared(other))

    def __hash__(self) -> int:
        return hash(self._hashed(self))

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
        return f"{type(self).__qualname__}({told})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")
