"""The calls that a case makes: feeds of its own in memory, every output, and no more memory than there is."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from fuzz.binding import LAYOUTS
from fuzz.cases import ENTRIES, Case, Options, Run
from fuzz.execute import Watch, laid_out, run_once, session_of

HEAD = '<ir_version: 8, opset_import: ["": 13]>'


def case(text: str) -> Case:
    return Case("a/0/0", onnx.parser.parse_model(f"{HEAD} {text}").SerializeToString(), (), Options())


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "shared"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_a_feed_has_memory_of_its_own(layout: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    laid = laid_out(array, layout)
    assert laid.shape == shape and not np.shares_memory(laid, array)


def test_an_output_in_the_memory_of_an_input_leaves_the_case_as_it_is() -> None:
    x = np.array([1, 2, 3], np.float32)
    run = Run({"x": x}, layouts={"x": "fortran", "*outputs": "input"})
    session = session_of(case("g (float[3] x) => (float[3] y) { y = Neg(x) }"))
    run_once(session, run, "preallocated", Watch())
    assert x.tolist() == [1, 2, 3]


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_output_that_is_listed_twice(entry: str) -> None:
    session = session_of(case("g (float[2] x) => (float[2] y, float[2] z, float[2] y) { y = Neg(x) z = Relu(x) }"))
    results = run_once(session, Run({"x": np.array([1, 2], np.float32)}), entry, Watch())
    assert [r.tolist() for r in results] == [[-1, -2], [1, 2], [-1, -2]]


def test_memory_that_is_larger_than_an_empty_output_of_huge_lengths() -> None:
    session = session_of(case("g (float[n, m] x) => (float[n, m] y) { y = Neg(x) }"))
    run = Run({"x": np.empty((0, 1 << 40), np.float32)}, layouts={"*outputs": "larger"})
    (y,) = run_once(session, run, "preallocated", Watch())
    assert y.shape == (0, 1 << 40)
