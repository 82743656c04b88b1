"""Forms of a decoder's step that are timed: weights of four bits beside reals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.compare.cases import CASES
from benchmarks.zoo import timed_quantized
from benchmarks.zoo.quantized import split_gemms
from benchmarks.zoo.trained import plain_session
from sardonyx.bench.arrays import store, stored

pytest.importorskip("onnxruntime")

WIDTH, WORDS, TOKENS = 64, 96, 6
F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def decoder() -> onnx.ModelProto:
    """One layer of causal attention, written as GPT-2 is exported: products with biases are Gemms between Reshapes."""
    rng = np.random.default_rng(3)

    def drawn(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / WIDTH**0.5).astype(np.float32)

    constants = {
        "words": drawn(WORDS, WIDTH), "places": drawn(TOKENS, WIDTH), "head": drawn(WIDTH, WORDS),
        "wq": drawn(WIDTH, WIDTH), "bq": drawn(WIDTH), "wk": drawn(WIDTH, WIDTH), "bk": drawn(WIDTH),
        "wv": drawn(WIDTH, WIDTH), "bv": drawn(WIDTH), "low": np.float32(-1e4), "zero": np.array(0),
        "one": np.array(1), "rows": np.array([-1, WIDTH]), "image": np.array([1, 1, -1, WIDTH]),
        "lengths": np.array([0, 1, 2]), "second": np.array([1]),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Gather", ["words", "input_ids"], ["word"]),
        node("Gather", ["places", "position_ids"], ["place"]),
        node("Add", ["word", "place"], ["x"]),
        node("Reshape", ["x", "rows"], ["flat"]),
        *(node("Gemm", ["flat", f"w{p}", f"b{p}"], [f"{p}_rows"], transB=int(p == "k")) for p in "qkv"),
        *(node("Reshape", [f"{p}_rows", "image"], [p]) for p in "qkv"),
        node("Concat", ["past_key_values.0.key", "k"], ["present.0.key"], axis=2),
        node("Concat", ["past_key_values.0.value", "v"], ["present.0.value"], axis=2),
        node("Transpose", ["present.0.key"], ["k_turned"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "k_turned"], ["scores"]),
        node("Shape", ["attention_mask"], ["mask_shape"]),
        node("Gather", ["mask_shape", "one"], ["total"]),
        node("Range", ["zero", "total", "one"], ["keys"]),
        node("Unsqueeze", ["position_ids", "second"], ["heads_of_places"]),
        node("Transpose", ["heads_of_places"], ["queries"], perm=[0, 2, 1]),
        node("Less", ["queries", "keys"], ["later"]),
        node("Unsqueeze", ["later", "second"], ["hidden"]),
        node("Where", ["hidden", "low", "scores"], ["masked"]),
        node("Softmax", ["masked"], ["weights"], axis=-1),
        node("MatMul", ["weights", "present.0.value"], ["read"]),
        node("Squeeze", ["read", "second"], ["state"]),
        node("MatMul", ["state", "head"], ["logits"]),
    ]
    value = helper.make_tensor_value_info
    past = [value(f"past_key_values.0.{p}", F32, [1, 1, "past", WIDTH]) for p in ("key", "value")]
    present = [value(f"present.0.{p}", F32, [1, 1, "total", WIDTH]) for p in ("key", "value")]
    tokens = [value("input_ids", I64, [1, "s"]), value("attention_mask", I64, [1, "total"])]
    inputs = [*tokens, value("position_ids", I64, [1, "s"]), *past]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [value("logits", F32, [1, "s", WORDS]), *present], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write_decoder(folder: Path) -> dict[str, np.ndarray]:
    """The model and the feeds of its case, as the zoo writes them; gives the feeds."""
    folder.mkdir()
    onnx.save(decoder(), folder / "gpt2-past.onnx")
    ids = np.random.default_rng(4).integers(0, WORDS, (1, TOKENS))
    empty = np.zeros((1, 1, 0, WIDTH), np.float32)
    feeds = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(TOKENS)[None],
        "past_key_values.0.key": empty,
        "past_key_values.0.value": empty,
    }
    case = next(case for case in CASES if case.model == "gpt2-past")
    store(case.feeds(folder), **{"in": feeds})
    return feeds


def test_a_decoder_step_is_made_with_weights_of_four_bits_and_of_reals(tmp_path: Path) -> None:
    floats, out = tmp_path / "floats", tmp_path / "out"
    feeds = write_decoder(floats)
    out.mkdir()
    for form in timed_quantized.WEIGHT_FORMS:
        timed_quantized.build(f"gpt2-past-{form}", floats, out)
    fed = stored(out / "gpt2-past-int4.npz", "in")
    assert fed["input_ids"].shape == (1, 1) and fed["past_key_values.0.key"].shape == (1, 1, TOKENS - 1, WIDTH)
    (whole,) = plain_session(floats / "gpt2-past.onnx").run(["logits"], feeds)
    float_step = stored(out / "gpt2-past-float.npz", "told")["logits"]
    np.testing.assert_allclose(float_step[:, 0], whole[:, -1], atol=1e-5)
    int4_step = stored(out / "gpt2-past-int4.npz", "told")["logits"]
    error = np.linalg.norm(int4_step - float_step) / np.linalg.norm(float_step)
    assert 1e-3 < error < 0.3
    nodes = onnx.load(out / "gpt2-past-int4.onnx").graph.node
    assert [node.op_type for node in nodes].count("GatherBlockQuantized") == 2, "words and places"
    attributes = [
        {a.name: helper.get_attribute_value(a) for a in node.attribute}
        for node in nodes
        if node.op_type == "MatMulNBits"
    ]
    assert [(a["bits"], a["block_size"]) for a in attributes] == [(4, 32)] * 4
    assert (floats / "gpt2-past.onnx").read_bytes() == (out / "gpt2-past-float.onnx").read_bytes()


def test_gemms_become_products_and_sums_of_the_same_meaning(tmp_path: Path) -> None:
    model = decoder()
    (scaled,) = (node for node in model.graph.node if "wq" in node.input)
    scaled.attribute.append(helper.make_attribute("alpha", 0.5))
    onnx.save(model, tmp_path / "before.onnx")
    split_gemms(model)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, tmp_path / "after.onnx")
    assert [node.op_type for node in model.graph.node].count("Gemm") == 1, "one is scaled"
    names = {t.name for t in model.graph.initializer}
    assert "wk" not in names and "wk_transposed" in names
    feeds = write_decoder(tmp_path / "floats")
    before, after = (plain_session(tmp_path / f"{name}.onnx").run(["logits"], feeds) for name in ("before", "after"))
    np.testing.assert_allclose(after[0], before[0], atol=1e-5)
