"""Memory that is made as a part of other memory: the same results, and less of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sardonyx.dtypes import f32
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.lower import interpret, views
from sardonyx.lower.fusion.inside import placed_inside
from sardonyx.lower.groups import Expression, Group, Loop, Storage
from tests.comparing import assert_same
from tests.lower import agree

INPUTS = (
    "float[1,4,6,6] x, float[4,4,1,1] w, float[4] b, float[4,8,1,1] w2, float[4,12,1,1] w3, float[2,2,1,1] v, "
    "float[2] d, float[N,4,6,6] m, float[2,1,2,2] z"
)
CONV = "a = Conv(x, w, b) e = Conv(a, w, b) "
HALVES = "a = Conv(x, w, b) p, q = Split<axis = 1, num_outputs = 2>(a) e = Conv(q, v, d) "
MOVED = {
    "joined, and read": (CONV + "k = Concat<axis = 1>(a, e) y = Conv(k, w2, b)", {"k"}),
    "behind another": (CONV + "k = Concat<axis = 1>(x, a) f = Conv(k, w2, b) y = Add(e, f)", {"k", "f"}),
    "read in halves": (
        HALVES + "k = Concat<axis = 1>(p, q, e, x) s = Softmax<axis = 3>(k) y = Relu(s)", {"k"}
    ),
    "made by a loop": ("a = Exp(x) e = Conv(a, w, b) k = Concat<axis = 1>(a, e) y = Conv(k, w2, b)", {"k"}),
    "joined, and joined again": (
        CONV + "k = Concat<axis = 1>(a, e) f = Conv(k, w2, b) l = Concat<axis = 1>(k, f) y = Conv(l, w3, b)", {"l"}
    ),
    "along rows": (CONV + "k = Concat<axis = 0>(a, e) s = Conv(k, w, b) y = Relu(s)", {"k"}),
    "along an open axis": ("a = Conv(m, w, b) e = Conv(a, w, b) k = Concat<axis = 0>(a, e) y = Conv(k, w, b)", {"k"}),
}  # fmt: skip
LEFT = {
    "a batch": "a = Conv(m, w, b) e = Conv(a, w, b) k = Concat<axis = 1>(a, e) y = Conv(k, w2, b)",
    "along columns": CONV + "k = Concat<axis = 3>(a, e) y = Conv(k, w, b)",
    "twice in one": "a = Conv(x, w, b) k = Concat<axis = 1>(a, a) y = Conv(k, w2, b)",
    "a loop begins with it": (
        "a = Conv(x, w, b) n = Constant<value_int = 3>() t = Constant<value = bool {1}>() f = Loop<body = trip "
        "(int64 i, bool c, float[1,4,6,6] s) => (bool d, float[1,4,6,6] r) { d = Identity(c) r = Tanh(s) }>(n, t, a) "
        "y = Add(a, f)"
    ),
    "in two": CONV + "k = Concat<axis = 3>(a, e) l = Concat<axis = 3>(e, a) s = Add(k, l) y = Conv(s, w, b)",
}


def temporaries(groups: tuple[Group, ...] | list[Group]) -> set[str]:
    return {str(v.storage)[10:] for g in groups for v in g.writes if v.storage.kind == "temporary"}


@pytest.mark.parametrize("name", [*MOVED, *LEFT])
def test_results_stay(name: str) -> None:
    body = MOVED[name][0] if name in MOVED else LEFT[name]
    graph = agree.parse(body, INPUTS, "float[A,B,C,D] y")
    part, found = agree.part_of(graph), agree.lowered(graph)
    made = replace(found, groups=tuple(placed_inside(found.groups)))
    given = agree.feeds(part, {"N": 3})
    want = Program(part.nodes, part.inputs, part.outputs, bind).run(given, RunContext())
    for theirs, mine in zip(want, interpret.run(made, given), strict=True):
        assert_same(mine, theirs, agree.ROUNDING)
    if name in MOVED:
        assert temporaries(made.groups) == MOVED[name][1]
        assert temporaries(made.groups) < temporaries(found.groups)
    else:
        assert made.groups == found.groups


def test_values_with_other_readers_keep_their_memory() -> None:
    graph = agree.parse(MOVED["joined, and read"][0], INPUTS, "float[A,B,C,D] y")
    groups = agree.lowered(graph).groups
    a = next(v.storage for g in groups for v in g.writes if str(v.storage) == "temporary:a")
    assert tuple(placed_inside(groups, {a})) == groups


def test_copies_of_overwritten_memory_are_kept() -> None:
    """A copy into memory to which something else is written later, where the first is read again."""
    source, first, whole, read = (Storage(kind, f32, 4) for kind in ("input", "temporary", "temporary", "output"))

    def copy(of: Storage, to: Storage) -> Loop:
        return Loop((), (4,), 0, (seen[of],), Expression((f32,), (), (0,)), (seen[to],))

    seen = {s: views.dense(s, (4,)) for s in (source, first, whole, read)}
    groups = [copy(source, first), copy(first, whole), copy(source, whole), copy(first, read)]
    assert placed_inside(groups) == groups
