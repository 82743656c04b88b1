"""Owners in the user's order, parts that meet at the right values, and providers that rewrite their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sardonyx.errors import EngineError
from sardonyx.ir.graph import Graph, Node
from sardonyx.ops.random import set_seed
from sardonyx.partition.provider import Claims, Executable, Part, RunContext
from sardonyx.providers.reference import ReferenceProvider
from sardonyx.session.build import build
from sardonyx.session.engine import BuildOptions
from tests.optimize.graphs import parse


class Doubling:
    """Claims Neg alone, and proves that it ran by counting."""

    name = "doubling"

    def __init__(self) -> None:
        self.runs = 0
        self.inner = ReferenceProvider()

    def probe(self) -> str | None:
        return None

    def claims(self, graph: Graph) -> Claims:
        return {n: None if n.op_type == "Neg" else "it is not a Neg" for n in graph.nodes}

    def prepare(self, graph: Graph, owned: list[Node]) -> None: ...

    def compile(self, part: Part) -> Executable:
        program, outer = self.inner.compile(part), self

        class Counted:
            def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
                outer.runs += 1
                return program.run(args, context)

        return Counted()


def proto(body: str, **kwargs: str) -> bytes:
    from sardonyx.model.save import model_to_proto

    return model_to_proto(parse(body, **kwargs)).SerializeToString()


def test_a_graph_is_cut_at_changes_of_owner_and_still_right() -> None:
    provider = Doubling()
    source = proto("a = Relu(x) b = Neg(a) c = Neg(b) d = Exp(c) e = Neg(d) f = Add(e, a) y = Add(f, b)")
    engine = build(source, BuildOptions(providers=[provider], level="disabled"))
    x = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    (y,) = engine.run({"x": x}, ["y"], RunContext())
    a = np.maximum(x, 0)
    np.testing.assert_allclose(y, -np.exp(a) + a - a, rtol=1e-6, atol=1e-6)
    assert provider.runs == 2
    rows = {p.op_type: p for p in engine.explain().placements}
    assert rows["Neg"].provider == "doubling"
    assert rows["Exp"].provider == "reference"
    assert rows["Exp"].reason == "doubling: it is not a Neg"


def test_nodes_that_need_nothing_of_each_other_are_in_few_parts() -> None:
    provider = Doubling()
    columns = " ".join(f"a{i} = Neg(x) b{i} = Exp(a{i}) c{i} = Relu(x) d{i} = Neg(c{i})" for i in range(5))
    sums = " ".join(f"s{i + 1} = Add(s{i}, b{i}) t{i + 1} = Add(t{i}, d{i})" for i in range(5))
    source = proto(f"s0 = Abs(x) t0 = Abs(x) {columns} {sums} y = Sub(s5, t5)")
    engine = build(source, BuildOptions(providers=[provider], level="disabled"))
    x = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    (y,) = engine.run({"x": x}, ["y"], RunContext())
    np.testing.assert_allclose(y, 5 * np.exp(-x) + 5 * np.maximum(x, 0), rtol=1e-5)
    assert provider.runs == 1


def test_nodes_with_bodies_wait_for_what_these_capture() -> None:
    provider = Doubling()
    body = "branch () => (float[2,3] r) { r = Exp(c) }"
    source = proto(
        f"a = Neg(x) b = Exp(x) c = Neg(b) t = Constant<value = bool {{1}}>() "
        f"d = If(t)<then_branch = {body}, else_branch = {body}> e = Neg(d) y = Add(a, e)"
    )
    engine = build(source, BuildOptions(providers=[provider], level="disabled"))
    x = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_allclose(engine.run({"x": x}, ["y"], RunContext())[0], -x - np.exp(-np.exp(x)), rtol=1e-5)


def test_random_numbers_are_drawn_in_the_order_of_the_file() -> None:
    """A provider that claims other nodes changes no answer."""
    body = "a = RandomNormalLike(x) b = Neg(a) c = RandomUniformLike(b) d = Exp(x) e = Neg(d) y = Add(c, e)"
    body += " z = RandomNormalLike(e) w = Sub(a, z)"
    x, found = np.zeros((2, 3), np.float32), []
    for provider in (Doubling(), ReferenceProvider()):
        engine = build(proto(body, outputs="float[2,3] y, float[2,3] w"), BuildOptions(providers=[provider]))
        set_seed(7)
        found.append(engine.run({"x": x}, ["y", "w"], RunContext()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("unverified")
def test_a_part_that_fails_to_compile_runs_on_the_last_provider(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Doubling):
        def compile(self, part: Part) -> Executable:
            raise EngineError("compile failed with IndexError")

    source, x = proto("a = Relu(x) y = Neg(a)"), np.ones((2, 3), np.float32)
    engine = build(source, BuildOptions(providers=[Broken()], level="disabled"))
    np.testing.assert_array_equal(engine.run({"x": x}, ["y"], RunContext())[0], -x)
    assert "doubling cannot compile a part, which reference runs: compile failed with IndexError" in caplog.text
    rows = {p.op_type: p for p in engine.explain().placements}
    assert rows["Neg"].provider == "reference" and "IndexError" in rows["Neg"].reason
    monkeypatch.setenv("SARDONYX_VERIFY", "1")
    with pytest.raises(EngineError):
        build(source, BuildOptions(providers=[Broken()], level="disabled"))


def test_a_part_outputs_values_that_only_subgraphs_read() -> None:
    source = proto(
        "a = Neg(x) c = Constant<value_int=1>() b = Cast<to=9>(c) "
        "y = If(b) <then_branch = t () => (float[2,3] p) { p = Exp(a) }, "
        "else_branch = e () => (float[2,3] q) { q = Abs(a) }>"
    )
    engine = build(source, BuildOptions(providers=[Doubling()], level="disabled"))
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(engine.run({"x": x}, ["y"], RunContext())[0], np.exp(-x))


def test_the_only_part_takes_inputs_in_the_order_of_the_graph() -> None:
    source = proto(
        "a = Sub(w, x) b = Neg(a)", inputs="float[2,3] x, float[2,3] w", outputs="float[2,3] b, float[2,3] a"
    )
    engine = build(source, BuildOptions(level="disabled"))
    assert engine.parts.whole is not None
    x, w = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    b, a = engine.run({"x": x, "w": w}, ["b", "a"], RunContext())
    np.testing.assert_array_equal(b, -w)
    np.testing.assert_array_equal(a, w)


def test_every_node_is_explained_with_its_origin_in_the_file() -> None:
    engine = build(proto("a = Relu(x) y = Gelu(a)"), BuildOptions())
    assert [p.op_type for p in engine.explain().placements] == ["Relu", "Gelu"]
    text = str(engine.explain())
    assert "reference" in text and "Gelu" in text and "load" in text
