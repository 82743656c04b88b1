"""Every environment variable that Sardonyx reads.

    SARDONYX_CACHE                      path       folder in which engines are kept between starts
    SARDONYX_CPU                        name       CPU that code is emitted for, in LLVM's words; by default the host's;
                                                     what the host has not is done by ordinary instructions
    SARDONYX_CHECK_ADDRESSES            bool  off  check every address that a compiled kernel reads or writes
    SARDONYX_DUMP                       path       folder to which the CPU provider writes the groups of each part
                                                     that it compiles, after every pass of its pipeline
    SARDONYX_GUARD_PAGES                name       end or front: memory of compiled runs ends in front of a closed
                                                     page, or begins behind one; a stray access ends the process
    SARDONYX_VERIFY                     bool  off  check the graph's invariants between stages
    ORT_LOAD_CONFIG_FROM_MODEL          bool  off  take session options from the model's ``ort_config`` metadata
    ORT_ONNX_BACKEND_EXCLUDE_PROVIDERS  list       providers that ``sardonyx.backend`` does not use
    SARDONYX_MAX_VALUE_NBYTES           int        most bytes of one computed value; by default 1024 times
                                                     what model and feeds hold, and 192 MiB in any case

Variables are read when they are asked for, so that a program may set them at any time. An empty one is one that is not
set.
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
CPU: Knob[str | None] = Knob("SARDONYX_CPU", None, str)
CHECK_ADDRESSES = Knob("SARDONYX_CHECK_ADDRESSES", False, _switch)
DUMP: Knob[str | None] = Knob("SARDONYX_DUMP", None, str)
GUARD_PAGES: Knob[str | None] = Knob("SARDONYX_GUARD_PAGES", None, str)
VERIFY = Knob("SARDONYX_VERIFY", False, _switch)
LOAD_CONFIG_FROM_MODEL = Knob("ORT_LOAD_CONFIG_FROM_MODEL", False, _switch)
BACKEND_EXCLUDE_PROVIDERS: Knob[tuple[str, ...]] = Knob("ORT_ONNX_BACKEND_EXCLUDE_PROVIDERS", (), _words)
MAX_VALUE_NBYTES: Knob[int | None] = Knob("SARDONYX_MAX_VALUE_NBYTES", None, int)
