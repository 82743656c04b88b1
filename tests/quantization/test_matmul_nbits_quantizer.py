"""Weight-only models: the tensors and nodes that onnxruntime's quantizer writes, and the numbers they compute."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidArgument, NotImplemented, RuntimeException
from sardonyx.quantization import matmul_nbits_quantizer as ours
from sardonyx.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    QuantFormat,
    RTNWeightOnlyQuantConfig,
)
from sardonyx.quantization.onnx_model import ONNXModel

IDS = {"ids": np.array([[1, 2, 3], [4, 5, 49]])}
K, HIDDEN, N = 96, 72, 48
QDQ, QOPERATOR = QuantFormat.QDQ, QuantFormat.QOperator


def model(dtype: Any = np.float32, opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    element = TensorProto.FLOAT if dtype == np.float32 else TensorProto.FLOAT16
    weights = {"emb": (50, K), "w1": (K, HIDDEN), "w2": (HIDDEN, N)}
    nodes = [
        helper.make_node("Gather", ["emb", "ids"], ["x"], name="words"),
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="up"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], name="down"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("y", element, ["b", "s", N])],
        [numpy_helper.from_array(rng.standard_normal(s).astype(dtype), name) for name, s in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def quantized(source: Any, config: Any = None, **options: Any) -> onnx.ModelProto:
    quantizer = MatMulNBitsQuantizer(source, algo_config=config, **options)
    quantizer.process()
    onnx.checker.check_model(quantizer.model.model)
    return quantizer.model.model


def run(made: onnx.ModelProto, feeds: Any = IDS) -> Any:
    return sardonyx.InferenceSession(made.SerializeToString()).run(None, feeds)[0].astype(np.float64)


def run_by_onnxruntime(made: onnx.ModelProto, feeds: Any = IDS) -> Any:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0].astype(np.float64)


def distance(a: Any, b: Any) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    """onnxruntime's module; where onnx_ir is missing, with the few functions of it that are used."""
    pytest.importorskip("onnxruntime")
    stand_in: Any = None
    try:
        import onnx_ir  # noqa: F401
    except ImportError:
        stand_in = sys.modules["onnx_ir"] = ModuleType("onnx_ir")
        stand_in.from_proto = lambda p: SimpleNamespace(numpy=lambda: numpy_helper.to_array(p), initializers={})
        stand_in.Tensor = lambda array, name: numpy_helper.from_array(array, name)
        stand_in.serde = SimpleNamespace(serialize_tensor=lambda tensor: tensor)
    from onnxruntime.quantization import matmul_nbits_quantizer

    logging.getLogger(matmul_nbits_quantizer.__name__).setLevel(logging.ERROR)
    yield matmul_nbits_quantizer
    if stand_in is not None:
        del sys.modules["onnx_ir"]


def contents(made: onnx.ModelProto) -> dict[str, Any]:
    return {t.name: (t.data_type, list(t.dims), numpy_helper.to_array(t).tolist()) for t in made.graph.initializer}


def nodes(made: onnx.ModelProto) -> list[str]:
    return sorted(
        f"{n.domain} {n.op_type} {n.name} {n.input} {n.output} {sorted((a.name, a.i) for a in n.attribute)}"
        for n in made.graph.node
    )


