import numpy as np
import pytest

from sardonyx import errors
from sardonyx.ops import registry
from tests.ops.peers import normal


def run(name, *inputs, **attributes):
    return registry.find("", name).numpy(*inputs, **attributes)


A, B, C = normal(2), normal(3), normal(4)


def is_same(got, expected):
    return len(got) == len(expected) and all(g is e for g, e in zip(got, expected, strict=True))


INSERTS = [(None, [A, B, C]), (0, [C, A, B]), (1, [A, C, B]), (2, [A, B, C]), (-1, [A, C, B]), (-2, [C, A, B])]


@pytest.mark.parametrize(("position", "expected"), INSERTS)
def test_insert(position, expected):
    before = [A, B]
    assert is_same(run("SequenceInsert", before, C, None if position is None else np.array(position)), expected)
    assert is_same(before, [A, B])


@pytest.mark.parametrize(("position", "expected"), [(None, [A, B]), (0, [B, C]), (-2, [A, C])])
def test_erase(position, expected):
    assert is_same(run("SequenceErase", [A, B, C], None if position is None else np.array(position)), expected)


def test_construct_at_and_length():
    assert is_same(run("SequenceConstruct", A, B), [A, B])
    assert run("SequenceEmpty") == []
    assert run("SequenceAt", [A, B, C], np.array(-1)) is C
    length = run("SequenceLength", [A, B])
    assert length.dtype == np.int64 and length.shape == () and length == 2


@pytest.mark.parametrize("name", ["SequenceAt", "SequenceErase"])
@pytest.mark.parametrize("position", [2, -3])
def test_positions_out_of_range_are_refused(name, position):
    with pytest.raises(errors.InvalidArgument, match=rf"{name}.*\[-2, 1\].*{position}"):
        run(name, [A, B], np.array(position))
    with pytest.raises(errors.InvalidArgument, match=name):
        run(name, [], np.array(0))


def test_inserts_out_of_range_are_refused():
    with pytest.raises(errors.InvalidArgument, match=r"\[-2, 2\]"):
        run("SequenceInsert", [A, B], C, np.array(3))


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_concat(axis):
    parts = [normal(2, 3, seed=i) for i in range(3)]
    np.testing.assert_array_equal(run("ConcatFromSequence", parts, axis=axis), np.concatenate(parts, axis))
    np.testing.assert_array_equal(run("ConcatFromSequence", parts, axis=axis, new_axis=1), np.stack(parts, axis))


def test_concat_of_nothing_is_refused():
    with pytest.raises(errors.InvalidArgument, match="empty"):
        run("ConcatFromSequence", [], axis=0)


SPLITS = [
    (None, 0, 1, [(1, 6)] * 5), (None, 1, 0, [(5,)] * 6), (np.array(2), 0, 1, [(2, 6), (2, 6), (1, 6)]),
    (np.array([1, 5]), -1, 1, [(5, 1), (5, 5)]), (np.array([2, 3]), 0, 0, [(2, 6), (3, 6)]),
]  # fmt: skip


@pytest.mark.parametrize(("split", "axis", "keepdims", "shapes"), SPLITS)
def test_split(split, axis, keepdims, shapes):
    x = normal(5, 6)
    parts = run("SplitToSequence", x, split, axis=axis, keepdims=keepdims)
    assert [p.shape for p in parts] == shapes
    joined = np.stack(parts, axis) if parts[0].ndim == 1 else np.concatenate(parts, axis)
    np.testing.assert_array_equal(joined, x)


@pytest.mark.parametrize("split", [np.array(0), np.array([1, 2]), np.array([-1, 6])])
def test_wrong_splits_are_refused(split):
    with pytest.raises(errors.InvalidArgument, match="SplitToSequence"):
        run("SplitToSequence", normal(5), split)


def test_optionals():
    assert run("Optional", A) is A and run("Optional") is None
    assert run("OptionalGetElement", A) is A and run("OptionalGetElement", [A])[0] is A
    assert [bool(run("OptionalHasElement", v)) for v in (A, [], None)] == [True, True, False]
    assert not run("OptionalHasElement")
    with pytest.raises(errors.InvalidArgument, match="empty"):
        run("OptionalGetElement", None)
