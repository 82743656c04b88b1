"""Symbolic sizes as Python code, and names bound from shapes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from sardonyx.ir import dims
from sardonyx.plan.sizes import Binding, SizeRange, Sizes, SizesDiffer, multiple, name_of

B, S, T = dims.symbol("batch"), dims.symbol("seq"), dims.symbol("a weird-name")


def bound(binding: Binding, shapes: Any) -> Any:
    """The sizes of names."""
    return Sizes(binding.names).compiled(tuple(range(len(binding.names))), binding)(shapes)


@pytest.mark.parametrize("numbers", [(2, 7, 3), (1, 1, 1), (0, 5, 64)])
def test_compiled_expressions_are_what_evaluation_gives(numbers: tuple[int, int, int]) -> None:
    expressions = [
        7, B, dims.mul(B, S), dims.add(dims.mul(dims.mul(B, S), 3), -4), dims.floordiv(S, 4), dims.mod(S, 3),
        dims.minimum(B, S), dims.maximum(dims.add(B, 1), S), dims.broadcast(dims.minimum(1, B), 1), dims.sub(S, B),
        dims.mul(T, T), dims.ceildiv(dims.add(S, T), 16),
    ]  # fmt: skip
    names = ("batch", "seq", str(T))
    sizes = Sizes(names)
    order = [sizes.number(e) for e in expressions]
    assert [sizes.number(e) for e in expressions] == order
    values = sizes.compiled()(numbers)
    given = dict(zip(names, numbers, strict=True))
    expected = [dims.evaluate(e, given) for e in expressions]
    assert [values[i] for i in order] == expected and values[:3] == numbers
    assert sizes.compiled((tuple(order), "kept", order[3]), kept=7)(numbers) == (tuple(expected), 7, expected[3])


def test_names_are_bound_and_other_dimensions_checked() -> None:
    binding = Binding([(B, S, 8), (B, dims.add(S, 1))])
    assert dict(zip(binding.names, bound(binding, [(2, 5, 8), (2, 6)]), strict=True)) == {"batch": 2, "seq": 5}
    for wrong in ([(2, 5, 8), (3, 6)], [(2, 5, 8), (2, 5)], [(2, 5, 7), (2, 6)]):
        with pytest.raises(SizesDiffer):
            bound(binding, wrong)


def test_a_name_is_read_where_a_dimension_is_a_multiple_of_it() -> None:
    binding = Binding([(dims.mul(B, 4) or 0, dims.mul(S, 6) or 0), (dims.mul(S, 2) or 0,)])
    assert dict(zip(binding.names, bound(binding, [(8, 18), (6,)]), strict=True)) == {"batch": 2, "seq": 3}
    for wrong in ([(7, 18), (6,)], [(8, 20), (6,)], [(8, 18), (7,)]):
        with pytest.raises(SizesDiffer):
            bound(binding, wrong)
    sizes = Sizes(binding.names)
    product = sizes.compiled((sizes.number(dims.mul(B, S) or 0),), binding)
    assert product([(8, 18), (6,)]) == (6,)
    with pytest.raises(SizesDiffer):
        product([(8, 18), (7,)])
    again = Binding.deserialized(binding.frozen())
    assert again.names == binding.names
    with pytest.raises(SizesDiffer, match="axis 0 of input 1 is 7, but"):
        again.scope["differ"](1, 0, 7, 6)


def test_operands_that_do_not_broadcast_are_refused() -> None:
    sizes = Sizes(("batch", "seq"))
    both = dims.broadcast(B, S)
    assert both is not None
    evaluate = sizes.compiled(sizes.number(both))
    assert evaluate((1, 5)) == 5 and evaluate((4, 1)) == 4
    for function in (evaluate, sizes.compiled(0)):  # even if the value is not requested
        with pytest.raises(SizesDiffer, match="do not broadcast"):
            function((2, 3))


@pytest.mark.parametrize("batch", [0, 1, 5, 9])
@pytest.mark.parametrize("seq", [1, 5, 8])
def test_the_largest_of_sizes(batch: int, seq: int) -> None:
    sizes = Sizes(("batch", "seq"))
    some = [dims.mul(B, 3) or 0, dims.sub(S, 7) or 0, S, dims.mul(B, 2) or 0, 2]
    most, least, none = sizes.largest(some), sizes.largest(some[1:2]), sizes.largest([])
    numbered, bits = sizes.maximum([sizes.number(e) for e in some]), sizes.bit_or([some[0], S, 2])
    values = sizes.compiled()((batch, seq))
    assert [values[i] for i in (most, least, none)] == [max(3 * batch, seq, 2), max(seq - 7, 0), 0]
    assert values[numbered] == max(3 * batch, seq, 2) and values[bits].bit_length() == values[most].bit_length()


def test_multiples_of_one_size() -> None:
    rows = dims.add(dims.mul(dims.mul(B, S), 6), 4)
    assert isinstance(rows, dims.Expr)
    assert multiple(rows) == (dims.add(dims.mul(dims.mul(B, S), 3), 2), 2) and multiple(B) == (B, 1)


@pytest.mark.parametrize("allowed", [(), (B,), (B, 1)])
@pytest.mark.parametrize("least", [None, 3])
def test_conditions_are_those_of_the_function(allowed: tuple[dims.Known, ...], least: int | None) -> None:
    sizes = Sizes(("batch", "seq"))
    condition = sizes.satisfies(S, allowed, least)
    plain = sizes.compiled(condition)
    sizes.require(condition, 'it\'s "so"', S)
    evaluate = sizes.compiled(1)
    for batch, seq in itertools.product(range(6), repeat=2):
        among = not allowed or seq in [batch if a is B else a for a in allowed]
        holds = among and (least is None or seq >= least)
        assert plain((batch, seq)) == holds
        if holds:
            assert evaluate((batch, seq)) == seq
        else:
            with pytest.raises(SizesDiffer, match=f'it\'s "so": {seq}'):
                evaluate((batch, seq))


def test_ranges_of_sizes() -> None:
    few, some = SizeRange(S, most=4), SizeRange(B, 2, 3)
    sizes = Sizes(("batch", "seq"))
    within = sizes.compiled((sizes.in_range(few), sizes.in_range(few.otherwise), sizes.in_range(some)))
    for batch, seq in itertools.product(range(7), repeat=2):
        assert within((batch, seq)) == (seq <= 4, seq > 4, 2 <= batch <= 3)


def test_unbound_names_are_named() -> None:
    sizes = Sizes(("batch", "seq"))
    for size in (dims.add(B, T) or 0, S):
        sizes.number(size)
    assert sizes.unbound == {str(T)}
    assert name_of(B) == "batch" and name_of(dims.mul(B, 2) or 0) is None and name_of(3) is None