def both(theirs: Any, source: onnx.ModelProto, config: str, own: Any, **options: Any) -> list[onnx.ModelProto]:
    """What both quantizers make of a model."""
    made = []
    for module in (theirs, ours):
        copy = onnx.ModelProto.FromString(source.SerializeToString())
        told = {k: module.QuantFormat[v.name] if isinstance(v, QuantFormat) else v for k, v in own.items()}
        quantizer = module.MatMulNBitsQuantizer(copy, algo_config=getattr(module, config)(**told), **options)
        quantizer.process()
        made.append(quantizer.model.model)
    return made


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("symmetric", [False, True], ids=["asym", "sym"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_operators_are_onnxruntimes(theirs: Any, dtype: Any, symmetric: bool, bits: int) -> None:
    for size in (16, 32, 128):
        own = dict(block_size=size, is_symmetric=symmetric, bits=bits, accuracy_level=4)
        if bits == 4:
            own["op_types_to_quantize"] = ("MatMul", "Gather")
        a, b = both(theirs, model(dtype), "DefaultWeightOnlyQuantConfig", own)
        assert contents(a) == contents(b) and nodes(a) == nodes(b)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("symmetric", [False, True], ids=["asym", "sym"])
@pytest.mark.parametrize("channel", [False, True], ids=["blocks", "channels"])
def test_dequantized_weights_are_onnxruntimes(theirs: Any, dtype: Any, symmetric: bool, channel: bool) -> None:
    for size in (32,) if channel else (16, 32, 128):
        own = dict(block_size=size, is_symmetric=symmetric, quant_format=QDQ, channel_wised_quantize=channel)
        a, b = both(theirs, model(dtype), "DefaultWeightOnlyQuantConfig", own)
        assert contents(a) == contents(b)
        if not (channel and symmetric):
            assert nodes(a) == nodes(b)
        assert b.ir_version >= 10 and b.opset_import[0].version >= 21
    assert distance(run(b), run_by_onnxruntime(b)) < 5e-3


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("symmetric", [False, True], ids=["asym", "sym"])
def test_rounding_is_onnxruntimes(theirs: Any, dtype: Any, symmetric: bool) -> None:
    """At a block size at which both weights have an even number of blocks: onnxruntime's packing needs that."""
    options = dict(block_size=64, is_symmetric=symmetric, accuracy_level=1)
    a, b = both(theirs, model(dtype), "RTNWeightOnlyQuantConfig", {"ratios": {"w1": 0.9}}, **options)
    assert contents(a) == contents(b) and nodes(a) == nodes(b)


def reader(count: int = 8) -> Any:
    rng = np.random.default_rng(5)
    return iter([{"ids": rng.integers(0, 50, (4, 16))} for _ in range(count)])


CONFIGS: dict[str, Any] = {
    "default": lambda fmt: DefaultWeightOnlyQuantConfig(block_size=32, quant_format=fmt),
    "rtn": lambda fmt: RTNWeightOnlyQuantConfig(quant_format=fmt),
    "k_quant": lambda fmt: KQuantWeightOnlyQuantConfig(quant_format=fmt),
    "hqq": lambda fmt: HQQWeightOnlyQuantConfig(block_size=32, quant_format=fmt),
    "gptq": lambda fmt: GPTQWeightOnlyQuantConfig(reader(), quant_format=fmt),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("fmt", [QOPERATOR, QDQ], ids=["operators", "qdq"])
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_both_engines_run_the_models(algorithm: str, fmt: QuantFormat, dtype: Any) -> None:
    if algorithm == "hqq" and fmt is QDQ:
        with pytest.raises(NotImplemented, match="reals"):
            CONFIGS[algorithm](fmt)
        return
    for bits in (4, 8):
        config = CONFIGS[algorithm](fmt)
        if hasattr(config, "bits"):
            config.bits = bits
        made = quantized(model(dtype), config, bits=bits, block_size=32)
        want = run(model(dtype))
        assert distance(run(made), want) < (0.2 if bits == 4 else 0.02)
        if algorithm != "hqq" or bits == 4:  # onnxruntime has no kernel for 8 bits with zero points that are reals
            assert distance(run(made), run_by_onnxruntime(made)) < (1e-4 if dtype == np.float32 else 5e-3)


OPSETS = (13, 17, 18, 20, 21, 24)


@pytest.mark.parametrize("opset", OPSETS)
def test_opsets(opset: int) -> None:
    """4-bit tensors need opset 21: older models are rewritten for it, operators that changed among them."""
    kind = f'<ir_version: 8, opset_import: ["" : {opset}]>'
    mean = "m = ReduceMean<axes=[-1]>(r)" if opset < 18 else "c = Constant<value_ints=[-1]>() m = ReduceMean(r, c)"
    text = f"{kind} g (float[3,64] x) => (float[3,1] y) {{ h = MatMul(x, w) r = Relu(h) {mean} y = Neg(m) }}"
    source, fed = parsed(text, w=W), {"x": X}
    want = run(source, fed)
    operators = quantized(source, block_size=32)
    assert {o.domain: o.version for o in operators.opset_import} == {"": opset, "com.microsoft": 1}
    for symmetric in (False, True):
        dequantized = quantized(source, block_size=32, is_symmetric=symmetric, quant_format=QDQ)
        assert dequantized.opset_import[0].version == max(opset, 21) and dequantized.ir_version >= 10
        onnx.checker.check_model(dequantized, full_check=True)
        assert distance(run(dequantized, fed), want) < 0.2
        if opset <= 21:
            assert distance(run(dequantized, fed), run_by_onnxruntime(dequantized, fed)) < 1e-5
    assert distance(run(operators, fed), want) < 0.2


@pytest.mark.parametrize("opset", OPSETS)
def test_opsets_of_tables(opset: int) -> None:
    made = quantized(model(opset=opset), op_types_to_quantize=("Gather",), block_size=32, bits=8)
    assert made.opset_import[0].version == opset
    made = quantized(model(opset=opset), op_types_to_quantize=("Gather",), block_size=32)
    assert made.opset_import[0].version == max(opset, 21)
    assert distance(run(made), run(model(opset=opset))) < 0.2


def correlated() -> onnx.ModelProto:
    """The model, with inputs of products that correlate."""
    rng, source = np.random.default_rng(1), model()
    table = (rng.standard_normal((50, 12)) @ rng.standard_normal((12, K))).astype(np.float32)
    source.graph.initializer[0].CopyFrom(numpy_helper.from_array(table, "emb"))
    return source


@pytest.mark.parametrize("symmetric", [False, True], ids=["asym", "sym"])
def test_gptq_is_no_worse_than_onnxruntimes(theirs: Any, symmetric: bool) -> None:
    """At a block size of which both weights have an even number: onnxruntime's packing needs that."""
    pytest.importorskip("torch", reason="onnxruntime's GPTQ imports it")
    source, data = correlated(), list(reader())
    options = {"block_size": 64, "is_symmetric": symmetric}
    a, b = both(theirs, source, "GPTQWeightOnlyQuantConfig", {"calibration_data_reader": data}, **options)
    a = getattr(a, "model", a)
    a.opset_import.append(helper.make_opsetid("com.microsoft", 1))  # onnxruntime's GPTQ does not state it
    assert distance(run(b), run(source)) <= 1.02 * distance(run(a), run(source))


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_hqq_is_no_worse_than_onnxruntimes(theirs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU: with a GPU, onnxruntime's computes in half precision."""
    torch = pytest.importorskip("torch", reason="onnxruntime's HQQ is written in it")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for size in (16, 32, 64):
        a, b = both(theirs, model(), "HQQWeightOnlyQuantConfig", {"block_size": size}, block_size=size)
        assert distance(run(b), run(model())) <= 1.02 * distance(run(a), run(model()))


def test_gptq_is_nearer_than_rounding() -> None:
    source = correlated()
    want = run(source)
    rounded = quantized(source, RTNWeightOnlyQuantConfig(), block_size=32)
    found = quantized(source, GPTQWeightOnlyQuantConfig(reader()), block_size=32)
    assert distance(run(found), want) < 0.7 * distance(run(rounded), want)


@pytest.mark.parametrize("symmetric", [False, True], ids=["asym", "sym"])
def test_tables_of_eight_bits(symmetric: bool) -> None:
    config = DefaultWeightOnlyQuantConfig(32, symmetric, bits=8, op_types_to_quantize=("Gather",))
    made = quantized(model(), config)
    assert [n.op_type for n in made.graph.node] == ["GatherBlockQuantized", "MatMul", "Relu", "MatMul"]
    assert distance(run(made), run(model())) < 0.01
    assert distance(run(made), run_by_onnxruntime(made)) < 1e-5


def test_which_nodes() -> None:
    source = model()
    kinds = [n.op_type for n in quantized(source, nodes_to_exclude=["up"]).graph.node]
    assert kinds == ["Gather", "MatMul", "Relu", "MatMulNBits"]
    kinds = [n.op_type for n in quantized(source, nodes_to_include=["words"], block_size=32).graph.node]
    assert kinds == ["GatherBlockQuantized", "MatMulNBits", "Relu", "MatMulNBits"]
    kinds = [n.op_type for n in quantized(source, op_types_to_quantize=("Gather",), block_size=32).graph.node]
    assert kinds == ["GatherBlockQuantized", "MatMul", "Relu", "MatMul"]


def test_unknown_names_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        quantized(model(), nodes_to_exclude=["upp"])
    assert "upp" in caplog.text


def test_a_node_of_its_own(theirs: Any) -> None:
    own = {"customized_weight_config": {"up": {"bits": 8, "group_size": 16, "scheme": "sym"}}}
    made = quantized(model(), RTNWeightOnlyQuantConfig(**own), block_size=64)
    attributes = {n.name: {a.name: a.i for a in n.attribute} for n in made.graph.node}
    assert attributes["up_Q8"]["block_size"] == 16 and attributes["down_Q4"]["block_size"] == 64
    whole = {"customized_weight_config": {"up": {"group_size": -1}}}
    made = quantized(model(), RTNWeightOnlyQuantConfig(**whole), block_size=64)
    assert next(a.i for n in made.graph.node if n.name == "up_Q4" for a in n.attribute if a.name == "block_size") == 128


def parsed(text: str, **weights: Any) -> onnx.ModelProto:
    made = onnx.parser.parse_model(text)
    made.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    return made


HEAD = '<ir_version: 8, opset_import: ["" : 13]>'
X = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
W = np.random.default_rng(3).standard_normal((64, 32)).astype(np.float32)
FORMS = {
    "a shared weight": (parsed(f"{HEAD} g (float[3,64] x) => (float[3,32] y) {{ a = MatMul(x, w) b = MatMul(x, w) "
                               "y = Add(a, b) }", w=W), 2),
    "a weight with leading ones": (parsed(f"{HEAD} g (float[3,64] x) => (float[1,1,3,32] y) {{ y = MatMul(x, w) }}",
                                          w=W[None, None]), 1),
    "a weight that is an input": (parsed(f"{HEAD} g (float[3,64] x, float[64,32] w) => (float[3,32] y) "
                                         "{ y = MatMul(x, w) }", w=W), 1),
    "a vector": (parsed(f"{HEAD} g (float[3,64] x) => (float[3] y) {{ y = MatMul(x, w) }}", w=W[:, 0]), 0),
    "a batch of weights": (parsed(f"{HEAD} g (float[3,64] x) => (float[2,3,32] y) {{ y = MatMul(x, w) }}",
                                  w=np.stack([W, W])), 0),
    "the branches of an If": (
        parsed(f"{HEAD} g (float[3,64] x) => (float[3,32] y) {{ t = Constant<value_int=1>() c = Cast<to=9>(t) "
               "y = If(c) <then_branch = p () => (float[3,32] u) { u = MatMul(x, w) }, "
               "else_branch = q () => (float[3,32] v) { k = MatMul(x, w) v = Neg(k) }> }", w=W), 2),
    "old operators": (
        parsed('<ir_version: 6, opset_import: ["" : 11]> g (float[3,64] x) => (float[3,32] y) '
               "{ a = Unsqueeze<axes=[0]>(x) b = Squeeze<axes=[0]>(a) y = MatMul(b, w) }", w=W), 1),
}  # fmt: skip


@pytest.mark.parametrize("fmt", [QOPERATOR, QDQ], ids=["operators", "qdq"])
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_products(form: str, fmt: QuantFormat) -> None:
    source, count = FORMS[form]
    made = quantized(source, block_size=32, quant_format=fmt)
    text = onnx.printer.to_text(made)
    assert text.count("MatMulNBits <" if fmt is QOPERATOR else "= DequantizeLinear <") == count
    want, fed = run(source, {"x": X}), {"x": X}
    assert run(made, fed).shape == want.shape and distance(run(made, fed), want) < 0.15
    assert distance(run(made, fed), run_by_onnxruntime(made, fed)) < 1e-4
    assert "w" not in {t.name for t in made.graph.initializer} or not count


def test_gptq_in_a_body_rounds(caplog: pytest.LogCaptureFixture) -> None:
    source, _ = FORMS["the branches of an If"]
    with caplog.at_level(logging.WARNING):
        made = quantized(source, GPTQWeightOnlyQuantConfig(iter([{"x": X}])), block_size=32)
    assert "MatMulNBits" in onnx.printer.to_text(made) and "body" in caplog.text


@pytest.mark.parametrize("external", [False, True])
def test_files(tmp_path: Path, external: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save_model(model(), str(source), save_as_external_data=True, location="m.data", size_threshold=0)
    if external:
        monkeypatch.setattr("sardonyx.model.save.PROTO_LIMIT", 1000)
    quantizer = MatMulNBitsQuantizer(str(source), block_size=32)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target), use_external_data_format=external)
    assert isinstance(quantizer.model, ONNXModel)
    assert {each.domain for each in quantizer.model.opset_import()} >= {"", "com.microsoft"}
    assert (tmp_path / "q.onnx.data").exists() is external
    assert distance(sardonyx.InferenceSession(str(target)).run(None, IDS)[0], run(model())) < 0.2


def test_what_is_wrong_is_told() -> None:
    for options, match in (
        ({"bits": 3}, "width"),
        ({"block_size": 24}, "power of two"),
        ({"block_size": 8}, "power of two"),
        ({"op_types_to_quantize": ("Conv",)}, "operator type"),
        ({"quant_format": "else"}, "QOperator"),
        ({"algo_config": {}}, "algo_config"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            MatMulNBitsQuantizer(model(), **options)  # type: ignore[arg-type]
    with pytest.raises(NotImplemented, match="channel_wised"):
        DefaultWeightOnlyQuantConfig(channel_wised_quantize=True)
    with pytest.raises(NotImplemented, match="QOperator"):
        MatMulNBitsQuantizer(model(), quant_format=QDQ, op_types_to_quantize=("Gather",))
    with pytest.raises(InvalidArgument, match="axis"):
        quantized(model(), op_types_to_quantize=("Gather",), quant_axes={"Gather": 4}, block_size=32)


def test_bad_calibration_data_is_told() -> None:
    def quantize(data: Any) -> None:
        quantized(model(), GPTQWeightOnlyQuantConfig(data))

    with pytest.raises(InvalidArgument, match="calibration"):
        quantize(None)
    with pytest.raises(InvalidArgument, match="no data"):
        quantize(iter([]))
    with pytest.raises(InvalidArgument, match="ids"):
        quantize([{"other": IDS["ids"]}])
    source = model()
    source.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full((50, K), np.nan, np.float32), "emb"))
    with pytest.raises(RuntimeException, match="not finite"):
        quantized(source, GPTQWeightOnlyQuantConfig([IDS]))


def test_the_source_is_left_alone() -> None:
    source = model()
    before = source.SerializeToString()
    quantized(source)
    assert source.SerializeToString() == before
