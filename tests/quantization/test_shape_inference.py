"""Models prepared for quantization: the same numbers, with all shapes, in files of the form asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import sardonyx
from sardonyx.errors import InvalidArgument, NoSuchFile
from sardonyx.quantization import preprocess
from sardonyx.quantization.shape_inference import quant_pre_process
from tests.quantization.models import image_network, samples, transformer_layer
from tests.transformers.models import encoder, feeds

MODELS = {"images": image_network, "transformer": transformer_layer}


def same(a: Any, b: Any, fed: Any) -> None:
    x, y = (sardonyx.InferenceSession(str(m)).run(None, fed)[0] for m in (a, b))
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(str(b), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(x, session.run(None, fed)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("skip_optimization", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_prepared_models(name: str, skip_optimization: bool, tmp_path: Path) -> None:
    model, source, target = MODELS[name](), tmp_path / "m.onnx", tmp_path / "p.onnx"
    onnx.save(model, source)
    quant_pre_process(source, target, skip_optimization=skip_optimization)
    made = onnx.load(target)
    onnx.checker.check_model(made, full_check=True)
    same(source, target, samples(model)[0])
    known = {v.name: v.type.tensor_type for v in (*made.graph.value_info, *made.graph.output)}
    for node in made.graph.node:
        for out in node.output:
            assert known[out].HasField("shape"), out
    if skip_optimization:
        assert [n.op_type for n in made.graph.node] == [n.op_type for n in model.graph.node]
    assert {p.key: p.value for p in made.metadata_props}["onnx.quant.pre_process"] == "onnxruntime.quant"


def test_fusions_and_metadata_are_seen_by_onnxruntimes_quantizer(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,8,8] x) => (float[1,4,8,8] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w) y = BatchNormalization (c, s, b, m, v) }"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 3, 3, 3), "s": (4,), "b": (4,), "m": (4,), "v": (4,)}
    arrays = {n: np.abs(rng.standard_normal(s)).astype(np.float32) for n, s in shapes.items()}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    quant_pre_process(model, tmp_path / "p.onnx")
    made = onnx.load(tmp_path / "p.onnx")
    assert [n.op_type for n in made.graph.node] == ["Conv"]
    utils = pytest.importorskip("onnxruntime.quantization.quant_utils", reason="onnxruntime is not installed")
    assert utils.model_has_pre_process_metadata(made)


def test_models_with_contrib_operators_keep_them(tmp_path: Path) -> None:
    fused = sardonyx.optimize_model(encoder()).to_proto()
    assert "com.microsoft" in {n.domain for n in fused.graph.node}
    quant_pre_process(fused, tmp_path / "p.onnx")
    made = onnx.load(tmp_path / "p.onnx")
    assert {n.op_type for n in fused.graph.node if n.domain} <= {n.op_type for n in made.graph.node}
    onnx.save(fused, tmp_path / "m.onnx")
    same(tmp_path / "m.onnx", tmp_path / "p.onnx", feeds())


def test_old_opsets_are_raised(tmp_path: Path) -> None:
    text = """<ir_version: 4, opset_import: ["" : 9]> g (float[1,3,4,4] x) => (float[1,3,8,8] y) {
        s = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> () y = Upsample <mode = "nearest"> (x, s) }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    for skip in (False, True):
        quant_pre_process(tmp_path / "m.onnx", tmp_path / "p.onnx", skip_optimization=skip)
        made = onnx.load(tmp_path / "p.onnx")
        assert made.opset_import[0].version >= 11 and "Resize" in {n.op_type for n in made.graph.node}
        same(tmp_path / "m.onnx", tmp_path / "p.onnx", {"x": np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4)})


@pytest.mark.parametrize("one_file", [False, True])
def test_weights_beside_the_model(one_file: bool, tmp_path: Path) -> None:
    model = transformer_layer()
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    folder = tmp_path / "made"
    folder.mkdir()
    location = "weights.bin" if one_file else None
    quant_pre_process(
        tmp_path / "m.onnx", folder / "p.onnx", save_as_external_data=True, all_tensors_to_one_file=one_file,
        external_data_location=location, external_data_size_threshold=100,
    )  # fmt: skip
    names = {p.name for p in folder.iterdir()}
    assert names == {"p.onnx", "weights.bin"} if one_file else len(names) > 3
    same(tmp_path / "m.onnx", folder / "p.onnx", samples(model)[0])


def test_the_command(tmp_path: Path) -> None:
    onnx.save(image_network(), tmp_path / "m.onnx")
    files = ["--input", str(tmp_path / "m.onnx"), "--output", str(tmp_path / "p.onnx")]
    preprocess.main([*files, "--skip_symbolic_shape", "True", "--skip_onnx_shape"])
    same(tmp_path / "m.onnx", tmp_path / "p.onnx", samples(image_network())[0])
    with pytest.raises(SystemExit):
        preprocess.main([*files, "--skip_optimization", "perhaps"])


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    target = tmp_path / "p.onnx"
    for options, match in (
        ({}, "input_model"),
        ({"input_model": image_network()}, "output_model_path"),
        ({"input_model_path": image_network(), "output_model_path": target, "skip": 1}, "unknown"),
        ({"input_model": image_network(), "output_model_path": target, "external_data_location": "w"}, "one file"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            quant_pre_process(**options)  # type: ignore[arg-type]
    with pytest.raises(NoSuchFile):
        quant_pre_process(tmp_path / "none.onnx", target)
    assert not target.exists()
