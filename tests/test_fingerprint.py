"""Digests of functions: the same for the same meaning in every process, another for any change that could matter."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from sardonyx import fingerprint

SOURCE = """
import math, functools
import numpy as np
FACTOR = 3
TABLE = np.arange(4)
NAMES = {"b", "a"}
def helper(x):
    return x + 1
class Scale:
    def __call__(self, x):
        return x * FACTOR
def outer(bias):
    def inner(x, *, power=2):
        return helper(x) ** power * FACTOR + math.pi + bias + TABLE[0] + len(NAMES) + Scale()(x)
    return inner
fn = outer(5)
partial = functools.partial(fn, power=3)
"""


def digest(source: str, name: str = "fn") -> str:
    namespace: dict[str, Any] = {"__name__": "made_up"}
    exec(compile(source, "made_up.py", "exec", dont_inherit=True), namespace)
    return fingerprint.of(namespace[name])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FACTOR = 3", "FACTOR = 4"),
        ("arange(4)", "arange(1, 5)"),
        ('{"b", "a"}', '{"b", "c"}'),
        ("return x + 1", "return x + 2"),
        ("return x * FACTOR", "return x - FACTOR"),
        ("outer(5)", "outer(6)"),
        ("power=2", "power=1"),
        ("math.pi", "math.tau"),
    ],
)
def test_a_fingerprint_includes_referenced_objects(old: str, new: str) -> None:
    assert old in SOURCE
    assert digest(SOURCE) == digest(SOURCE) != digest(SOURCE.replace(old, new))


def test_a_fingerprint_ignores_position_and_comments() -> None:
    assert digest(SOURCE) == digest("\n\n# elsewhere\n" + SOURCE)
    assert digest(SOURCE) != digest(SOURCE, "partial")


def elsewhere(source: str) -> str:
    """The digest of ``fn`` in another process."""
    space = "space = {'__name__': 'made_up'}"
    program = f"from sardonyx import fingerprint\n{space}\nexec({source!r}, space)\nprint(fingerprint.of(space['fn']))"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_another_process_finds_the_same() -> None:
    assert elsewhere(SOURCE) == digest(SOURCE)


def test_objects_without_a_stable_description_are_unique_to_the_process() -> None:
    source = "thing = object()\ndef fn(x):\n    return x is thing\n"
    assert elsewhere(source) != digest(source)
