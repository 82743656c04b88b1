"""Sessions that see a batch, then nothing of it, then a batch again: every operator and kernel, addresses checked."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import sardonyx
from sardonyx import errors
from sardonyx.lower.families import FAMILIES
from sardonyx.lower.lowering import RULES
from tests.providers.cpu.empty import CASES, Case

Array = np.ndarray[Any, Any]
CHIPS = (None, "x86-64", "haswell", "skylake-avx512", "cooperlake", "sapphirerapids", "neoverse-n1")
WITH_TILES = ("sapphirerapids", "cooperlake")
RTOL = {"highest": 1e-3, "high": 1e-3, "medium": 5e-2}
ATOL = {"highest": 1e-4, "high": 1e-3, "medium": 5e-2}
"""Of the largest number."""
RUNS = [
    pytest.param(name, cpu, precision, id=f"{name}-{cpu}-{precision}")
    for name, case in CASES.items()
    for cpu in CHIPS
    for precision in (case.precisions if cpu in WITH_TILES else case.precisions[:1])
]


REWRITTEN = {("sardonyx", "ConvTransposeInteger"): "conv: transposed between bytes"}
"""Operators that no file has, and the cases whose nodes become such."""


@cache
def peers(name: str) -> list[Any]:
    """Engines that tell what is right."""
    found: list[Any] = []
    model = CASES[name].model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for make in (
        lambda: onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]),
        lambda: ReferenceEvaluator(CASES[name].model),
    ):
        with suppress(Exception):  # they lack operators, and say so in many ways
            found.append(make())
    return found


@cache
def answers(name: str, sizes: tuple[tuple[str, int], ...]) -> tuple[list[list[Array]], bool]:
    """What peers give, and whether all of them do: what one of them refuses, we may refuse."""
    case, found, asked = CASES[name], [], 0
    for peer in peers(name):
        if isinstance(peer, onnxruntime.InferenceSession) and any(dict(sizes)[n] == 0 for n in case.hangs):
            continue
        asked += 1
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append([np.asarray(x) for x in peer.run(None, case.feeds(dict(sizes)))])
    return found, len(found) == asked > 0


@pytest.mark.sliced(29)
@pytest.mark.parametrize(("name", "chip", "precision"), RUNS)
def test_nothing(name: str, chip: str | None, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, chip, precision, monkeypatch)


def check(name: str, cpu: str | None, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.setenv("SARDONYX_CHECK_ADDRESSES", "1")
    if cpu is not None:
        monkeypatch.setenv("SARDONYX_CPU", cpu)
    options = sardonyx.SessionOptions()
    options.precision, options.intra_op_num_threads = precision, 2
    session = sardonyx.InferenceSession(case.model.SerializeToString(), options)
    for sizes in (case.sizes, *case.emptied, case.sizes):
        compare(session, case, name, sizes, precision)


def compare(session: Any, case: Case, name: str, sizes: Mapping[str, int], precision: str) -> None:
    wanted, is_clear = answers(name, tuple(sizes.items()))
    try:
        got = session.run(None, case.feeds(sizes))
    except (errors.InvalidArgument, errors.OutOfBudget):
        assert not is_clear, f"sizes {dict(sizes)}"
        return
    why = [_difference(got, want, case, precision) for want in wanted]
    assert not why or None in why, f"sizes {dict(sizes)}: {why}"


def _difference(got: list[Array], want: list[Array], case: Case, precision: str) -> str | None:
    for g, w in zip(got, want, strict=True):
        if g.shape != w.shape or g.dtype.kind != w.dtype.kind:
            return f"{g.dtype}{g.shape} and not {w.dtype}{w.shape}"
        largest = np.abs(w[np.isfinite(w)]).max(initial=1)
        is_near = np.isclose(g, w, RTOL[precision], ATOL[precision] * largest, equal_nan=True)
        if not case.is_random and not is_near.all():
            return f"{g[~is_near][:3]} and not {w[~is_near][:3]}"
    return None


def test_every_operator_that_is_compiled_is_in_the_table() -> None:
    """But for those without a name of their own: operators of users, and constants."""
    FAMILIES.load_all()
    known = {
        (node.domain, node.op_type)
        for case in CASES.values()
        for outer in case.model.graph.node
        for node in (outer, *(inner for attribute in outer.attribute for inner in attribute.g.node))
    }
    known |= {of for of, case in REWRITTEN.items() if case in CASES}
    assert not {(domain, name) for domain, name in RULES if name} - known
