"""Frozen dataclasses that compile no code of their own.

``dataclass(frozen=True)`` generates and compiles six functions for every class, which took a third of a warm start. A
``Record`` inherits them. ``dataclasses.fields``, ``replace`` and ``astuple`` accept it: the descriptions of fields that
they read are made when they are first asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


def _attributes(names: Iterable[str]) -> attrgetter[Any]:
    """Returns these attributes of an object; those of a class without fields are equal."""
    return attrgetter(*(tuple(names) or ("__class__",)))


def _describe(cls: type[Record]) -> None:
    """Let ``dataclasses`` describe the fields of a class."""
    if cls.__doc__ is None:
        cls.__doc__ = ""  # else dataclass writes a signature, which takes longer than all the rest
    dataclass(init=False, repr=False, eq=False)(cls)


class _Undescribed:
    """The ``__dataclass_fields__`` of a class until they are first read."""

    def __get__(self, record: Record | None, cls: type[Record]) -> dict[str, Field[Any]]:
        _describe(cls)
        return cls.__dataclass_fields__


_UNDESCRIBED: Any = _Undescribed()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record:
    """Base of classes whose annotations are fields. With ``eq=False``, instances compare by identity."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __match_args__: ClassVar[tuple[str, ...]]
    _names: ClassVar[dict[str, None]]
    """The fields, in order."""
    _is_plain: ClassVar[bool]
    """Whether no field is described by ``field()``, here or in a base."""
    _defaults: ClassVar[dict[str, Any]]
    _factories: ClassVar[dict[str, Callable[[], Any]]]
    _compared: ClassVar[attrgetter[Any]]
    _hashed: ClassVar[attrgetter[Any]]
    _shown: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, *, eq: bool = True) -> None:
        super().__init_subclass__()
        own = [name for name, told in cls.__annotations__.items() if "ClassVar" not in str(told)]
        records = [base for base in reversed(cls.__mro__[1:]) if issubclass(base, Record) and base is not Record]
        cls._is_plain = all(base._is_plain for base in records) and not any(
            isinstance(vars(cls).get(name), Field) for name in own
        )
        if cls._is_plain:
            cls._take(own, records)
        else:
            cls._take_described()
        if not eq:
            cls.__eq__, cls.__hash__ = object.__eq__, object.__hash__  # type: ignore[method-assign]

    @classmethod
    def _take(cls, own: Sequence[str], records: Sequence[type[Record]]) -> None:
        """Take the fields from annotations: those of the bases first."""
        names = dict.fromkeys(name for base in records for name in base._names) | dict.fromkeys(own)
        cls._names, cls._shown, cls._factories = names, tuple(names), {}
        setattr(cls, "__match_args__", tuple(names))  # noqa: B010 - mypy takes it for final
        cls._defaults = {name: value for base in records for name, value in base._defaults.items()}
        cls._defaults |= {name: vars(cls)[name] for name in own if name in vars(cls)}
        cls._compared = cls._hashed = _attributes(names)
        cls.__dataclass_fields__ = _UNDESCRIBED

    @classmethod
    def _take_described(cls) -> None:
        """Take the fields as ``dataclasses`` describes them."""
        _describe(cls)
        described = {f.name: f for f in fields(cls)}
        cls._names, cls._shown = dict.fromkeys(described), tuple(name for name, f in described.items() if f.repr)
        cls._defaults = {name: f.default for name, f in described.items() if f.default is not MISSING}
        factories = {name: f.default_factory for name, f in described.items()}
        cls._factories = {name: make for name, make in factories.items() if make is not MISSING}
        cls._compared = _attributes(name for name, f in described.items() if f.compare)
        cls._hashed = _attributes(name for name, f in described.items() if (f.compare if f.hash is None else f.hash))

    def __init__(self, *args: Any, **named: Any) -> None:
        if named or len(args) != len(self._names):
            self._complete(args, named)
        else:
            self.__dict__.update(zip(self.__match_args__, args, strict=True))

    def _complete(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Set the fields from arguments and defaults."""
        names, known = self.__match_args__, self._names
        given = dict(zip(names, args, strict=False))
        values = {**self._defaults, **given, **named}
        if len(values) != len(known):
            for name, make in self._factories.items():
                if name not in values:
                    values[name] = make()
        if values.keys() != known.keys() or len(args) > len(names) or (args and not named.keys().isdisjoint(given)):
            lacking, unknown = known.keys() - values.keys(), [*(named.keys() - known.keys()), *args[len(names) :]]
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


T = TypeVar("T")


def replace(record: T, /, **changes: Any) -> T:
    """A copy with some fields changed, as ``dataclasses.replace`` makes it, in a quarter of the time."""
    cls: Any = type(record)
    if not isinstance(record, Record) or cls.__init__ is not Record.__init__:
        return dataclasses.replace(record, **changes)  # type: ignore[type-var]
    given = record.__dict__
    values = {name: given[name] for name in cls.__match_args__}
    values.update(changes)
    if len(values) != len(cls.__match_args__):
        raise TypeError(f"{cls.__name__} has the fields {cls.__match_args__}; unknown: {sorted(changes)}")
    made: T = cls.__new__(cls)
    made.__dict__.update(values)
    return made
