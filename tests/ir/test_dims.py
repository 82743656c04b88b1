"""Dimension arithmetic, against plain integers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sardonyx.ir import dims

A, B, C = dims.symbol("a"), dims.symbol("b"), dims.symbol("c")

TEXTS = {
    "a + 1": dims.add(A, 1),
    "a + b": dims.add(B, A),
    "2*a": dims.add(A, A),
    "a*b": dims.mul(B, A),
    "a*b + b": dims.mul(dims.add(A, 1), B),
    "-a": dims.neg(A),
    "a - b": dims.sub(A, B),
    "div(a + 1, 2)": dims.floordiv(dims.add(A, 1), 2),
    "a + div(b, 2)": dims.floordiv(dims.add(dims.mul(A, 2), B), 2),
    "min(4, a)": dims.minimum(A, 4),
    "broadcast(a, b)": dims.broadcast(B, A),
}


@pytest.mark.parametrize("text", TEXTS)
def test_an_expression_has_one_text_and_its_text_means_it(text: str) -> None:
    assert TEXTS[text] == text
    again = dims.of(text)
    assert again == text and isinstance(again, dims.Expr)


NUMBERS: dict[str, tuple[Any, int]] = {
    "a - a": (dims.sub(A, A), 0),
    "(a + 3) - (a + 1)": (dims.sub(dims.add(A, 3), dims.add(1, A)), 2),
    "0 * a": (dims.mul(A, 0), 0),
    "64ab / ab": (dims.exact_div(dims.product([64, A, B]), dims.mul(A, B)), 64),
    "64(a + b) / (a + b)": (dims.exact_div(dims.mul(dims.add(A, B), 64), dims.add(B, A)), 64),
    "7 // 2": (dims.floordiv(7, 2), 3),
    "a with 5 for a": (dims.evaluate(dims.ceildiv(A, 2), {"a": 5}), 3),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_constant_expressions_are_ints(name: str) -> None:
    found, expected = NUMBERS[name]
    assert type(found) is int and found == expected


def test_unknown_operands_give_unknown_results() -> None:
    for fn in (dims.add, dims.sub, dims.mul, dims.floordiv, dims.minimum, dims.maximum):
        assert fn(A, None) is None and fn(None, 3) is None
    assert dims.exact_div(A, 2) is None
    assert dims.floordiv(A, 0) is None
    assert dims.broadcast(None, 1) is None and dims.broadcast(None, 7) == 7


def test_a_number_divides_a_sum_of_many_terms() -> None:
    many = dims.total(dims.mul(dims.symbol(f"n{i}"), i + 1) for i in range(20))
    assert dims.exact_div(dims.mul(many, 6), 6) == many
    assert dims.exact_div(dims.add(dims.mul(many, 6), A), 6) is None


DECLARED = {
    "batch": "batch",
    "past_sequence_length+1": "past_sequence_length + 1",
    "2*s0": "2*s0",
    "DynamicDimension.0": "DynamicDimension.0",
    "floor(h/32)": "`floor(h/32)`",
    "my batch": "`my batch`",
    "7": "`7`",
    "?": None,
    "-1": None,
    "None": None,
}


@pytest.mark.parametrize("name", DECLARED)
def test_names_that_models_declare(name: str) -> None:
    assert dims.of(name) == DECLARED[name]


def test_bounds() -> None:
    assert dims.at_least(A, 0) and not dims.at_least(A, 1)
    assert dims.at_least(dims.add(A, 1), 1) and not dims.at_least(dims.sub(A, 1), 0)
    assert dims.at_least(dims.maximum(dims.sub(A, 3), 1), 1)
    assert dims.differ(dims.add(A, 1), A) and not dims.differ(A, B)
    assert dims.differ(A, -1) and not dims.differ(A, 0)


def test_a_slice_that_is_added_to_the_whole_was_whole() -> None:
    assert dims.broadcast(dims.minimum(A, 512), A) == A
    assert dims.broadcast(A, dims.minimum(A, 0)) == 0


def test_a_size_that_is_added_to_what_was_cut_off_and_padded_again() -> None:
    again = dims.add(dims.maximum(dims.sub(A, 1), 0), 1)
    assert dims.broadcast(A, again) == dims.broadcast(again, A) == A
    assert dims.broadcast(A, dims.maximum(A, 1)) == A
    third = dims.add(dims.maximum(dims.sub(A, 3), 0), 3)
    assert dims.broadcast(A, third) == third
    assert dims.broadcast(B, again) == f"broadcast(b, {again})"


def test_what_was_broadcast_already_adds_nothing() -> None:
    both = dims.broadcast(A, B)
    assert dims.broadcast(both, A) == dims.broadcast(B, both) == both
    three = dims.broadcast(both, C)
    assert dims.broadcast(three, both) == dims.broadcast(dims.broadcast(C, A), three) == three


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["broadcast", "cut", "capped"]), st.integers(0, 8), st.integers(0, 8)), max_size=6
    ),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_broadcasts_have_the_size_of_their_result_wherever_operands_fit(
    steps: list[tuple[str, int, int]], a: int, b: int
) -> None:
    """Sizes are built step by step from earlier ones; what an expression says is what a run would find."""
    made: list[Any] = [A, B]
    values = [a, b]
    for what, i, j in steps:
        i, n = i % len(made), j % 4
        if what == "cut":
            made.append(dims.add(dims.maximum(dims.sub(made[i], n), 0), n))
            values.append(max(values[i] - n, 0) + n)
        elif what == "capped":
            made.append(dims.minimum(made[i], n))
            values.append(min(values[i], n))
        else:
            x, y = values[i], values[j % len(made)]
            if x != y and 1 not in (x, y):
                return
            made.append(dims.broadcast(made[i], made[j % len(made)]))
            values.append(y if x == 1 else x)
        assert dims.evaluate(made[-1], {"a": a, "b": b}) == values[-1], made[-1]


def test_expressions_that_grow_are_given_up() -> None:
    d: Any = A
    for i in range(dims.MAX_TEXT // 3):
        d = dims.floordiv(dims.add(d, i), 2)
    assert d is None


_LEAVES = st.one_of(st.sampled_from(["a", "b", "c"]), st.integers(0, 6))
_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[int, int], int]]] = {
    "add": (dims.add, operator.add),
    "sub": (dims.sub, operator.sub),
    "mul": (dims.mul, operator.mul),
    "min": (dims.minimum, min),
    "max": (dims.maximum, max),
    "div": (dims.floordiv, operator.floordiv),
    "mod": (dims.mod, operator.mod),
}
_TREES = st.recursive(_LEAVES, lambda t: st.tuples(st.sampled_from(sorted(_FUNCTIONS)), t, t), max_leaves=7)


def _build(tree: Any) -> Any:
    if not isinstance(tree, tuple):
        return dims.symbol(tree) if isinstance(tree, str) else tree
    return _FUNCTIONS[tree[0]][0](_build(tree[1]), _build(tree[2]))


def _compute(tree: Any, sizes: dict[str, int]) -> int:
    if not isinstance(tree, tuple):
        return sizes[tree] if isinstance(tree, str) else tree
    return _FUNCTIONS[tree[0]][1](_compute(tree[1], sizes), _compute(tree[2], sizes))


@settings(max_examples=300)
@given(_TREES, st.tuples(*[st.integers(0, 9)] * 3))
@example(("mod", 1, ("sub", 0, "a")), (1, 0, 0))
@example(("add", 1, ("min", "a", ("sub", "b", "c"))), (0, 0, 1))
@example(("add", 1, ("max", ("sub", "a", "b"), ("sub", "b", "c"))), (0, 0, 1))
@example(("mul", ("max", 1, "a"), ("min", "a", ("sub", "b", "c"))), (0, 0, 1))
@example(("add", 1, ("div", "a", ("sub", "b", "a"))), (1, 0, 0))
def test_expressions_evaluate_like_integers(tree: Any, numbers: tuple[int, int, int]) -> None:
    sizes = dict(zip("abc", numbers, strict=True))
    built = _build(tree)
    try:
        expected = _compute(tree, sizes)
    except ZeroDivisionError:
        return
    if built is not None:
        assert dims.evaluate(built, sizes) == expected
        assert dims.evaluate(dims.known(str(built)), sizes) == expected if not isinstance(built, int) else True
        for bound in (0, 1):
            assert expected >= bound or not dims.at_least(built, bound)


def test_a_rounded_up_quotient_is_not_taken_for_less_than_one() -> None:
    size, output = dims.symbol("size"), dims.symbol("output")
    up = dims.neg(dims.floordiv(dims.neg(size), output))
    assert dims.at_least(up, 0) and not dims.at_least(dims.sub(1, up), 0)
    assert dims.evaluate(dims.maximum(1, up), {"size": 1080, "output": 256}) == 5


def test_functions_are_given_up_before_they_are_nested_deeply() -> None:
    d: dims.Dim = A
    depth = 0
    while d is not None:
        d, depth = dims.floordiv(d, 2 + depth), depth + 1
    assert depth == dims.MAX_DEPTH + 1
    text = "a"
    for n in range(2, 80):
        text = f"div({text}, {n})"
    assert not [name for name in dims.names(dims.of(text)) if name == "a"]
