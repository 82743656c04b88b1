"""Symbolic sizes as Python code, and names bound from shapes."""

from __future__ import annotations

import itertools

import pytest

from sardonyx.ir import dims
from sardonyx.plan.sizes import Binding, Condition, Sizes, SizesDiffer, name_of, unbound

B, S, T = dims.symbol("batch"), dims.symbol("seq"), dims.symbol("a weird-name")


@pytest.mark.parametrize("numbers", [(2, 7, 3), (1, 1, 1), (0, 5, 64)])
def test_compiled_expressions_are_what_evaluation_gives(numbers: tuple[int, int, int]) -> None:
    expressions = [
        7, B, dims.mul(B, S), dims.add(dims.mul(dims.mul(B, S), 3), -4), dims.floordiv(S, 4), dims.mod(S, 3),
        dims.minimum(B, S), dims.maximum(dims.add(B, 1), S), dims.broadcast(dims.minimum(1, B), 1), dims.sub(S, B),
        dims.mul(T, T), dims.ceildiv(dims.add(S, T), 16),
    ]  # fmt: skip
    sizes = Sizes()
    order = [sizes.number(e) for e in expressions]
    assert [sizes.number(e) for e in expressions] == order
    names = ("batch", "seq", str(T))
    values = sizes.compiled(names)(numbers)
    given = dict(zip(names, numbers, strict=True))
    assert [values[i] for i in order] == [dims.evaluate(e, given) for e in expressions]


def test_names_are_bound_and_other_dimensions_checked() -> None:
    binding = Binding([(B, S, 8), (B, dims.add(S, 1))])
    assert dict(zip(binding.names, binding.bind([(2, 5, 8), (2, 6)]), strict=True)) == {"batch": 2, "seq": 5}
    for wrong in ([(2, 5, 8), (3, 6)], [(2, 5, 8), (2, 5)], [(2, 5, 7), (2, 6)]):
        with pytest.raises(SizesDiffer):
            binding.bind(wrong)


def test_a_name_is_read_where_a_dimension_is_a_multiple_of_it() -> None:
    binding = Binding([(dims.mul(B, 4) or 0, dims.mul(S, 6) or 0), (dims.mul(S, 2) or 0,)])
    assert dict(zip(binding.names, binding.bind([(8, 18), (6,)]), strict=True)) == {"batch": 2, "seq": 3}
    for wrong in ([(7, 18), (6,)], [(8, 20), (6,)], [(8, 18), (7,)]):
        with pytest.raises(SizesDiffer):
            binding.bind(wrong)
    again = Binding.revived(binding.frozen())
    assert again.bind([(8, 18), (6,)]) == binding.bind([(8, 18), (6,)])


def test_operands_that_do_not_broadcast_are_refused() -> None:
    sizes = Sizes()
    both = dims.broadcast(B, S)
    assert both is not None
    sizes.number(both)
    evaluate = sizes.compiled(("batch", "seq"))
    assert evaluate((1, 5)) == (5,) and evaluate((4, 1)) == (4,)
    with pytest.raises(SizesDiffer, match="do not broadcast"):
        evaluate((2, 3))


@pytest.mark.parametrize("batch", [0, 1, 5, 9])
@pytest.mark.parametrize("seq", [1, 5, 8])
def test_the_largest_of_results_is_a_result(batch: int, seq: int) -> None:
    sizes = Sizes()
    some = [sizes.number(e) for e in (dims.mul(B, 3) or 0, dims.sub(S, 7) or 0, S)]
    most, least, none = sizes.largest([*some, some[0]]), sizes.largest(some[1:2]), sizes.largest([])
    after = sizes.number(B)
    assert sizes.largest(some) == most and unbound(sizes.expressions, ["batch", "seq"]) == []
    values = sizes.compiled(("batch", "seq"))((batch, seq))
    assert [values[i] for i in (most, least, none, after)] == [max(3 * batch, seq), max(seq - 7, 0), 0, batch]


@pytest.mark.parametrize("allowed", [(), (B,), (B, 1)])
@pytest.mark.parametrize("least", [None, 3])
def test_conditions_are_those_of_the_function(allowed: tuple[dims.Known, ...], least: int | None) -> None:
    sizes = Sizes()
    condition = Condition(sizes.number(S), tuple(map(sizes.number, allowed)), least, 'it\'s "so"')
    evaluate, plain = sizes.compiled(("batch", "seq"), [condition]), sizes.compiled(("batch", "seq"))
    for given in itertools.product(range(6), repeat=2):
        values = plain(given)
        if condition.holds(values):
            assert evaluate(given) == values
        else:
            with pytest.raises(SizesDiffer, match=f'it\'s "so": {given[1]}'):
                evaluate(given)


def test_unbound_names_are_named() -> None:
    assert unbound([dims.add(B, T) or 0, S], ["batch", "seq"]) == [str(T)]
    assert name_of(B) == "batch" and name_of(dims.mul(B, 2) or 0) is None and name_of(3) is None
