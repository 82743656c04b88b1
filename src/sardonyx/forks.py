"""Locks and native code that are safe across ``fork``.

A child has one thread: a lock that another thread of the parent held would stay locked for ever. Locks made here are
free in a child. Native code with locks of its own is entered through a ``Gate``; a fork waits until the gate is empty.
A fork also waits for running imports, because a half-loaded module is unusable in a child and its import lock stays
held.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:
        """That of functools, without the lock that all instances of a class share."""

        def __init__(self, function):
            self._function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            made = instance.__dict__[self._name] = self._function(instance)
            return made


IMPORT_S = 2.0
"""How long a fork waits for running imports. A program that runs inside a module's body never finishes its import."""

__all__ = ["Gate", "at_fork", "cached_property", "imported", "lock", "rlock"]

_locks: WeakSet[Any] = WeakSet()


def lock() -> threading.Lock:
    """A lock that is free in a child."""
    made = threading.Lock()
    _locks.add(made)
    return made


def rlock() -> Any:
    """A reentrant lock that is free in a child."""
    made = threading.RLock()
    _locks.add(made)
    return made


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    in_parent: Callable[[], object] | None = None,
    in_child: Callable[[], object],
) -> None:
    """Register functions to be called around forks, on systems that have them."""
    if not hasattr(os, "register_at_fork"):
        return
    given = {"before": before, "after_in_parent": in_parent, "after_in_child": in_child}
    os.register_at_fork(**{when: function for when, function in given.items() if function is not None})


_importing = rlock()


def imported(name: str) -> Any:
    """A module that registers functions around forks, imported at any time.

    Python calls what is registered after the fork also where that came too late for what is registered before it: a
    module that is imported while another thread forks would release a lock that somebody else holds.
    """
    if not hasattr(os, "register_at_fork"):
        return importlib.import_module(name)
    with _importing:
        register = os.register_at_fork
        os.register_at_fork = _in_pairs(register)
        try:
            return importlib.import_module(name)
        finally:
            os.register_at_fork = register


def _in_pairs(register: Callable[..., None]) -> Callable[..., None]:
    """``os.register_at_fork`` by which the parent calls nothing after a fork that has called nothing before."""

    def register_pair(
        *, before: Callable[[], object] | None = None, after_in_parent: Callable[[], object] | None = None,
        after_in_child: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        has_begun = False

        def begin() -> None:
            nonlocal has_begun
            if before is not None:
                before()
            has_begun = True

        def end() -> None:
            nonlocal has_begun
            if has_begun and after_in_parent is not None:
                has_begun = False
                after_in_parent()

        child = {} if after_in_child is None else {"after_in_child": after_in_child}
        register(before=begin, after_in_parent=end, **child)

    return register_pair


class Gate:
    """Code that a fork of another thread does not interrupt: ``with gate`` around it. It must not wait for other
    threads.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: Counter[int] = Counter()
        self._forking: int | None = None
        at_fork(before=self._close, in_parent=self._open, in_child=self._open_in_child)

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            while self._forking not in (None, me):
                self._changed.wait()
            self._inside[me] += 1

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        with self._changed:
            self._inside[me] -= 1
            if not self._inside[me]:
                del self._inside[me]
            self._changed.notify_all()

    def _close(self) -> None:
        """Wait until no thread is inside, and let none enter. The condition is held until the gate opens."""
        me = threading.get_ident()
        self._changed.acquire()
        while self._forking is not None:
            self._changed.wait()
        self._forking = me
        while self._inside.keys() - {me}:
            self._changed.wait()

    def _open(self) -> None:
        self._forking = None
        self._changed.notify_all()
        self._changed.release()

    def _open_in_child(self) -> None:
        """Threads that wait at the gate do not exist in the child."""
        self._changed._waiters.clear()  # type: ignore[attr-defined]
        self._open()


def _await_imports() -> None:
    """Wait until no other thread is importing."""
    known, end = 0, 0.0
    while _others_import():
        if len(sys.modules) != known:
            known, end = len(sys.modules), time.monotonic() + IMPORT_S
        elif time.monotonic() > end:
            return
        time.sleep(1e-3)


def _others_import() -> bool:
    """Whether another thread holds the lock of a module that is being imported.

    The frames of running threads must not be walked: some versions of CPython return freed memory as ``f_back``.
    """
    me, locks = threading.get_ident(), getattr(importlib._bootstrap, "_module_locks", {})
    owners = (getattr(reference(), "owner", None) for reference in list(locks.values()))
    return any(owner not in (None, me) for owner in owners)


def _free() -> None:
    for made in _locks:
        made._at_fork_reinit()


at_fork(before=_await_imports, in_child=_free)
