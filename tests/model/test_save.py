"""Saving: what is written passes onnx's checker, loads again and computes the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx import errors
from sardonyx.interpret.context import RunContext
from sardonyx.ir.graph import Model
from sardonyx.model import save as saving
from sardonyx.model.load import load
from sardonyx.model.save import ExternalData, model_to_proto, save
from sardonyx.normalize.run import normalize
from sardonyx.optimize.symbolic import Facts
from sardonyx.session.build import BuildOptions, build
from tests.model.hostile.cases import body, const, model, node, untyped, value
from tests.model.hostile.damage import victim

X = np.array([-1, 2], np.float32)
F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def loop() -> onnx.ModelProto:
    step = body(
        [node("Identity", "k", "k2"), node("Add", "s c", "s2"), node("Mul", "s2 two", "row")],
        [value("i", I64, []), value("k", BOOL, []), value("s", F, [2])],
        "k2 s2 row",
    )
    return model(
        node("Loop", "n _ x", "last y", body=step),
        const("c", [1.0, 2.0]),
        const("two", 2.0),
        const("n", 3),
        outputs=[value("last", F, [2]), value("y", F, ["n", 2])],
    )


def branches() -> onnx.ModelProto:
    """A branch gives a constant from outside."""
    then, other = (
        helper.make_graph(made, "b", [], [untyped(out)]) for made, out in (([], "c"), ([node("Neg", "c", "d")], "d"))
    )
    nodes = [node("ReduceSum", "x", "s", keepdims=0), node("Greater", "s zero", "p")]
    return model(
        [*nodes, node("If", "p", then_branch=then, else_branch=other)], const("c", [1.0, 2.0]), const("zero", 0.0)
    )


MODELS: dict[str, onnx.ModelProto] = {
    "plain": model([node("Relu", "x", "a"), node("Add", "a c")], const("c", [10.0, 20.0])),
    "everything": onnx.ModelProto.FromString(victim()),
    "loop": loop(),
    "branches": branches(),
    "output is an input": model(node("Relu", "x"), outputs=[value("x", F, [2]), untyped()]),
    "output is a constant": model([], const("y", [1.0, 2.0])),
    "one output twice": model(node("Relu", "x"), outputs=[untyped(), untyped()]),
    "overridable": model(node("Add", "x c"), const("c", [1.0, 2.0]), inputs=[value("x", F, [2]), value("c", F, [2])]),
    "optional inputs": model(node("Clip", "x _ c"), const("c", 1.0)),
    "strings": model(
        [node("Relu", "x", "a"), node("Identity", "s")],
        const("s", np.array(["ä", ""], object)),
        outputs=[untyped("a"), untyped()],
    ),
    "bfloat16": model(node("Cast", "x", to=TensorProto.BFLOAT16), outputs=[untyped()]),
    "sequence": model(
        [node("SequenceConstruct", "x x", "s"), node("SequenceAt", "s i")], const("i", 1), outputs=[untyped()]
    ),
}


def results(source: Any, level: str = "disabled") -> list[Any]:
    engine = build(source, BuildOptions(level=level))
    return engine.run({"x": X}, [v.name for v in engine.outputs], RunContext())


def typed(source: Any) -> Model:
    """A model whose values have shapes, as onnx's checker asks for."""
    made = load(source)
    normalize(made)
    Facts().walk(made.graph)
    return made


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    source = MODELS[name].SerializeToString()
    path = tmp_path / "saved.onnx"
    save(typed(source), path)
    onnx.checker.check_model(os.fspath(path), full_check=True)
    before, after = results(source), results(path)
    assert len(before) == len(after)
    for a, b in zip(before, after, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
    assert load(path).graph.output_names == load(source).graph.output_names


@pytest.mark.parametrize("name", ["plain", "everything", "loop", "branches", "optional inputs"])
def test_optimized_models_are_valid(name: str, tmp_path: Path) -> None:
    source = MODELS[name].SerializeToString()
    path = tmp_path / "optimized.onnx"
    build(source, BuildOptions(level="all", save_path=str(path)))
    onnx.checker.check_model(os.fspath(path), full_check=True)
    for a, b in zip(results(source), results(path), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    for a, b in zip(results(source), session.run(None, {"x": X}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_metadata_is_kept() -> None:
    made = onnx.ModelProto.FromString(victim())
    made.producer_name, made.doc_string = "somebody", "about"
    written = model_to_proto(typed(made))
    assert (written.producer_name, written.doc_string) == ("somebody", "about")
    assert {p.key: p.value for p in written.metadata_props} == {"about": "hostile tests"}


def test_large_weights_are_written_to_a_separate_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "PROTO_LIMIT", 1000)
    made = model(node("MatMul", "x w"), const("w", np.arange(2000.0).reshape(2, 1000)))
    path = tmp_path / "m.onnx"
    save(typed(made), path)
    assert (tmp_path / "m.onnx.data").stat().st_size >= 8000 and path.stat().st_size < 1000
    onnx.checker.check_model(os.fspath(path), full_check=True)
    np.testing.assert_array_equal(results(path)[0], results(made.SerializeToString())[0])


@pytest.mark.parametrize("one_file", [False, True])
def test_weights_outside_on_request(tmp_path: Path, one_file: bool) -> None:
    weights = [const("w", np.arange(200.0).reshape(2, 100)), const("a/b:0", np.arange(100.0)), const("c", 1.0)]
    made = model([node("MatMul", "x w", "p"), node("Add", "p a/b:0", "q"), node("Add", "q c")], *weights)
    path = tmp_path / "m.onnx"
    save(typed(made), path, external=ExternalData(threshold_nbytes=400, one_file=one_file))
    assert len(list(tmp_path.iterdir())) == (2 if one_file else 3)
    onnx.checker.check_model(os.fspath(path), full_check=True)
    np.testing.assert_array_equal(results(path)[0], results(made.SerializeToString())[0])
    outside = {t.name for t in onnx.load(path, load_external_data=False).graph.initializer if t.data_location}
    assert outside == {"w", "a/b:0"}


def test_where_weights_may_go(tmp_path: Path) -> None:
    made, path = model(node("MatMul", "x w"), const("w", np.arange(200.0).reshape(2, 100))), tmp_path / "m.onnx"
    save(typed(made), path, external=ExternalData("weights.bin", 0))
    assert (tmp_path / "weights.bin").stat().st_size >= 800
    for location in ("../weights.bin", os.fspath(tmp_path / "w.bin")):
        with pytest.raises(errors.InvalidArgument, match="folder"):
            save(typed(made), path, external=ExternalData(location, 0))
    for name, threshold in (("small", 801), ("just", 800)):
        save(typed(made), tmp_path / f"{name}.onnx", external=ExternalData(threshold_nbytes=threshold))
        assert (tmp_path / f"{name}.onnx.data").exists() is (threshold == 800)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(errors.Fail, match="cannot be written"):
        save(load(MODELS["plain"]), tmp_path / "nowhere" / "m.onnx")
    (tmp_path / "m.onnx").mkdir()
    with pytest.raises(errors.Fail, match="cannot be written"):
        save(load(MODELS["plain"]), tmp_path / "m.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_names_stay_unique() -> None:
    """A branch may use the names of its neighbour; the file must not."""
    branch = helper.make_graph([node("Neg", "x", "same")], "b", [], [untyped("same")])
    made = model(
        [node("If", "c", "p", then_branch=branch, else_branch=branch), node("Add", "p x")], const("c", True, bool)
    )
    written = model_to_proto(typed(made))
    onnx.checker.check_model(written, full_check=True)
    np.testing.assert_array_equal(results(written.SerializeToString())[0], results(made.SerializeToString())[0])
