"""Files of session settings, as ``sardonyx.tune`` writes them and ``SessionOptions.load_config`` reads them.

    {
     "format": "sardonyx.config",
     "version": 1,
     "options": {"intra_op_num_threads": 2},
     "entries": {"session.float64_as_float32": "1"},
     "calls": {"batch": 32},
     "notes": ["..."]
    }

A file is input that nobody vouches for: what it may set is listed here, and neither paths nor providers are. Anything
else in it is an error, and then nothing is set. ``calls`` are for the program that runs the session.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from sardonyx.errors import InvalidArgument, NoSuchFile
from sardonyx.records import Record
from sardonyx.session.config_keys import DOUBLES_KEY
from sardonyx.session.cpu_options import PRECISIONS, SPIN_US, SPINNING, SPINNING_STOPS
from sardonyx.session.enums import GraphOptimizationLevel

FORMAT, VERSION = "sardonyx.config", 1
MAX_NBYTES = 1 << 16
MAX_THREADS, MAX_SPIN_US, MAX_BATCH = 4096, 1_000_000, 1 << 20
MAX_NOTES, MAX_TEXT = 100, 1000

Check = Callable[[Any], bool]


def _is_whole(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _is_one_of(*known: object) -> Check:
    return lambda value: any(type(value) is type(each) and value == each for each in known)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _is_list(check: Check, most: int = MAX_NOTES) -> Check:
    return lambda value: isinstance(value, list) and len(value) <= most and all(map(check, value))


def _is_state(value: Any) -> bool:
    """An input, an output and an axis."""
    return isinstance(value, list) and len(value) == 3 and all(map(_is_text, value[:2])) and type(value[2]) is int


LEVELS = (0, 1, 2, 3, 99)
OPTIONS: dict[str, tuple[Check, str]] = {
    "intra_op_num_threads": (_is_whole(0, MAX_THREADS), f"a number from 0 to {MAX_THREADS}"),
    "graph_optimization_level": (_is_one_of(*LEVELS), "0, 1, 2, 3 or 99"),
    "precision": (_is_one_of(*PRECISIONS), " or ".join(PRECISIONS)),
}
"""Attributes of SessionOptions."""
ENTRIES: dict[str, tuple[Check, str]] = {
    SPINNING: (_is_one_of("0", "1"), '"0" or "1"'),
    SPINNING_STOPS: (_is_one_of("0", "1"), '"0" or "1"'),
    SPIN_US: (
        lambda v: isinstance(v, str) and v.isascii() and v.isdecimal() and len(v) < 8 and int(v) <= MAX_SPIN_US,
        f'"0" to "{MAX_SPIN_US}"',
    ),
    DOUBLES_KEY: (_is_one_of("0", "1"), '"0" or "1"'),
    "optimization.disable_specified_optimizers": (_is_one_of(""), "an empty text"),
}
"""Configuration keys."""
CALLS: dict[str, tuple[Check, str]] = {
    "batch": (_is_whole(1, MAX_BATCH), f"a number from 1 to {MAX_BATCH}"),
    "contiguous_inputs": (_is_one_of(True, False), "true or false"),
    "states": (_is_list(_is_state), "a list of [input, output, axis]"),
}


class Config(Record):
    """Settings of a session, and what a program should do when it calls it."""

    options: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, Any] = field(default_factory=dict)
    """``batch``: rows to run at once; ``states``: to be bound (``bind_state``); ``contiguous_inputs``."""
    notes: tuple[str, ...] = ()
    """For people."""

    def to_json(self) -> dict[str, Any]:
        options = {name: v if isinstance(v, str) else int(v) for name, v in self.options.items()}
        parts = {"options": options, "entries": dict(self.entries), "calls": dict(self.calls)}
        return {"format": FORMAT, "version": VERSION, **parts, "notes": list(self.notes)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; what ``read_config`` would refuse is not written."""
        from sardonyx.writing import write_whole

        text = json.dumps(self.to_json(), indent=1)
        _checked(json.loads(text), os.fspath(path))
        try:
            write_whole(os.fspath(path), [text.encode() + b"\n"])
        except OSError as error:
            raise InvalidArgument(f"the config cannot be written ({error.strerror})", where=os.fspath(path)) from None


def read_config(path: str | os.PathLike[str]) -> Config:
    """The settings of a file; InvalidArgument for anything that is not allowed."""
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidArgument("a config is a regular file", where=where)
            content = file.read(MAX_NBYTES + 1)
    except FileNotFoundError:
        raise NoSuchFile("there is no such config", where=where) from None
    except OSError as error:
        raise InvalidArgument(f"the config cannot be read ({error.strerror})", where=where) from None
    if len(content) > MAX_NBYTES:
        raise InvalidArgument("a config is not so large", where=where, expected=f"at most {MAX_NBYTES} bytes")
    try:
        parsed = json.loads(content.decode(), object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the config is not JSON: {error}", where=where) from None
    return _checked(parsed, where)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _checked(parsed: Any, where: str) -> Config:
    if not isinstance(parsed, dict) or parsed.get("format") != FORMAT:
        raise InvalidArgument("the file is no config of a session", where=where, expected=f'"format": "{FORMAT}"')
    if type(parsed.get("version")) is not int or parsed["version"] != VERSION:
        raise InvalidArgument(
            "the config has another version", where=where, expected=VERSION, got=parsed.get("version")
        )
    parts = {"options": OPTIONS, "entries": ENTRIES, "calls": CALLS}
    if unknown := parsed.keys() - {"format", "version", "notes", *parts}:
        raise InvalidArgument("the config has parts that are not known", where=where, got=sorted(unknown))
    for part, known in parts.items():
        given = parsed.setdefault(part, {})
        if not isinstance(given, dict):
            raise InvalidArgument(f"{part} of the config are names with values", where=where)
        for name, value in given.items():
            if name not in known:
                raise InvalidArgument(f"a config cannot set {name!r}", where=where, expected=f"{', '.join(known)}")
            check, expected = known[name]
            if not check(value):
                raise InvalidArgument(f"{name} in the config", where=where, expected=expected, got=repr(value)[:80])
    notes = parsed.get("notes", [])
    if not _is_list(_is_text)(notes):
        raise InvalidArgument("notes of the config are a list of texts", where=where)
    options = dict(parsed["options"])
    if "graph_optimization_level" in options:
        options["graph_optimization_level"] = GraphOptimizationLevel(options["graph_optimization_level"])
    return Config(options, parsed["entries"], parsed["calls"], tuple(notes))
