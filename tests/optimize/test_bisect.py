"""The pass at fault is named, or the passes that are at fault together, and the first wrong rewrite."""

from __future__ import annotations

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node
from sardonyx.optimize.api import bisect_model
from tests.optimize.graphs import parse
from tests.optimize.planted import (
    RIGHT_NEG,
    WRONG_TANH,
    drop_marked,
    flip_softmax,
    mark_relus,
    planted,
    replaces,
)


def test_a_model_that_no_pass_breaks_has_no_culprit() -> None:
    model = parse("a = Tanh(x) b = Identity(a) c = Neg(b) y = Relu(c)")
    with planted("basic", RightNeg=RIGHT_NEG):
        assert bisect_model(model, "basic") is None


def test_one_wrong_pass_among_right_ones() -> None:
    model = parse("a = Neg(x) b = Tanh(a) c = Neg(b) y = Relu(c)")
    with planted("basic", RightNeg=RIGHT_NEG, WrongTanh=WRONG_TANH, MarkRelus=mark_relus):
        culprit = bisect_model(model, "basic")
    assert culprit is not None
    assert culprit.passes == ("WrongTanh",)
    assert culprit.rewrite is not None and culprit.rewrite.name == "WrongTanh"
    assert "'y'" in culprit.difference and "WrongTanh makes the answers differ" in str(culprit)


def test_two_passes_that_are_wrong_together() -> None:
    model = parse("a = Relu(x) b = Neg(a) y = Tanh(b)")
    for alone in ({"MarkRelus": mark_relus}, {"DropMarked": drop_marked}):
        with planted("basic", **alone):
            assert bisect_model(model, "basic") is None
    with planted("basic", RightNeg=RIGHT_NEG, MarkRelus=mark_relus, DropMarked=drop_marked):
        culprit = bisect_model(model, "basic")
    assert culprit is not None
    assert culprit.passes == ("MarkRelus", "DropMarked")
    assert "only after MarkRelus" in str(culprit)


def test_the_first_wrong_rewrite_of_a_pass_is_named() -> None:
    def write(op: Builder, node: Node) -> object:
        x = node.inputs[0]
        return op.Sin(x) if node.name == "third" else op.Div(op.Sinh(x), op.Cosh(x))

    wrong_third = replaces("Tanh", write)
    model = parse("a = Tanh(x) b = Tanh(a) c = Tanh(b) d = Tanh(c) y = Tanh(d)")
    for node, name in zip(model.graph.nodes, ("first", "second", "third", "fourth", "fifth"), strict=True):
        node.name, node.origin = name, (name,)
    with planted("basic", WrongThird=wrong_third):
        culprit = bisect_model(model, "basic")
    assert culprit is not None and culprit.rewrite is not None
    assert culprit.passes == ("WrongThird",) and culprit.rewrite.nodes == ("third",)


def test_a_pass_that_changes_nodes_in_place() -> None:
    with planted("basic", FlipSoftmax=flip_softmax):
        culprit = bisect_model(parse("a = Neg(x) y = Softmax<axis=1>(a)"), "basic")
    assert culprit is not None and culprit.passes == ("FlipSoftmax",) and culprit.rewrite is None


def test_feeds_and_tolerance_are_the_users() -> None:
    model = parse("y = Tanh(x)")
    with planted("basic", WrongTanh=WRONG_TANH):
        assert bisect_model(model, "basic", feeds={"x": np.zeros((2, 3), np.float32)}) is None
        assert bisect_model(model, "basic", tolerance=10.0) is None
        assert bisect_model(model, "basic", disabled=["WrongTanh"]) is None
