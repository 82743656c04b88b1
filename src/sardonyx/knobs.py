"""Every environment variable that Sardonyx reads.

    SARDONYX_CACHE                      path       folder of cached graphs, compiled models and kernels;
                                                     ~/.cache/sardonyx by default; off: nothing is cached
    SARDONYX_CACHE_NBYTES               int        most bytes of all files of the cache, 2 GiB by default; those
                                                     that were not used for the longest time are deleted first
    SARDONYX_CPU                        name       target CPU by LLVM's name; the host by default;
                                                     instructions that the host lacks are emulated
    SARDONYX_BASELINE                   bool  on   give a kernel that is not in the cache baseline code first, which
                                                     optimized code replaces after the first run
    SARDONYX_CHECK_ADDRESSES            bool  off  check every address that a compiled kernel reads or
                                                     writes, and every size that it divides by
    SARDONYX_DUMP                       path       folder to which the CPU provider writes the groups of each part
                                                     that it compiles, after every pass of its pipeline
    SARDONYX_GUARD_PAGES                name       end or front: a page without access rights follows
                                                     (precedes) the memory of compiled runs
    SARDONYX_VERIFY                     bool  off  check the graph's invariants between stages, and all IR of kernels
    ORT_LOAD_CONFIG_FROM_MODEL          bool  off  take session options from the model's ``ort_config`` metadata
    ORT_ONNX_BACKEND_EXCLUDE_PROVIDERS  list       providers that ``sardonyx.backend`` does not use
    SARDONYX_MAX_VALUE_NBYTES           int        most bytes of one computed value; by default 1024 times
                                                     the size of model and feeds, at least 192 MiB

Variables are read at each use, so a program may set them at any time. An empty variable counts as unset.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from sardonyx.records import Record

T = TypeVar("T")


class Knob(Record, Generic[T]):
    """A variable's name, its value when unset, and how its text is read."""

    name: str
    default: T
    parse: Callable[[str], T]

    def get(self) -> T:
        text = os.environ.get(self.name)
        return self.parse(text) if text else self.default


def _switch(text: str) -> bool:
    return text == "1"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


CACHE: Knob[str | None] = Knob("SARDONYX_CACHE", None, str)
CACHE_NBYTES = Knob("SARDONYX_CACHE_NBYTES", 2 << 30, int)
CPU: Knob[str | None] = Knob("SARDONYX_CPU", None, str)
BASELINE = Knob("SARDONYX_BASELINE", True, _switch)
CHECK_ADDRESSES = Knob("SARDONYX_CHECK_ADDRESSES", False, _switch)
DUMP: Knob[str | None] = Knob("SARDONYX_DUMP", None, str)
GUARD_PAGES: Knob[str | None] = Knob("SARDONYX_GUARD_PAGES", None, str)
VERIFY = Knob("SARDONYX_VERIFY", False, _switch)
LOAD_CONFIG_FROM_MODEL = Knob("ORT_LOAD_CONFIG_FROM_MODEL", False, _switch)
BACKEND_EXCLUDE_PROVIDERS: Knob[tuple[str, ...]] = Knob("ORT_ONNX_BACKEND_EXCLUDE_PROVIDERS", (), _words)
MAX_VALUE_NBYTES: Knob[int | None] = Knob("SARDONYX_MAX_VALUE_NBYTES", None, int)
