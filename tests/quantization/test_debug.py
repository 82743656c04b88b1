"""``debug`` on models of onnxruntime's quantizer: it says of healthy ones that they are, and finds planted faults."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.quantization import MatMulNBitsQuantizer, QuantFormat, debug, quantize_static
from tests.quantization.budget_nets import Readings
from tests.quantization.models import image_network, samples, transformer_layer

MODELS = {"images": image_network, "transformer": transformer_layer}
Edit = Callable[[Any], Any]


@contextmanager
def only_errors() -> Iterator[None]:
    """onnxruntime's quantizer advises with warnings of the root logger."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


@cache
def quantized(name: str, form: str = "QDQ", per_channel: bool = True, activations: str = "QInt8") -> onnx.ModelProto:
    return quantize(MODELS[name](), form, per_channel, activations)


def quantize(
    model: onnx.ModelProto,
    form: str,
    per_channel: bool = False,
    activations: str = "QInt8",
    weights: str = "QInt8",
    data: list[dict[str, Any]] | None = None,
) -> onnx.ModelProto:
    """What onnxruntime's quantizer makes of a model."""
    pytest.importorskip("onnxruntime")
    from onnxruntime import quantization as theirs

    class Reader(theirs.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._data = iter(samples(model, 8, 3) if data is None else data)

        def get_next(self) -> Any:
            return next(self._data, None)

    with TemporaryDirectory() as folder, only_errors():
        source, target = Path(folder) / "m.onnx", Path(folder) / "q.onnx"
        onnx.save(model, source)
        if form == "dynamic":
            theirs.quantize_dynamic(source, target, weight_type=theirs.QuantType[weights], per_channel=per_channel)
        else:
            theirs.quantize_static(
                source, target, Reader(), quant_format=theirs.QuantFormat[form], per_channel=per_channel,
                weight_type=theirs.QuantType[weights], activation_type=theirs.QuantType[activations],
            )  # fmt: skip
        return onnx.load(target)


def edited(model: onnx.ModelProto, **edits: Edit) -> onnx.ModelProto:
    """A copy with other constants."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    found = {t.name: t for t in copy.graph.initializer}
    for name, edit in edits.items():
        array = numpy_helper.to_array(found[name])
        found[name].CopyFrom(numpy_helper.from_array(np.asarray(edit(array)).astype(array.dtype), name))
    return copy


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose nodes, tensors and weights have names that say nothing."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    names = {v.name: v.name for v in (*copy.graph.input, *copy.graph.output)} | {"": ""}
    for i, node in enumerate(copy.graph.node):
        node.name = f"n{i}"
        for side in (node.input, node.output):
            side[:] = [names.setdefault(name, f"t{len(names)}") for name in side]
    for tensor in copy.graph.initializer:
        tensor.name = names.setdefault(tensor.name, f"t{len(names)}")
    del copy.graph.value_info[:]
    return copy


@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_healthy_models(name: str, form: str) -> None:
    model = MODELS[name]()
    for made in (quantized(name, form, False, "QUInt8"), renamed(quantized(name, form))):
        report = debug(model, made, samples(model))
        assert report.healthy and report.verdict.startswith("healthy"), str(report)
        assert min(report.outputs.values()) > 25 and report.runs == 4
        assert len(report.layers) > 5 and all(e.accumulated_db > 20 for e in report.layers)
        assert report.unmatched in ([], ["node_l_up"])  # a Relu folded into an addition before it


@cache
def ours(name: str, form: str, per_channel: bool) -> onnx.ModelProto:
    """What our quantizer makes of a model."""
    with TemporaryDirectory() as folder:
        target = Path(folder) / "q.onnx"
        model = MODELS[name]()
        reader = Readings(samples(model, 8, 3))
        quantize_static(model, target, reader, quant_format=QuantFormat[form], per_channel=per_channel)
        return onnx.load(target)


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_healthy_models_of_our_quantizer(form: str) -> None:
    """onnx infers no types after operators of com.microsoft, such as that of a Flatten after a pooling."""
    for name, build in MODELS.items():
        model = build()
        for made in (ours(name, form, False), renamed(ours(name, form, True))):
            report = debug(model, made, samples(model))
            assert report.healthy, str(report)
            assert all(e.local_db is not None and e.local_db > 20 for e in report.layers), str(report)


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_faults_planted_in_models_of_our_quantizer(form: str) -> None:
    model, result = image_network(), "r2_scale" if form == "QDQ" else "c2_scale"
    faults: tuple[tuple[str, Edit, str, str], ...] = (
        ("w2_scale", lambda a: a * 1.5, "node_c2", "wrong scale"),
        (result, lambda a: a / 10, "node_r2", "clipped range"),
        (result, lambda a: a * 12, "node_r2", "wrong scale"),
    )
    for name, edit, layer, cause in faults:
        first = debug(model, edited(ours("images", form, False), **{name: edit}), samples(model)).first
        assert first is not None and (first.layer, first.cause) == (layer, cause)


def test_data_quieter_than_those_of_the_calibration_are_no_error() -> None:
    model = image_network()
    quiet = [{"x": feeds["x"] * np.float32(0.08)} for feeds in samples(model)]
    report = debug(model, ours("images", "QDQ", True), quiet)
    assert report.healthy and "healthy" in report.verdict, str(report)
    found = next(f for f in report.findings if f.tensor == "x")
    assert found.severity == "warning" and "quieter" in found.change


FAULTS: dict[str, tuple[str, str, dict[str, Edit], str, str, str]] = {
    "a weight's scale": ("images", "QDQ", {"w2_scale": lambda a: a * 1.5}, "node_c2", "w2", "wrong scale"),
    "scales of some channels": (
        "images",
        "QDQ",
        {"w2_scale": lambda a: a * np.where(np.arange(16) < 6, 0.4, 1)},
        "node_c2",
        "w2",
        "wrong scale",
    ),
    "a weight's zero point": (
        "transformer",
        "QDQ",
        {"w_v_zero_point": lambda a: a + 20},
        "node_m_v",
        "w_v",
        "wrong zero point",
    ),
    "too coarse": ("images", "QDQ", {"r2_scale": lambda a: a * 12}, "node_r2", "r2", "wrong scale"),
    "clipped": ("images", "QDQ", {"r2_scale": lambda a: a / 10}, "node_r2", "r2", "clipped range"),
    "clipped in a transformer": (
        "transformer",
        "QDQ",
        {"active_scale": lambda a: a / 8},
        "node_active",
        "active",
        "clipped range",
    ),
    "shifted": ("transformer", "QDQ", {"l_v_zero_point": lambda a: a + 60}, "node_l_v", "l_v", "wrong zero point"),
    "a bias": ("images", "QDQ", {"b2_quantized_scale": lambda a: a * 5}, "node_c2", "b2", "bias scale"),
    "the input": ("images", "QDQ", {"x_scale": lambda a: a / 6}, "input x", "x", "clipped range"),
    "operators: a weight's scale": (
        "images",
        "QOperator",
        {"w2_scale": lambda a: a * 1.5},
        "node_c2",
        "w2",
        "wrong scale",
    ),
    "operators: clipped": ("images", "QOperator", {"c2_scale": lambda a: a / 10}, "node_r2", "r2", "clipped range"),
    "operators: a bias": ("images", "QOperator", {"b2_quantized": lambda a: a * 5}, "node_c2", "b2", "bias scale"),
    "operators: shifted": (
        "transformer",
        "QOperator",
        {"m_up_zero_point": lambda a: a + 60},
        "node_m_up",
        "m_up",
        "wrong zero point",
    ),
    "operators: a transformer's scale": (
        "transformer",
        "QOperator",
        {"w_up_scale": lambda a: a * 0.5},
        "node_m_up",
        "w_up",
        "wrong scale",
    ),
    "dynamic: a weight's scale": (
        "transformer",
        "dynamic",
        {"w_up_scale": lambda a: a * 2},
        "node_m_up",
        "w_up",
        "wrong scale",
    ),
}


@pytest.mark.sliced(2)
@pytest.mark.parametrize("by", ["name", "structure"])
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults(fault: str, by: str) -> None:
    name, form, edits, layer, tensor, cause = FAULTS[fault]
    model = MODELS[name]()
    made = edited(quantized(name, form), **edits)
    report = debug(model, made if by == "name" else renamed(made), samples(model))
    first = report.first
    assert first is not None, str(report)
    assert (first.layer, first.tensor, first.cause) == (layer, tensor, cause), str(report)
    assert layer in report.verdict and cause in str(report) and first.change and first.numbers


def test_numbers_of_a_finding() -> None:
    model = image_network()
    first = debug(model, edited(quantized("images"), w2_scale=lambda a: a * 1.5), samples(model)).first
    assert first is not None and first.numbers["factor"] == pytest.approx(1 / 1.5, rel=0.02)
    assert (
        first.numbers["sqnr_db"] == pytest.approx(20 * np.log10(2), abs=0.2) and first.numbers["sqnr_db_possible"] > 35
    )
    first = debug(model, edited(quantized("images"), r2_scale=lambda a: a / 10), samples(model)).first
    assert first is not None and 0.1 < first.numbers["clipped_share"] < 0.5
    assert first.numbers["scale_needed"] == pytest.approx(first.numbers["scale"] * 10, rel=0.3)


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize(
    "name, weight, axis, layer", [("images", "w2", 0, "node_c2"), ("transformer", "w_up", 1, "node_m_up")]
)
def test_a_weight_that_needs_scales_per_channel(name: str, weight: str, axis: int, layer: str, form: str) -> None:
    def outlier(w: Any) -> Any:
        w = np.moveaxis(w.copy(), axis, 0)
        w[3] *= 80
        return np.moveaxis(w, 0, axis)

    model = edited(MODELS[name](), **{weight: outlier})
    for made in (quantize(model, form, False), renamed(quantize(model, form, False))):
        report = debug(model, made, samples(model))
        found = [f for f in report.findings if f.cause == "per-tensor weight"]
        assert [(f.layer, f.tensor, f.severity) for f in found] == [(layer, weight, "error")], str(report)
        assert found[0].numbers["largest_channel"] == 3 and "per_channel" in found[0].change
    report = debug(model, quantize(model, form, True), samples(model))
    assert not [f for f in report.findings if f.cause == "per-tensor weight"]


def test_a_weight_of_one_channel() -> None:
    """Its scale and zero point per channel are vectors of one element."""
    rng = np.random.default_rng(8)
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[1, 8, 6, 6] x) => (float[1, 1, 6, 6] y)
        { y = Conv(x, w) }"""
    )
    weight = rng.standard_normal((1, 8, 1, 1)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    feeds = [{"x": rng.standard_normal((1, 8, 6, 6)).astype(np.float32)} for _ in range(3)]
    with TemporaryDirectory() as folder:
        quantize_static(model, path := Path(folder, "q.onnx"), feeds, per_channel=True)
        made = onnx.load(path)
    for name, shape in (("w_scale", [1]), ("w_zero_point", [1])):
        assert next(list(t.dims) for t in made.graph.initializer if t.name == name) == shape
    assert debug(model, made, feeds).healthy
    first = debug(model, edited(made, w_scale=lambda a: a * 1.6), feeds).first
    assert first is not None and (first.tensor, first.cause) == ("w", "wrong scale")


@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
def test_a_table_of_embeddings(form: str) -> None:
    """The product of a dynamic model multiplies by the table's scale itself: there only the product is seen to err."""
    rng = np.random.default_rng(9)
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (int64[n, 6] x) => (float[n, 6, 8] y)
        { e = Gather(table, x) y = MatMul(e, w) }"""
    )
    for name, shape in (("table", (40, 16)), ("w", (16, 8))):
        array = rng.standard_normal(shape).astype(np.float32)
        array[:, 3] *= 1 if name == "w" else 50  # a table has one scale in all formats
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.node[0].name, model.graph.node[1].name = "embed", "product"
    feeds = [{"x": rng.integers(0, 40, (2, 6))} for _ in range(3)]
    made = quantize(model, form, True, data=feeds)
    assert not [f for f in debug(model, made, feeds).findings if f.layer == "embed" and f.cause == "per-tensor weight"]
    if form == "dynamic":
        return
    for edit, cause in ((lambda a: a * 1.6, "wrong scale"), (lambda a: a + 30, "wrong zero point")):
        name = "table_scale" if cause == "wrong scale" else "table_zero_point"
        for wrong in (edited(made, **{name: edit}), renamed(edited(made, **{name: edit}))):
            first = debug(model, wrong, feeds).first
            assert first is not None and (first.layer, first.cause) == ("embed", cause)


@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
def test_an_outlier_activation(form: str) -> None:
    def gains(g: Any) -> Any:
        return np.where(np.arange(len(g)) == 5, 300, g)

    model = edited(transformer_layer(), g_norm1=gains)
    report = debug(model, quantize(model, form, True), samples(model))
    found = next(f for f in report.findings if f.cause == "outlier activation")
    assert (found.layer, found.tensor, found.severity) == ("node_norm1", "norm1", "error")
    assert found.numbers["channels"] == [5] and "SmoothQuant" in found.change


def test_a_reader_with_another_scale() -> None:
    made = onnx.ModelProto.FromString(quantized("images").SerializeToString())
    node = next(n for n in made.graph.node if n.op_type == "DequantizeLinear" and n.input[1] == "r2_scale")
    scale = next(t for t in made.graph.initializer if t.name == "r2_scale")
    made.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(2), "other"))
    node.input[1] = "other"
    first = debug(image_network(), made, samples(image_network())).first
    assert first is not None and (first.layer, first.cause) == ("node_r2", "wrong scale")
    assert first.numbers["factor"] == pytest.approx(2)


def test_a_node_that_computes_something_else() -> None:
    made = onnx.ModelProto.FromString(quantized("transformer").SerializeToString())
    node = next(n for n in made.graph.node if n.op_type == "Softmax")
    node.attribute[0].i = 1
    first = debug(transformer_layer(), made, samples(transformer_layer())).first
    assert first is not None and (first.layer, first.cause) == ("node_shares", "unexplained")


def test_weight_only_models() -> None:
    model = transformer_layer()
    for fmt in ("QOperator", "QDQ"):
        quantizer = MatMulNBitsQuantizer(model, block_size=16, quant_format=fmt)  # type: ignore[arg-type]
        quantizer.process()
        made = quantizer.model.model
        assert debug(model, made, samples(model)).healthy
        name = "w_up_scales" if fmt == "QOperator" else "w_up_DQ_scales"
        for wrong in (edited(made, **{name: lambda a: a * 1.6}), renamed(edited(made, **{name: lambda a: a * 1.6}))):
            first = debug(model, wrong, samples(model)).first
            assert first is not None and (first.layer, first.tensor, first.cause) == (
                "node_m_up",
                "w_up",
                "wrong scale",
            )


def test_sums_that_old_chips_cut_off() -> None:
    model = edited(image_network(), w2=lambda w: np.sign(w) * 0.2)
    made = quantize(model, "QDQ", True, "QUInt8")
    found = [f for f in debug(model, made, samples(model)).findings if f.cause == "saturation"]
    assert any(f.layer == "node_r2" for f in found) and all(f.severity == "warning" for f in found)
    assert found[0].numbers["largest_sum"] > 32767 and "reduce_range" in found[0].change
    signed = debug(model, quantize(model, "QDQ", True, "QInt8"), samples(model))
    assert not [f for f in signed.findings if f.cause == "saturation"]


def test_the_report() -> None:
    model = image_network()
    report = debug(model, edited(quantized("images"), r2_scale=lambda a: a / 10), samples(model), max_samples=2)
    data = json.loads(report.to_json())
    assert data["runs"] == 2 and not data["healthy"] and data["first"]["layer"] == "node_r2"
    assert {e["layer"] for e in data["layers"]} >= {"node_r1", "node_r2", "node_y"}
    assert data["outputs"]["y"] < 20
    assert report.weakest(1)[0].layer == "node_r2"
    assert "node_r2" in str(report) and "dB" in str(report)


def test_files(tmp_path: Path) -> None:
    model = transformer_layer()
    onnx.save(model, tmp_path / "m.onnx")
    onnx.save(quantized("transformer"), tmp_path / "q.onnx")
    report = debug(tmp_path / "m.onnx", str(tmp_path / "q.onnx"), iter(samples(model)))
    assert report.healthy and report.runs == 4
    assert debug(tmp_path / "m.onnx", str(tmp_path / "q.onnx"), samples(model)[0]).runs == 1


def test_what_is_wrong_is_told() -> None:
    model, made = image_network(), quantized("images")
    with pytest.raises(InvalidArgument, match="not quantized"):
        debug(model, model, samples(model))
    with pytest.raises(InvalidArgument, match="no data"):
        debug(model, made, [])
    with pytest.raises(InvalidArgument, match="inputs"):
        debug(model, made, [{"other": np.zeros(3)}])
    with pytest.raises(RuntimeException, match="not finite"):
        debug(model, made, [{"x": np.full((1, 3, 12, 12), np.nan, np.float32)}])
    other = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] a) => (float[2] b) { b = Neg(a) }'
    )
    with pytest.raises(InvalidArgument, match="inputs"):
        debug(other, made, samples(model))
