"""The programs' own parts: cases of kernels, folders of models, heads of pages, graphs that grow, steps outside."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from benchmarks import folder, page
from benchmarks.kernels import sequences
from benchmarks.kernels.__main__ import FAMILIES
from benchmarks.shapes import nets
from benchmarks.zoo.growing import GRAPHS
from benchmarks.zoo.net import Net
from benchmarks.zoo.trained import feeds_of
from sardonyx.bench.arrays import stored

SMALL = [case for family, cases in FAMILIES.items() for case in cases if family != "memory" and case.flops < 2e9]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_a_case_is_a_model(case: object) -> None:
    model = case.model()  # type: ignore[attr-defined]
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(model, strict_mode=True), full_check=True)


def test_names_of_cases_differ() -> None:
    for cases in FAMILIES.values():
        names = [case.name for case in cases]
        assert len(names) == len(set(names))


def test_a_case_has_feeds_reference_and_cost(tmp_path: Path) -> None:
    files = sequences.attention("tiny", 6, heads=2, width=4, mask="rows").write(tmp_path, has_errors=True)
    assert files.reference is not None
    cost, out = stored(files.reference, "cost"), stored(files.reference, "out")
    assert cost["flops"] == 4 * 6 * 6 * 2 * 4 and cost["moved"] == 4 * 4 * 6 * 2 * 4
    (got,) = sardonyx.InferenceSession(str(files.model)).run(None, stored(files.feeds, "in"))
    assert out["y"].dtype == np.float64
    np.testing.assert_allclose(got, out["y"], rtol=1e-5, atol=1e-6)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    net = Net(seed=3)
    y = net.linear("x", 4, 5)
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "net.onnx"
    path.write_bytes(net.model([("x", onnx.TensorProto.FLOAT, ["n", 4])], [y]))
    (tmp_path / "models" / "no.onnx").write_bytes(b"not a model")
    return tmp_path


def test_feeds_are_drawn_where_none_lie_beside_a_model(models: Path) -> None:
    (x,) = feeds_of(models / "models" / "net.onnx").values()
    assert x.shape == (1, 4) and x.dtype == np.float32 and x.any()


ARGS = {"threads": 1, "rounds": 2, "seconds": 0.005, "starts": 0, "processor_time": False}


def test_a_folder_is_run_and_what_does_not_run_is_named(models: Path) -> None:
    pytest.importorskip("onnxruntime")
    args = Namespace(**ARGS)
    paths = {path.stem: path for path in sorted((models / "models").glob("*.onnx"))}
    entries = {name: folder.entry_of(path, args, models) for name, path in paths.items()}
    assert len(entries["net"]["rounds"]["sardonyx"]) == 2 and set(entries["no"]["failed"]) == {
        "sardonyx",
        "onnxruntime",
    }
    lines = [*folder.head(args), *(folder.row(name, entry, args) for name, entry in entries.items())]
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| net", "| no"] and "not run by both" in lines[3]
    assert len({line.count("|") for line in lines}) == 1
    assert list(folder.summary(entries))[-1].endswith("of 1 are slower than onnxruntime.")


def test_starts_of_a_folder(models: Path) -> None:
    pytest.importorskip("onnxruntime")
    args = Namespace(**ARGS | {"rounds": 0, "starts": 1})
    entry = folder.entry_of(models / "models" / "net.onnx", args, models)
    assert entry["starts"]["sardonyx"]["cold"][0]["open_s"] > 0 and not entry["failed"]
    lines = [*folder.head(args), folder.row("net", entry, args)]
    assert len({line.count("|") for line in lines}) == 1
    assert next(folder.summary({"net": entry})).startswith("First start: at most ")


def test_slow_models_are_shown_with_their_steps(models: Path) -> None:
    paths = {"net": models / "models" / "net.onnx"}
    slow = {"rounds": {"sardonyx": [2.0, 2.0], "onnxruntime": [1.0, 1.0]}, "starts": {}, "failed": {}}
    lines = list(folder.slow(paths, {"net": slow}, threads=1))
    assert lines[0] == "## net: 0.50 [0.50, 0.50] times as fast as onnxruntime" and "gemm" in "".join(lines)
    fast = {**slow, "rounds": {"sardonyx": [1.0], "onnxruntime": [2.0]}}
    assert not list(folder.slow(paths, {"net": fast}, threads=1))


def test_a_page_says_where_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", [str(Path(page.__file__).with_name("folder.py")), "/somewhere/else", "--rounds", "4"]
    )
    text = page.head("Title", ("numpy", "no-such-package"))
    assert text.startswith("# Title") and "- Command: `python -m benchmarks.folder else --rounds 4`" in text
    assert f"numpy {np.__version__}, no no-such-package" in text
    page.write(tmp_path / "page.md", text)
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("result", sorted(page.RESULTS.iterdir()), ids=lambda p: p.name)
def test_a_result_is_a_page_with_a_head(result: Path) -> None:
    assert result.suffix == ".md" and result.stat().st_size < 50_000
    text = result.read_text(encoding="utf-8")
    assert text.startswith("# ") and ("\n| " in text or "\n```" in text)
    head = text.split("\n")[2:6]
    assert [line.split(":")[0] for line in head] == ["- Machine", "- Versions", "- Command", "- Date"]


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_grow(name: str) -> None:
    once, twice = (onnx.load_from_string(GRAPHS[name](times)) for times in (1, 2))
    assert 1.9 < len(twice.graph.node) / len(once.graph.node) <= 2


@pytest.mark.parametrize("net", nets.NETS)
def test_many_shapes_have_the_largest_in_the_middle(net: str) -> None:
    shapes = nets.shapes_of(net, 9)
    assert shapes[4] == nets.LARGEST[net] and len(set(shapes)) == 9 and nets.shapes_of(net, 1) == [nets.LARGEST[net]]
