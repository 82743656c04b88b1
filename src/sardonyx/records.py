"""Frozen dataclasses that compile no code of their own.

``dataclass(frozen=True)`` generates and compiles six functions for every class, which took a third of a warm start. A
``Record`` inherits them. ``dataclasses.fields``, ``replace`` and ``astuple`` accept it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


def _attributes(names: Iterable[str]) -> attrgetter[Any]:
    """Returns these attributes of an object; those of a class without fields are equal."""
    return attrgetter(*(tuple(names) or ("__class__",)))


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record:
    """Base of classes whose annotations are fields. With ``eq=False``, instances compare by identity."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __match_args__: ClassVar[tuple[str, ...]]
    _defaults: ClassVar[dict[str, Any]]
    _factories: ClassVar[dict[str, Callable[[], Any]]]
    _compared: ClassVar[attrgetter[Any]]
    _hashed: ClassVar[attrgetter[Any]]
    _shown: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, *, eq: bool = True) -> None:
        super().__init_subclass__()
        if cls.__doc__ is None:
            cls.__doc__ = ""  # else dataclass writes a signature, which takes longer than all the rest
        dataclass(init=False, repr=False, eq=False)(cls)
        fields = cls.__dataclass_fields__
        cls._defaults = {name: f.default for name, f in fields.items() if f.default is not MISSING}
        cls._factories = {name: f.default_factory for name, f in fields.items() if f.default_factory is not MISSING}
        cls._compared = _attributes(name for name, f in fields.items() if f.compare)
        cls._hashed = _attributes(name for name, f in fields.items() if (f.compare if f.hash is None else f.hash))
        cls._shown = tuple(name for name, f in fields.items() if f.repr)
        if not eq:
            cls.__eq__, cls.__hash__ = object.__eq__, object.__hash__  # type: ignore[method-assign]

    def __init__(self, *args: Any, **named: Any) -> None:
        if named or len(args) != len(self.__dataclass_fields__):
            self._complete(args, named)
        else:
            self.__dict__.update(zip(self.__match_args__, args, strict=True))

    def _complete(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Set the fields from arguments and defaults."""
        names = self.__match_args__
        given = dict(zip(names, args, strict=False))
        values = {**self._defaults, **given, **named}
        for name, make in self._factories.items():
            if name not in values:
                values[name] = make()
        fields = self.__dataclass_fields__
        if values.keys() != fields.keys() or len(args) > len(names) or not named.keys().isdisjoint(given):
            lacking, unknown = fields.keys() - values.keys(), [*(named.keys() - fields.keys()), *args[len(names) :]]
            twice = named.keys() & given.keys()
            raise TypeError(
                f"{type(self).__name__} has the fields {names}; lacking: {sorted(lacking)}, unknown: {unknown}, "
                f"given twice: {sorted(twice)}"
            )
        self.__dict__.update(values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(self._compared(self) == self._compared(other))

    def __hash__(self) -> int:
        return hash(self._hashed(self))

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown)
        return f"{type(self).__qualname__}({told})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")
