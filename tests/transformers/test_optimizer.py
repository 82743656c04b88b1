"""``sardonyx.transformers.optimizer`` does what programs written for onnxruntime's ask of it."""

from __future__ import annotations

import errno
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.optimize import manager
from sardonyx.transformers import fusion_options, optimizer
from sardonyx.transformers.fusion_options import FusionOptions
from tests.transformers.models import encoder, feeds


@pytest.fixture
def path(tmp_path: Path) -> str:
    onnx.save_model(encoder(), tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def run(model: Any, fed: dict[str, np.ndarray]) -> np.ndarray:
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return sardonyx.InferenceSession(source).run(None, fed)[0]


def optimize_transformer_model(model_path: str, model_type: str = "bert") -> Any:
    """The program of an article about onnxruntime, with another import."""
    import sardonyx.transformers.optimizer as ort_optimizer

    optimized_model = ort_optimizer.optimize_model(
        model_path,
        model_type=model_type,
        num_heads=12,
        hidden_size=768,
        optimization_options=ort_optimizer.FusionOptions(model_type),
    )
    optimized_model.save_model_to_file("bert_optimized.onnx")
    stats = optimized_model.get_fused_operator_statistics()
    for op, count in stats.items():
        print(f" Fused {op}: {count} instances")
    return optimized_model


def test_a_program_written_for_onnxruntime(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    optimize_transformer_model(path)
    told = capsys.readouterr().out
    assert (
        "Fused SkipLayerNormalization: 4 instances" in told
        and "EmbedLayerNormalization: 1" in told
        and "Fused BiasGelu: 2 instances" in told
    )
    np.testing.assert_allclose(run("bert_optimized.onnx", feeds()), run(encoder(), feeds()), rtol=1e-3, atol=1e-5)


def test_the_result_runs_in_onnxruntime(path: str, tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    for external in (False, True):
        target = str(tmp_path / "deep" / f"out{external}.onnx")
        optimizer.optimize_model(path).save_model_to_file(target, use_external_data_format=external, size_threshold=64)
        assert Path(f"{target}.data").exists() is external
        session = ort.InferenceSession(target, providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(None, feeds())[0], run(encoder(), feeds()), rtol=1e-3, atol=1e-5)
        np.testing.assert_array_equal(run(target, feeds()), run(optimizer.optimize_model(path).model, feeds()))


@pytest.mark.parametrize("external", [False, True])
def test_a_model_that_cannot_be_written_leaves_the_old_one(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool
) -> None:
    def write(name: str) -> None:
        optimizer.optimize_model(path).save_model_to_file(
            str(tmp_path / name), external, size_threshold=64, convert_attribute=True
        )

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write("out.onnx")
    np.testing.assert_allclose(run(str(tmp_path / "out.onnx"), feeds()), run(encoder(), feeds()), rtol=1e-3, atol=1e-5)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert ("out.onnx.data" in before) is external
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Fail, match="No space left"):
        write("out.onnx")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


SWITCHED = {
    "enable_gelu": ("BiasGelu", "Erf"),
    "enable_layer_norm": ("SkipLayerNormalization", "ReduceMean"),
    "enable_skip_layer_norm": ("SkipLayerNormalization", "LayerNormalization"),
    "enable_bias_gelu": ("BiasGelu", "Gelu"),
    "enable_attention": ("Attention", "Softmax"),
}


@pytest.mark.parametrize("option", SWITCHED)
def test_options_switch_fusions_off(option: str, path: str) -> None:
    absent, present = SWITCHED[option]
    options = FusionOptions("bert")
    setattr(options, option, False)
    counts = optimizer.optimize_model(path, optimization_options=options).get_operator_statistics()
    assert absent not in counts and present in counts
    assert absent in optimizer.optimize_model(path).get_operator_statistics()


def test_a_bias_stays_outside_of_a_skip_norm_when_asked(path: str) -> None:
    options = FusionOptions("bert")
    options.enable_bias_skip_layer_norm = False
    apart, whole = (optimizer.optimize_model(path, optimization_options=o) for o in (options, None))
    counts, usual = apart.get_operator_statistics(), whole.get_operator_statistics()
    assert counts["SkipLayerNormalization"] == usual["SkipLayerNormalization"]
    assert counts["Add"] == usual.get("Add", 0) + 4
    np.testing.assert_allclose(run(apart.model, feeds()), run(encoder(), feeds()), rtol=1e-3, atol=1e-5)


def test_attention_takes_three_inputs_when_asked(path: str, tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    options = FusionOptions("bert")
    options.use_multi_head_attention = True
    model = optimizer.optimize_model(path, optimization_options=options)
    counts = model.get_fused_operator_statistics()
    assert (counts["Attention"], counts["MultiHeadAttention"]) == (0, 2)
    model.save_model_to_file(str(tmp_path / "out.onnx"))
    session = ort.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds())[0], run(encoder(), feeds()), rtol=1e-3, atol=1e-5)


def test_every_option_has_an_effect_or_is_documented_without() -> None:
    effective = {*fusion_options.PASSES, "enable_gelu_approximation", "use_multi_head_attention", "attention_op_type"}
    assert effective.isdisjoint(fusion_options.WITHOUT_EFFECT)
    assert vars(FusionOptions("unet")).keys() == effective | set(fusion_options.WITHOUT_EFFECT)


def test_every_switch_names_passes_that_exist() -> None:
    for option, passes in fusion_options.PASSES.items():
        assert hasattr(FusionOptions("bert"), option)
        assert passes and set(passes) <= manager.PASSES.keys(), option
    assert fusion_options.ONE_INPUT_ATTENTION in manager.PASSES


def test_gelu_is_approximated_only_when_asked(path: str) -> None:
    options = FusionOptions("bert")
    options.enable_gelu_approximation = True
    model = optimizer.optimize_model(path, optimization_options=options)
    assert model.get_operator_statistics()["FastGelu"] == 2
    got, want = run(model.model, feeds()), run(encoder(), feeds())
    np.testing.assert_allclose(got, want, atol=5e-3)
    assert not np.allclose(got, want, atol=1e-6)


def test_names_defaults_and_types_are_onnxruntimes() -> None:
    pytest.importorskip("onnxruntime")
    code = (
        "import sys, json; import onnxruntime.transformers; import inspect;"
        "sys.modules.setdefault('torch', type(sys)('torch'));"
        "from onnxruntime.transformers import optimizer as o; import fusion_options as f;"
        "params = {n: [str(p.name) for p in inspect.signature(getattr(o, n)).parameters.values()] "
        "for n in ('optimize_model', 'optimize_by_fusion', 'optimize_by_onnxruntime', 'get_fusion_statistics')};"
        "print(json.dumps([params, {t: [v[1], v[2]] for t, v in o.MODEL_TYPES.items()},"
        "{t: {k: str(v) for k, v in vars(f.FusionOptions(t)).items()} for t in o.MODEL_TYPES}]))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"onnxruntime's own module does not import here: {done.stderr.strip().splitlines()[-1]}")
    import json

    parameters, types, options = json.loads(done.stdout.splitlines()[-1])
    for name, names in parameters.items():
        assert list(inspect.signature(getattr(optimizer, name)).parameters) == names
    assert {t: list(v) for t, v in optimizer.MODEL_TYPES.items()} == types
    assert {t: {k: str(v) for k, v in vars(FusionOptions(t)).items()} for t in types} == options


@pytest.mark.parametrize("model_type", optimizer.MODEL_TYPES)
def test_every_type_of_model(model_type: str) -> None:
    model = optimizer.optimize_model(encoder(layers=1), model_type)
    assert model.get_fused_operator_statistics()
    np.testing.assert_allclose(run(model.model, feeds()), run(encoder(layers=1), feeds()), rtol=1e-3, atol=1e-5)


def test_levels_and_unknown_types(caplog: pytest.LogCaptureFixture) -> None:
    source = encoder()
    nodes = {
        level: len(optimizer.optimize_model(source, opt_level=level, only_onnxruntime=True).nodes())
        for level in (0, 1, 2)
    }
    assert nodes[0] >= nodes[1] > nodes[2]
    assert "positive value" in caplog.text
    untouched = optimizer.optimize_model(source, "parrot")
    assert len(untouched.nodes()) == len(source.graph.node) and "parrot" in caplog.text
    with pytest.raises(InvalidArgument, match="opt_level"):
        optimizer.optimize_model(source, opt_level=7)
    with pytest.raises(InvalidArgument, match="multiple"):
        optimizer.optimize_model(source, num_heads=3, hidden_size=8)


def test_statistics_and_proto(path: str) -> None:
    model = optimizer.optimize_model(path)
    counts = model.get_operator_statistics()
    assert counts == dict(sorted(counts.items())) or sum(counts.values()) == len(model.nodes())
    assert model.get_operator_statistics(include_domain=True)["com.microsoft:BiasGelu"] == counts["BiasGelu"]
    assert model.model.producer_name == "sardonyx.transformers"
    assert len(model.get_nodes_by_op_type("BiasGelu")) == 2 and model.get_opset_version() >= 14
    model.model.graph.node[0].name = "renamed"
    assert model.nodes()[0].name == "renamed", "the proto is the user's to change"
    assert [v.name for v in model.get_graph_inputs_excluding_initializers()] == list(feeds())
    full = {"EmbedLayerNormalization": 1, "Attention": 2, "BiasGelu": 2, "SkipLayerNormalization": 4}
    assert model.is_fully_optimized(full)
    assert not model.is_fully_optimized({**full, "Attention": 1})


def test_inputs_of_32_bits(path: str) -> None:
    model = optimizer.optimize_model(path)
    model.change_graph_inputs_to_int32()
    got = run(model.model, {name: x.astype(np.int32) for name, x in feeds().items()})
    np.testing.assert_allclose(got, run(encoder(), feeds()), rtol=1e-3, atol=1e-5)


def test_optimize_by_onnxruntime_writes_a_file(path: str) -> None:
    written = optimizer.optimize_by_onnxruntime(
        path, opt_level=1, disabled_optimizers=["ConstantSharing", "NchwcTransformer"]
    )
    assert written == path.replace(".onnx", "_o1_cpu.onnx")
    assert optimizer.get_fusion_statistics(written)["BiasGelu"] == 0
    np.testing.assert_allclose(run(written, feeds()), run(path, feeds()), rtol=1e-4, atol=1e-6)


def test_optimize_by_onnxruntime_writes_weights_to_the_file_that_is_named(path: str, tmp_path: Path) -> None:
    target = str(tmp_path / "new" / "out.onnx")
    written = optimizer.optimize_by_onnxruntime(
        path, optimized_model_path=target, save_as_external_data=True, external_data_filename="weights.bin",
        external_data_file_threshold=256,
    )  # fmt: skip
    assert {each.name for each in Path(written).parent.iterdir()} == {"out.onnx", "weights.bin"}
    tensors = onnx.load(written, load_external_data=False).graph.initializer
    assert {len(t.raw_data) < 256 for t in tensors if t.data_location == t.DEFAULT} == {True}
    np.testing.assert_allclose(run(written, feeds()), run(path, feeds()), rtol=1e-4, atol=1e-6)


def test_the_command_line(path: str, tmp_path: Path) -> None:
    target = str(tmp_path / "out.onnx")
    optimizer.main(["--input", path, "--output", target, "--float16", "--disable_bias_gelu", "--input_int32"])
    counts = optimizer.get_fusion_statistics(target)
    assert counts["BiasGelu"] == 0 and counts["SkipLayerNormalization"] == 4
    with pytest.raises(SystemExit):
        optimizer.main(["--input", path, "--output", target, "--model_type", "parrot"])
    options = FusionOptions.parse(
        optimizer._parse_arguments(
            ["--input", "a", "--output", "b", "--model_type", "unet", "--disable_nhwc_conv", "--use_raw_attention_mask"]
        )
    )
    assert not options.enable_nhwc_conv and options.enable_group_norm and options.attention_mask_format == 2  # type: ignore[attr-defined]


def test_it_replaces_onnxruntimes(path: str) -> None:
    program = (
        "from onnxruntime.transformers import optimizer\n"
        "from onnxruntime.transformers.fusion_options import FusionOptions\n"
        "from onnxruntime.transformers.float16 import convert_float_to_float16\n"
        "from onnxruntime.transformers.onnx_model import OnnxModel\n"
        f"m = optimizer.optimize_model({path!r}, 'bert', optimization_options=FusionOptions('bert'))\n"
        "print(type(m).__module__, m.get_fused_operator_statistics()['BiasGelu'])\n"
    )
    script = Path(path).with_name("program.py")
    script.write_text(program)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "sardonyx.shim", str(script)],
        cwd=root / "src",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["sardonyx.transformers.onnx_model", "2"], done.stderr


def test_the_model_class_of_bert(path: str) -> None:
    from sardonyx.transformers.onnx_model_bert import BertOnnxModel

    model = BertOnnxModel(onnx.load(path))
    assert model.get_fused_operator_statistics()["BiasGelu"] == 0
    model.optimize(add_dynamic_axes=True)
    assert model.get_fused_operator_statistics()["BiasGelu"] == 2
    assert model.graph().input[0].type.tensor_type.shape.dim[1].dim_param == "max_seq_len"
