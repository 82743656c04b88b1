"""Wrong rewrites are found by their numbers and taken back; right ones are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sardonyx.errors import InvalidArgument
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node
from sardonyx.model.text import from_text
from sardonyx.optimize import feeds, manager
from sardonyx.optimize.api import Optimized, optimize_model
from sardonyx.optimize.check import difference
from tests.optimize.graphs import parse
from tests.optimize.planted import RIGHT_NEG, WRONG_TANH, flip_softmax, planted, replaces


def test_a_wrong_rewrite_is_rolled_back_and_the_right_ones_stay() -> None:
    model = parse("a = Tanh(x) b = Neg(a) c = Tanh(b) y = Neg(c)")
    with planted("basic", WrongTanh=WRONG_TANH, RightNeg=RIGHT_NEG):
        result = optimize_model(model, "basic", check=True)
        unchecked = optimize_model(model, "basic")
    assert result.statistics() == {"Mul": 2, "Tanh": 2}
    assert [entry.name for entry in result.report.rolled_back] == ["WrongTanh", "WrongTanh"]
    assert "relative error" in result.report.rolled_back[0].reason
    assert "rolled back\n  WrongTanh" in str(result)
    assert unchecked.statistics() == {"Mul": 4}


def test_a_rewrite_that_cannot_run_is_rolled_back() -> None:
    bad = replaces("Neg", lambda op, node: op.Reshape(node.inputs[0], op.const([7, 7])))
    with planted("basic", Reshaped=bad):
        result = optimize_model(parse("y = Neg(x)"), "basic", check=True)
    assert result.statistics() == {"Neg": 1}
    assert "does not run" in result.report.rolled_back[0].reason


QDQ = (
    "s = Constant<value_float=0.02>() z = Constant<value=int8 {3}>() u = QuantizeLinear(x, s, z) "
    "d = DequantizeLinear(u, s, z) k = Constant<value_float=8.0>() m = Mul(d, k) p = Constant<value_float=0.1>() "
    "q = QuantizeLinear(m, p, z) r = Transpose<perm=[1,0]>(q) y = DequantizeLinear(r, p, z)"
)
"""A step of the first quantization is 1.6 steps of the second one."""


def quantizes(move: float) -> manager.Pass:
    """A pass that writes Quantize(x) and Quantize(Dequantize(u) * k) anew, all elements moved by ``move`` steps."""

    def write(op: Builder, node: Node) -> object:
        x, scale, zero = node.inputs
        product = x.producer
        if product is not None:
            x = op.Mul(op.DequantizeLinear(*product.inputs[0].producer.inputs), product.inputs[1])
        steps = op.Floor(op.Add(op.Add(op.Div(x, scale), op.Cast(zero, to=1)), op.const(0.5 + move)))
        return op.Cast(op.Clip(steps, op.const(-128.0), op.const(127.0)), to=3)

    return replaces("QuantizeLinear", write)


def quantized(move: float) -> Optimized:
    x = np.random.default_rng(0).standard_normal((40, 50), np.float32)
    model = parse(QDQ, inputs="float[40,50] x", outputs="float[50,40] y")
    with planted("basic", Quantizes=quantizes(move)):
        return optimize_model(model, "basic", check=True, feeds={"x": x})


def test_a_step_of_rounding_is_not_carried_into_the_next_region() -> None:
    result = quantized(0.2)
    assert not result.report.rolled_back
    assert result.statistics()["Floor"] == 2 and "QuantizeLinear" not in result.statistics()


@pytest.mark.parametrize("zero, reason", [(1, "steps off in the mean"), (-1, "in the mean"), (20, "more than a step")])
def test_a_wrong_zero_point_is_rolled_back(zero: int, reason: str) -> None:
    result = quantized(zero)
    assert [entry.name for entry in result.report.rolled_back] == ["Quantizes", "Quantizes"]
    assert all(reason in entry.reason for entry in result.report.rolled_back)
    assert result.statistics()["QuantizeLinear"] == 2 and "Floor" not in result.statistics()


def test_small_integers_that_nothing_rounded_are_compared_as_they_are() -> None:
    model = parse("z = Sub(x, x) b = Greater(x, z) y = Cast<to=2>(b)", outputs="uint8[2,3] y")
    wrong = replaces("Cast", lambda op, node: op.Cast(op.Not(node.inputs[0]), to=2))
    with planted("basic", Flips=wrong):
        result = optimize_model(model, "basic", check=True)
    assert [entry.name for entry in result.report.rolled_back] == ["Flips"]


def test_a_change_in_place_shows_in_the_whole_and_its_pass_is_left_out() -> None:
    model = parse("a = Neg(x) y = Softmax<axis=1>(a)")
    with planted("basic", FlipSoftmax=flip_softmax, RightNeg=RIGHT_NEG):
        result = optimize_model(model, "basic", check=True)
    (entry,) = result.report.rolled_back
    assert entry.name == "FlipSoftmax" and "'y'" in entry.reason
    assert result.statistics() == {"Mul": 1, "Softmax": 1}
    assert next(n for n in result.model.graph.nodes if n.op_type == "Softmax").attrs["axis"] == 1


IF = (
    "c = Constant<value_int=1>() b = Cast<to=9>(c) s = ReduceSum<keepdims=0>(x) big = Greater(s, s) "
    "y = If(big) <then_branch = t () => (float[2,3] p) { p = Tanh(x) }, "
    "else_branch = e () => (float[2,3] q) { r = Tanh(x) q = Neg(r) }>"
)


def in_subgraphs(pass_: object) -> object:
    def run(graph, log):  # type: ignore[no-untyped-def]
        for node in graph.nodes:
            for _, sub in node.subgraphs():
                pass_(sub, log)  # type: ignore[operator]

    return run


def test_a_branch_that_ran_is_judged_and_one_that_did_not_is_named() -> None:
    with planted("basic", WrongTanh=in_subgraphs(WRONG_TANH)):  # type: ignore[arg-type]
        result = optimize_model(parse(IF), "basic", check=True)
    assert len(result.report.rolled_back) == 1
    assert result.unchecked and all("not checked" in note for note in result.unchecked)
    assert "not checked" in str(result)


LOOP = (
    "n = Constant<value_int=3>() t = Constant<value_int=1>() c = Cast<to=9>(t) "
    "y = Loop(n, c, x) <body = g (int64 i, bool go, float[2,3] s) => (bool on, float[2,3] u) "
    "{ on = Identity(go) v = Tanh(s) w = Neg(v) u = Add(w, x) }>"
)


def test_the_last_trip_of_a_loop_is_judged() -> None:
    with planted("basic", WrongTanh=in_subgraphs(WRONG_TANH), RightNeg=in_subgraphs(RIGHT_NEG)):  # type: ignore[arg-type]
        result = optimize_model(parse(LOOP), "basic", check=True)
    assert [entry.name for entry in result.report.rolled_back] == ["WrongTanh"]
    assert "Tanh" in result.statistics() and "Neg" not in result.statistics()


def test_random_numbers_are_no_disagreement() -> None:
    result = optimize_model(parse("a = RandomNormal<shape=[2,3]>() b = Identity(a) y = Add(x, b)"), check=True)
    assert not result.report.rolled_back
    assert any("random" in note for note in result.unchecked)


def test_the_users_feeds_are_used_and_checked() -> None:
    model = parse("y = Tanh(x)")
    with planted("basic", WrongTanh=WRONG_TANH):
        zeros = optimize_model(model, "basic", check=True, feeds={"x": np.zeros((2, 3), np.float32)})
    assert zeros.statistics() == {"Mul": 1}, "on zeros the wrong rewrite cannot be told from the right one"
    with pytest.raises(InvalidArgument, match="no such input"):
        optimize_model(model, check=True, feeds={"z": 1})
    with pytest.raises(InvalidArgument, match="lack"):
        optimize_model(model, check=True, feeds={})


SAME = {
    "rounding": (np.float32([1, 2]), np.float32([1.00001, 2])),
    "noise around zero": (np.float32([0, 1]), np.float32([5e-7, 1])),
    "NaN and infinity in place": (np.float32([np.nan, np.inf, 1]), np.float32([np.nan, np.inf, 1])),
    "one level of eight bits": (np.uint8([3, 4]), np.uint8([4, 4])),
    "one level of sixteen bits": (np.int16([300, 4]), np.int16([301, 4])),
    "sequences": ([np.int64([1])], [np.int64([1])]),
    "nothing": (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)),
}
OTHER = {
    "a wrong element beside a mask": (np.float32([1, 2, 3, 4, -3e38]), np.float32([1, 2, 3.1, 4, -3e38])),
    "another mask": (np.float32([1, 2, 3, 4, -1e9]), np.float32([1, 2, 3, 4, -1e8])),
    "NaN elsewhere": (np.float32([np.nan, 1]), np.float32([1, np.nan])),
    "the other infinity": (np.float32([np.inf, 1]), np.float32([-np.inf, 1])),
    "another shape": (np.float32([[1]]), np.float32([1])),
    "another type": (np.float32([1]), np.float64([1])),
    "another integer": (np.int64([1, 2]), np.int64([1, 3])),
    "two levels of eight bits": (np.uint8([3]), np.uint8([5])),
    "one level everywhere": (np.uint8([3, 4, 5, 6]), np.uint8([4, 5, 6, 7])),
    "another text": (np.array(["a"], object), np.array(["b"], object)),
    "a shorter sequence": ([np.int64([1])], []),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME.keys())
def test_difference_of_equal_values(pair: tuple[object, object]) -> None:
    assert difference(*pair) is None


@pytest.mark.parametrize("pair", OTHER.values(), ids=OTHER.keys())
def test_difference_of_unequal_values(pair: tuple[object, object]) -> None:
    assert difference(*pair) is not None


def test_generated_feeds_fit_their_inputs() -> None:
    model = from_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (int64[batch, sequence] ids, int64[batch, "past + sequence"] '
        "attention_mask, float[batch, sequence, 8] x, uint8[N, 3, H, W] image, bool[2] flags, string[2] words, "
        "int64 rate, seq(float[2]) parts, float[11, 4] table) => (float[batch, sequence, 4] y, bool is16)"
        "{ y = Gather(table, ids) k = Constant<value_int=16000>() is16 = Equal(rate, k) }"
    )
    made = feeds.generate(model.graph)
    assert made["ids"].max() < 11 and made["ids"].dtype == np.int64
    batch, sequence = made["ids"].shape
    assert made["x"].shape == (batch, sequence, 8) and made["x"].dtype == np.float32 and made["x"].std() > 0.5
    mask = made["attention_mask"]
    assert mask.shape[1] > sequence and set(np.unique(mask)) == {0, 1} and mask.any(1).all() and mask[0].all()
    assert made["rate"] == 16000 and made["image"].dtype == np.uint8 and made["image"].max() > 1
    assert made["flags"].dtype == bool and isinstance(made["words"][0], str) and len(made["parts"]) == 2
    assert all(np.array_equal(a, b) for a, b in zip(made["ids"], feeds.generate(model.graph)["ids"], strict=True))


def test_real_models_pass_their_check(models_dir: Path) -> None:
    for name in ("g2p__g2pid-bert-pron", "cls__mnist-torchdynamo-opset18", "vad__pulsevad-2.1k"):
        result = optimize_model(models_dir / f"{name}.onnx", check=True)
        assert not result.report.rolled_back, result.report.rolled_back
        assert not result.unchecked
