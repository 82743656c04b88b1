"""Generated inputs: types, sizes by name, and what is said of sizes that were assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from sardonyx.bench import generate_inputs
from sardonyx.errors import InvalidArgument
from tests.bench.models import product


def adder(path: Path) -> Path:
    """Three inputs, with symbols, an open axis and integers that index a table."""
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", None]),
        helper.make_tensor_value_info("scale", TensorProto.FLOAT16, []),
    ]
    table = helper.make_tensor("table", TensorProto.FLOAT, [5, 2], list(map(float, range(10))))
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["a"]),
        helper.make_node("Identity", ["image"], ["b"]),
        helper.make_node("Identity", ["scale"], ["c"]),
    ]
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("a", 1), ("b", 1), ("c", 10))]
    graph = helper.make_graph(nodes, "adder", inputs, outputs, [table])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_sizes_that_are_assumed_are_stated(tmp_path: Path) -> None:
    found = generate_inputs(adder(tmp_path / "a.onnx"))
    shapes = {name: value.shape for name, value in found.feeds.items()}
    assert shapes == {"ids": (1, 128), "image": (1, 3, 224, 224), "scale": ()} and found.batch == 1
    assert found.feeds["ids"].dtype == np.int64 and found.feeds["ids"].max() < 5
    assert found.feeds["scale"].dtype == np.float16
    assert found.statements == (
        "The symbolic dimension batch was given the size 1.",
        "The symbolic dimension sequence was given the size 128.",
        "The symbolic dimension height was given the size 224.",
        "Axis 3 of image, whose size the model leaves open, was given the size 224.",
    )


def test_sizes_that_are_given_hold_everywhere(tmp_path: Path) -> None:
    path = adder(tmp_path / "a.onnx")
    found = generate_inputs(path, dimensions={"sequence": 7}, shapes={"image": (4, 3, 8, 9)})
    assert {name: value.shape for name, value in found.feeds.items()} == {
        "ids": (4, 7),
        "image": (4, 3, 8, 9),
        "scale": (),
    }
    assert found.statements == () and found.batch == 4
    assert generate_inputs(path.read_bytes(), batch=3).feeds["image"].shape[0] == 3


def test_data_depend_on_the_seed_alone(tmp_path: Path) -> None:
    path = product(tmp_path / "p.onnx")
    one, same, other = (generate_inputs(path, seed=seed).feeds["x"] for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other) and one.std() > 0.1


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"dimensions": {"batches": 2}}, "no such symbolic dimension"),
        ({"shapes": {"y": (1, 8)}}, "no such input"),
        ({"shapes": {"x": (1, 9)}}, "does not fit"),
        ({"shapes": {"x": (1, 8, 1)}}, "does not fit"),
        ({"shapes": {"x": (2, 8)}, "batch": 3}, "two sizes"),
    ],
)
def test_sizes_that_do_not_fit(tmp_path: Path, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        generate_inputs(product(tmp_path / "p.onnx"), **asked)


def test_a_batch_size_that_is_fixed(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="fixed"):
        generate_inputs(product(tmp_path / "p.onnx", batch=2), batch=4)


def test_a_batch_that_the_model_does_not_name(tmp_path: Path) -> None:
    """scikit-learn's models begin with an axis without a name."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "open", ends[:1], ends[1:])
    path = tmp_path / "open.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert generate_inputs(path).batch == 1 and generate_inputs(path).feeds["x"].shape == (1, 8)
    found = generate_inputs(path, batch=5)
    assert found.batch == 5 and found.feeds["x"].shape == (5, 8)
    assert generate_inputs(path, shapes={"x": (3, 8)}).feeds["x"].shape == (3, 8)


def test_maps_have_the_keys_that_the_model_looks_up(tmp_path: Path) -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    d = helper.make_value_info("d", helper.make_map_type_proto(TensorProto.STRING, tensor))
    node = helper.make_node("DictVectorizer", ["d"], ["y"], domain="ai.onnx.ml", string_vocabulary=["red", "green"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph([node], "g", [d], [y]), opset_imports=opsets, ir_version=8)
    fed = generate_inputs(model.SerializeToString()).feeds["d"]
    assert list(fed) == ["red", "green"] and all(isinstance(value, float) for value in fed.values())


def test_strings_are_those_that_the_model_looks_up(tmp_path: Path) -> None:
    text = helper.make_tensor_value_info("text", TensorProto.STRING, [64])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [64])
    nodes = [
        helper.make_node("Identity", ["text"], ["low"]),
        helper.make_node(
            "LabelEncoder", ["low"], ["y"], domain="ai.onnx.ml", keys_strings=["cat", "dog"], values_int64s=[1, 2]
        ),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph(nodes, "g", [text], [y]), opset_imports=opsets, ir_version=8)
    assert set(generate_inputs(model.SerializeToString()).feeds["text"]) == {"cat", "dog", ""}
