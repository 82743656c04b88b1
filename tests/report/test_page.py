"""The page: self-contained, small, and safe whatever a model's strings say."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.errors import Fail, InvalidArgument, NoSuchFile
from sardonyx.report import Finding, Measurement, ReportData, Table, write_report
from sardonyx.report.page import LONGEST, page

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<!--<script>",
    "'; alert(1); //",
    "{{data}} {{script}}",
    "&lt;b&gt;&amp;",
    "\u2028line\u2029separators",
)


class Parsed(HTMLParser):
    """Tags with their attributes, and the contents of script elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        self._inside = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def hostile_model(name: str) -> bytes:
    """Names of the graph, nodes and values that no page must take for markup."""
    nodes = [
        helper.make_node("Relu", ["x"], [f"a{name}"], name=f"node {name}", doc_string=name),
        helper.make_node("Exp", [f"a{name}"], [f"y{name}"], name=f"other {name}"),
    ]
    graph = helper.make_graph(
        nodes,
        f"graph {name}",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info(f"y{name}", TensorProto.FLOAT, [2, 3])],
    )
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory, root: Path) -> tuple[str, ReportData]:
    path = tmp_path_factory.mktemp("report") / "report.html"
    data = write_report(
        root / "demo" / "digits.onnx",
        path,
        measurements=[Measurement("a", "batch 1", 0.01, 0.009, 0.011), Measurement("b", "batch 1", 0.02, 0.019, 0.021)],
        verdict="a is faster",
        tables=[Table("Accuracy", ("model", "accuracy"), (("float", 0.98), ("int8", float("nan"))))],
        findings=[Finding("advice", "a title", "evidence", "a fix")],
    )
    return path.read_text(encoding="utf-8"), data


def test_the_page_refers_to_nothing_outside(digits: tuple[str, ReportData]) -> None:
    text, _ = digits
    parsed = Parsed(text)
    for tag, attributes in parsed.tags:
        assert "src" not in attributes, tag
        assert not (attributes.get("href") or "").startswith(("http", "//")), tag
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", text)
    assert set(re.findall(r"https?://[^\s\"')]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_the_data_are_those_that_were_collected(digits: tuple[str, ReportData]) -> None:
    text, collected = digits
    data = json.loads(Parsed(text).scripts[0])
    assert data["title"] == "digits.onnx"
    file, optimized, kernels = data["graphs"]
    assert len(file["nodes"]) == 15 and len(optimized["nodes"]) == len(collected.graphs[1].nodes)
    fused = next(n for n in kernels["nodes"] if n["op_type"] == "Conv + Relu")
    assert len(fused["members"]) == 2 and fused["kernel"] and fused["seconds"] > 0
    assert data["layers"] and all(layer["seconds"] >= 0 for layer in data["layers"])
    assert data["memory"][0]["arena_nbytes"] > 0
    assert data["tables"][0]["rows"][1] == ["int8", None]
    assert data["findings"][0]["fix"] == "a fix" and data["layers"][0]["limit_s"] > 0


def test_file_nodes_link_to_the_kernels_that_run_them(digits: tuple[str, ReportData]) -> None:
    _, data = digits
    file, _, kernels = data.graphs
    conv = next(n for n in file.nodes if n.op_type == "Conv")
    assert [kernels.nodes[i].op_type for i in conv.links] == ["Conv + Relu"]


def test_blocks_of_the_arena_that_live_together_do_not_overlap(digits: tuple[str, ReportData]) -> None:
    _, data = digits
    (arena,) = data.memory
    assert arena.allocations and all(b.offset + b.nbytes <= arena.arena_nbytes for b in arena.allocations)
    for i, a in enumerate(arena.allocations):
        for b in arena.allocations[:i]:
            apart = a.last < b.first or b.last < a.first
            assert apart or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


@pytest.mark.parametrize("name", HOSTILE)
def test_strings_of_a_model_stay_text(name: str, tmp_path: Path) -> None:
    clean, hostile = tmp_path / "clean.html", tmp_path / "hostile.html"
    write_report(hostile_model("plain"), clean, diagnose=False)
    write_report(hostile_model(name), hostile, title=name, diagnose=False)
    expected, found = Parsed(clean.read_text("utf-8")), Parsed(hostile.read_text("utf-8"))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in expected.tags]
    assert found.scripts[1] == expected.scripts[1]
    data = json.loads(found.scripts[0])
    shown = name.replace("\u2028", "\ufffd").replace("\u2029", "\ufffd")
    assert data["title"] == shown and data["graphs"][0]["nodes"][0]["label"] == f"node {shown}"


def test_names_of_any_length_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "long.html"
    write_report(hostile_model("n" * 1_000_000), path, diagnose=False)
    text = path.read_text("utf-8")
    assert len(text) < 300_000
    assert len(json.loads(Parsed(text).scripts[0])["graphs"][0]["nodes"][0]["label"]) == LONGEST + 1


def test_lone_surrogates_do_not_stop_the_page(digits: tuple[str, ReportData]) -> None:
    _, data = digits
    changed = type(data)(**{**data.__dict__, "title": "half \ud800 a pair"})
    assert "half \ufffd a pair" in page(changed).encode().decode()


def test_a_model_on_the_reference_provider_is_drawn_too(tmp_path: Path) -> None:
    nodes = [helper.make_node("StringConcat", ["x", "x"], ["y"])]
    strings = TensorProto.STRING
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", strings, [2])],
        [helper.make_tensor_value_info("y", strings, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    data = write_report(model, tmp_path / "strings.html")
    assert [n.kernel for n in data.graphs[2].nodes] == ["numpy"] and not data.memory
    assert data.layers[0].kernel == "numpy"


def test_given_inputs_are_used(root: Path, tmp_path: Path) -> None:
    feeds = {"image": np.zeros((5, 8, 8), np.uint8)}
    data = write_report(root / "demo" / "digits.onnx", tmp_path / "report.html", feeds=feeds)
    assert any("[5, " in output for n in data.graphs[2].nodes for output in n.outputs)


def test_bad_input_leaves_nothing_behind(root: Path, tmp_path: Path) -> None:
    model = root / "demo" / "digits.onnx"
    with pytest.raises(NoSuchFile):
        write_report(tmp_path / "nothing.onnx", tmp_path / "a.html")
    with pytest.raises(Fail, match="cannot be written"):
        write_report(model, tmp_path / "no" / "such" / "folder.html")
    with pytest.raises(InvalidArgument, match="no such input"):
        write_report(model, tmp_path / "a.html", feeds={"picture": np.zeros((1, 8, 8), np.uint8)})
    with pytest.raises(sardonyx.errors.SardonyxError):
        write_report(b"\xff\xd8\xff\xe0 a JPEG", tmp_path / "a.html")
    assert not list(tmp_path.iterdir())
