"""The fuzzers start, cover every operator, can make each case again, and find nothing in a fixed number of cases."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import sardonyx
from fuzz import cases, conditions, corpus, explained, schemas
from fuzz.compare import difference
from fuzz.fuzzers import FUZZERS
from fuzz.table import GENERATORS
from sardonyx.ops import registry
from tests.slices import TEST_ALL, first

ROOT = Path(__file__).resolve().parents[2]
MODELS = {"operators": 226, "graphs": 40, "models": 30, "binding": 16}
"""So many of each: about a minute in all on two cores."""
SEEDS = {"operators": 8, "graphs": 8, "models": 1, "binding": 8}
"""A commit takes the cases of one of so many seeds. Large models are slow on a slow machine, which is a finding too."""
CHIPS = ("host", "sapphirerapids")[: None if TEST_ALL else 1]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked, and watched by /proc")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(sardonyx.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "fuzz", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("fuzzer", MODELS)
def test_nothing_is_found(fuzzer: str, tmp_path: Path) -> None:
    which = ("--cases", str(MODELS[fuzzer]), "--seed", str(first(SEEDS[fuzzer])))
    done = run(fuzzer, *which, "--block", "20", "--workers", "1", "--keep", str(tmp_path))
    kept = "\n".join(p.read_text() for p in sorted(tmp_path.glob("*.txt")))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{kept}"[-20_000:]
    assert " cases of " in done.stdout


@pytest.mark.parametrize("chip", CHIPS)
def test_corpus(chip: str, tmp_path: Path) -> None:
    count = str(len(corpus.every()))
    done = run("corpus", "--cases", count, "--workers", "1", "--cpu", chip, "--strict", "--keep", str(tmp_path))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_every_fuzzer_is_tested() -> None:
    assert set(MODELS) | {"corpus"} == set(FUZZERS)


def test_every_operator_is_generated() -> None:
    done = run("--missing")
    assert done.returncode == 0 and not done.stdout.strip(), f"nothing generates {done.stdout}{done.stderr}"
    known = set(schemas.every())
    ours = {(op.domain, op.name) for op in registry.every() if op.domain in ("", "ai.onnx.ml") and op.custom is None}
    assert ours <= known and set(GENERATORS) <= known


def test_a_case_is_made_again_from_its_name(tmp_path: Path) -> None:
    from fuzz.fuzzers import by_name

    first, again = by_name("graphs/5/7+1"), by_name("graphs/5/7+1")
    assert first.model == again.model and first.options == again.options
    first.save(tmp_path / "case.zip")
    read = cases.load(tmp_path / "case.zip")
    assert (read.name, read.model, read.options, read.operator) == (
        first.name,
        first.model,
        first.options,
        first.operator,
    )
    for a, b in zip(first.runs, read.runs, strict=True):
        assert a.kind == b.kind and difference(list(b.feeds.values()), list(a.feeds.values()), kind="exact") is None


def test_a_case_is_kept_with_every_kind_of_feed(tmp_path: Path) -> None:
    feeds = {"a": [np.ones(2), np.zeros((0, 3))], "b": None, "c": {"k": 1.5}, "d": np.array(["x", "é"], object)}
    cases.Case("x/0/0", b"", (cases.Run(feeds),)).save(tmp_path / "case.zip")
    read = cases.load(tmp_path / "case.zip").runs[0].feeds
    assert read["b"] is None and read["c"] == {"k": 1.5} and list(read["d"]) == ["x", "é"]
    assert [v.shape for v in read["a"]] == [(2,), (0, 3)]


def test_planted_defects_are_found(tmp_path: Path) -> None:
    """A planted wrong answer, a foreign exception and a crash are distinguished."""
    done = run("--planted")
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_oracle_ends_with_its_parent() -> None:
    """A worker that is killed while onnxruntime runs an endless loop leaves no process behind."""
    body = "b (int64 i, bool c, float s) => (bool d, float t) { d = Identity(c) t = Identity(s) }"
    graph = f'g (bool c, float x) => (float y) {{ y = Loop<body = {body}>("", c, x) }}'
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {graph}').SerializeToString()
    question = pickle.dumps(("onnxruntime", model, {"c": np.array(True), "x": np.array(1, np.float32)}))
    program = "from fuzz import oracle; oracle.LIMIT_S = 1.0; oracle.serve(0, 1)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, input=struct.pack("<Q", len(question)) + question, timeout=60
    )
    assert done.returncode == -signal.SIGALRM


def test_reasons_are_sentences() -> None:
    assert all(" " in e.reason and not e.reason.endswith(".") for e in explained.EXPLAINED)


@pytest.mark.parametrize(
    ("condition", "node", "given", "others"),
    [
        (conditions.has_fractional_indices, "OneHot(a, b, c)", [[0.5]], [[2.0]]),
        (conditions.repeats_axes_of_nothing, "ReduceSum(a, b)", [np.ones((0, 3)), [1, -1]], [np.ones((0, 3)), [0, -1]]),
        (conditions.has_empty_threshold, "NonMaxSuppression(a, b, c, d)", [[0], [0], 1, []], [[0], [0], 1, [0.5]]),
        (conditions.is_past_doubles, "Range(a, b, c)", [-(1 << 62), 1, 1], [-(1 << 52), 1, 1]),
        (
            conditions.reduces_nan,
            'ScatterND<reduction="min">(a, b, c)',
            [[np.nan], [[0]], [1.0]],
            [[1.0], [[0]], [1.0]],
        ),
        (conditions.has_other_spaces, "StringSplit(a)", ["a\tb"], ["a b"]),
    ],
)
def test_conditions_look_at_the_operands(condition: Any, node: str, given: list[Any], others: list[Any]) -> None:
    graph = parser.parse_graph(f"g (float a, float b, float c, float d) => (y) {{ y = {node} }}")
    for values, holds in ((given, True), (others, False)):
        feeds = {name: np.array(v) for name, v in zip("abcd", values, strict=False)}
        assert condition(graph.node[0], conditions.operands(graph, graph.node[0], feeds)) is holds
