"""Which nodes stay in f32 when a model is converted within tolerances, and that what is written keeps to them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, parser

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.quantization import (
    auto_convert_mixed_precision,
    auto_convert_mixed_precision_model_path,
    mixed_precision,
)
from tests.quantization.models import image_network, samples, transformer_layer

X = {"x": np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)}
NARROW = {"float16": (TensorProto.FLOAT16, np.float16), "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}


def parse(body: str) -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[2,3] x) => (float[2,3] y) {{ {body} }}'
    )


CANCELLING = parse(
    "a = Tanh(x) c = Constant<value_float=4096.0>() [add] b = Add(a, c) [sub] d = Sub(b, c) e = Neg(d) y = Tanh(e)"
)
LARGE = parse("c = Constant<value_float=500.0>() b = Mul(x, c) [square] d = Mul(b, b) [root] e = Sqrt(d) y = Tanh(e)")


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    session = sardonyx.InferenceSession(model.SerializeToString())
    kinds = {"tensor(float16)": np.float16, "tensor(bfloat16)": ml_dtypes.bfloat16}
    types = {i.name: kinds.get(i.type, np.float32) for i in session.get_inputs()}
    return session.run(None, {k: v.astype(types[k]) for k, v in feeds.items()})[0].astype(np.float32)


def test_nodes_that_cancel_stay_wide() -> None:
    found = mixed_precision(CANCELLING, X, rtol=1e-2, atol=1e-2)
    assert set(found.kept) == {"add", "sub"} and found.nodes == 6
    assert "less accurate" in found.kept["add"] and "4 of 6 nodes are in float16" in str(found)
    np.testing.assert_allclose(run(found.model, X), run(CANCELLING, X), rtol=1e-2, atol=1e-2)
    assert [n.op_type for n in found.model.graph.node].count("Cast") == 3


def test_nodes_beyond_the_range_stay_wide() -> None:
    found = mixed_precision(LARGE, X, atol=1e-2)
    assert set(found.kept) == {"square", "root"} and found.trials == 1
    assert "its result 'd' reaches" in found.kept["square"] and "its operand 'd'" in found.kept["root"]
    assert not mixed_precision(LARGE, X, atol=2e-2, kind="bfloat16").kept


@pytest.mark.parametrize("keep", [False, True], ids=["narrow borders", "wide borders"])
@pytest.mark.parametrize("kind", NARROW)
def test_networks_within_tolerances(kind: str, keep: bool) -> None:
    for source, atol in ((transformer_layer(), 5e-2), (image_network(), 1e-2)):
        data = samples(source)
        found = mixed_precision(source, data, rtol=0, atol=atol, kind=kind, keep_io_types=keep)
        model = found.model
        onnx.checker.check_model(model, full_check=True)
        border = {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
        assert border == {TensorProto.FLOAT if keep else NARROW[kind][0]}
        assert len(found.kept) < found.nodes
        assert any(t.data_type == NARROW[kind][0] for t in model.graph.initializer)
        for feeds in data:
            np.testing.assert_allclose(run(model, feeds), run(source, feeds), rtol=0, atol=atol)


def test_the_users_function_decides() -> None:
    source = image_network()
    seen = []

    def same_class(expected: list[Any], found: list[Any]) -> bool:
        seen.append(found[0].dtype)
        return bool((expected[0].argmax(axis=1) == found[0].argmax(axis=1)).all())

    model = auto_convert_mixed_precision(source, samples(source)[0], same_class, keep_io_types=True)
    assert len(seen) >= 3 and set(seen) == {np.dtype(np.float32)}
    assert {t.data_type for t in model.graph.initializer} == {TensorProto.FLOAT16}
    both = mixed_precision(CANCELLING, X, validate_fn=lambda a, b: True, rtol=1e-2, atol=1e-2)
    assert set(both.kept) == {"add", "sub"}


def test_users_lists_and_limits(caplog: pytest.LogCaptureFixture) -> None:
    found = mixed_precision(LARGE, X, atol=1e-2, node_block_list=["square"], op_block_list=["Tanh"])
    assert found.kept["square"] == "in node_block_list"
    types = {n.op_type: n for n in found.model.graph.node if n.op_type in ("Tanh", "Cast")}
    assert "Cast" in types
    short = mixed_precision(CANCELLING, X, rtol=1e-2, atol=1e-2, max_trials=2)
    assert any("not tried" in why for why in short.kept.values())
    np.testing.assert_allclose(run(short.model, X), run(CANCELLING, X), rtol=1e-2, atol=1e-2)
    with caplog.at_level(logging.WARNING):
        none = mixed_precision(parse("y = Exp(x)"), X, rtol=0, atol=0, keep_io_types=True)
    assert len(none.kept) == 1 and "no node could be converted" in caplog.text
    np.testing.assert_array_equal(run(none.model, X), run(parse("y = Exp(x)"), X))


def test_masks_and_nodes_without_names() -> None:
    """The most negative f32 in a mask stands for minus infinity; bodies are converted with their node."""
    masked = parse(
        "z = Constant<value_float=0.0>() m = Constant<value_float=-3.4028234663852886e38>() c = Less(x, z) "
        "b = Where(c, m, x) s = Softmax(b) y = Neg(s)"
    )
    found = mixed_precision(masked, X, atol=1e-2)
    assert not found.kept and np.isfinite(run(found.model, X)).all()
    branching = parse(
        "t = Constant<value_int=1>() b = Cast<to=9>(t) y = If(b) <then_branch = p () => (float[2,3] u) "
        "{ u = Exp(x) }, else_branch = q () => (float[2,3] v) { v = Neg(x) }>"
    )
    found = mixed_precision(branching, X, rtol=1e-2, atol=1e-2)
    assert not found.kept
    onnx.checker.check_model(found.model, full_check=True)


@pytest.mark.parametrize("location", [None, "weights.bin"])
def test_files(tmp_path: Path, location: str | None) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "half.onnx"
    model = transformer_layer(hidden=64)
    onnx.save(model, source)
    feeds = samples(model)[0]
    auto_convert_mixed_precision_model_path(source, feeds, target, location=location, rtol=0, atol=3e-2)
    assert (tmp_path / "weights.bin").exists() is (location is not None)
    assert target.stat().st_size < 0.6 * source.stat().st_size
    session = sardonyx.InferenceSession(str(target))
    np.testing.assert_allclose(session.run(None, feeds)[0], run(model, feeds), rtol=0, atol=3e-2)


BAD = {
    "no tolerance": (dict(), "how accurate"),
    "a negative tolerance": (dict(rtol=-1), "tolerance"),
    "a metric that refuses all": (dict(validate_fn=lambda a, b: False), "own outputs"),
    "no function": (dict(validate_fn=3), "not callable"),
    "no data": (dict(data=[], rtol=1e-2), "no data"),
    "another kind": (dict(kind="int8", rtol=1e-2), "float16 or bfloat16"),
    "a wrong name": (dict(data={"z": X["x"]}, rtol=1e-2), "z"),
    "NaN": (dict(data={"x": X["x"] * np.float32(np.nan)}, rtol=1e-2), "NaN"),
    "no trials": (dict(rtol=1e-2, max_trials=0), "max_trials"),
    "borders too coarse": (dict(rtol=0, atol=0), "keep_io_types"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_told(case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(InvalidArgument, match=message):
        mixed_precision(CANCELLING, **{"data": X, **options})
