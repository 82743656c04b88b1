"""States bound to an input and an output: grown in place where the model appends, right everywhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.session.misuse import ExecutionError
from tests.comparing import assert_same

Array = np.ndarray[Any, Any]
LAYERS, HEADS, WIDTH, STEPS = 2, 4, 8, 64
HIDDEN = HEADS * WIDTH


def decoder(form: str) -> bytes:
    """A decoder over embedded tokens, its attention as one operator or written out around Concat."""
    rng = np.random.default_rng(0)
    nodes, weights = [], [numpy_helper.from_array(np.array([0, 0, HEADS, WIDTH]), "heads")]
    weights.append(numpy_helper.from_array(np.array([0, 0, HIDDEN]), "merged"))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", HIDDEN])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "s", HIDDEN])]
    x = "x"
    for layer in range(LAYERS):
        for name in "qkv":
            w = rng.standard_normal((HIDDEN, HIDDEN)) / np.sqrt(HIDDEN)
            weights.append(numpy_helper.from_array(w.astype("f"), f"w{name}{layer}"))
            nodes.append(helper.make_node("MatMul", [x, f"w{name}{layer}"], [f"{name}{layer}"]))
        past, present = ([f"{word}.{layer}.{what}" for what in ("key", "value")] for word in ("past", "present"))
        shape = ["b", HEADS, "p", WIDTH]
        inputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in past]
        outputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", HEADS, "t", WIDTH]) for n in present]
        q, k, v = (f"{name}{layer}" for name in "qkv")
        if form == "operator":
            counts = dict(q_num_heads=HEADS, kv_num_heads=HEADS, is_causal=1)
            nodes.append(helper.make_node("Attention", [q, k, v, "", *past], [f"a{layer}", *present], **counts))
        else:
            for name in (q, k, v):
                nodes.append(helper.make_node("Reshape", [name, "heads"], [f"{name}r"]))
                nodes.append(helper.make_node("Transpose", [f"{name}r"], [f"{name}t"], perm=[0, 2, 1, 3]))
            for old, new, both in zip(past, (k, v), present, strict=True):
                nodes.append(helper.make_node("Concat", [old, f"{new}t"], [both], axis=2))
            nodes.append(helper.make_node("Transpose", [present[0]], [f"turned{layer}"], perm=[0, 1, 3, 2]))
            nodes.append(helper.make_node("MatMul", [f"{q}t", f"turned{layer}"], [f"scores{layer}"]))
            nodes.append(helper.make_node("Softmax", [f"scores{layer}"], [f"p{layer}"], axis=-1))
            nodes.append(helper.make_node("MatMul", [f"p{layer}", present[1]], [f"sums{layer}"]))
            nodes.append(helper.make_node("Transpose", [f"sums{layer}"], [f"back{layer}"], perm=[0, 2, 1, 3]))
            nodes.append(helper.make_node("Reshape", [f"back{layer}", "merged"], [f"a{layer}"]))
        last = layer == LAYERS - 1
        nodes.append(helper.make_node("Add", [x, f"a{layer}"], ["y" if last else f"x{layer}"]))
        x = f"x{layer}"
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    return bytes(model.SerializeToString())


def empty(session: sx.InferenceSession, batch: int = 1) -> dict[str, Array]:
    names = [i.name for i in session.get_inputs() if i.name.startswith("past")]
    return {name: np.zeros((batch, HEADS, 0, WIDTH), "f") for name in names}


def bound(session: sx.InferenceSession, capacity: int | None, batch: int = 1) -> sx.IOBinding:
    binding = session.io_binding()
    binding.bind_output("y")
    for name, value in empty(session, batch).items():
        binding.bind_state(name, name.replace("past", "present"), value, capacity=capacity)
    return binding


def by_copying(session: sx.InferenceSession, tokens: list[Array]) -> list[list[Array]]:
    """Every output of each step; the caller feeds the state back."""
    past, told = empty(session, len(tokens[0])), []
    for x in tokens:
        results = session.run(None, {"x": x, **past})
        past = dict(zip(past, results[1:], strict=True))
        told.append(results)
    return told


def in_place(session: sx.InferenceSession, tokens: list[Array], capacity: int | None = STEPS) -> list[list[Array]]:
    binding, told = bound(session, capacity, len(tokens[0])), []
    for x in tokens:
        binding.bind_cpu_input("x", x)
        session.run_with_iobinding(binding)
        told.append(binding.copy_outputs_to_cpu())
    return told


def tokens(seed: int, lengths: list[int], batch: int = 1) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((batch, n, HIDDEN)).astype("f") for n in lengths]


@pytest.fixture(scope="module", params=["operator", "written out"])
def session(request: pytest.FixtureRequest) -> sx.InferenceSession:
    return sx.InferenceSession(decoder(request.param))


def test_a_token_at_a_time(session: sx.InferenceSession) -> None:
    given = tokens(0, [1] * STEPS)
    assert_same(in_place(session, given), by_copying(session, given))


@pytest.mark.parametrize("capacity", [40, 41, None])
def test_a_prompt_first(session: sx.InferenceSession, capacity: int | None) -> None:
    given = tokens(1, [17, 1, 3, 1, 1, 17], batch=2)
    assert_same(in_place(session, given, capacity), by_copying(session, given))


def test_a_growing_state_is_not_copied(session: sx.InferenceSession) -> None:
    binding = bound(session, STEPS)
    places = []
    for x in tokens(2, [3, 1, 1]):
        binding.bind_cpu_input("x", x)
        session.run_with_iobinding(binding)
        _, *states = binding.get_outputs()
        places.append([v.data_ptr() for v in states])
    assert places[0] == places[1] == places[2]


def test_only_new_elements_are_copied(session: sx.InferenceSession) -> None:
    given = tokens(3, [2, 1])
    in_place(session, given), by_copying(session, given)
    plain = session._sess.engine.planned
    (appending,) = {e for key, e in plain._appending.items() if key[0][3] == STEPS}
    assert len(plain.table.steps) - len(appending.table.steps) == 2 * LAYERS


def test_callers_have_separate_states(session: sx.InferenceSession) -> None:
    every = [tokens(seed, [1 + seed, *[1] * 20]) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda given: in_place(session, given), every))
    for told, given in zip(got, every, strict=True):
        assert_same(told, by_copying(session, given))


def test_a_full_state_refuses_more_and_keeps_what_it_has(session: sx.InferenceSession) -> None:
    binding = bound(session, 4)
    first, second, third = tokens(4, [3, 2, 1])
    for x in (first, second, third):
        binding.bind_cpu_input("x", x)
        if x is second:
            with pytest.raises(ExecutionError, match="no room"):
                session.run_with_iobinding(binding)
        else:
            session.run_with_iobinding(binding)
    assert_same([binding.copy_outputs_to_cpu()], by_copying(session, [first, third])[1:])


CHANGED = {
    "scaled": "past2 = Mul(past, two) present = Concat<axis = 0>(past2, x)",
    "put behind": "present = Concat<axis = 0>(x, past)",
    "shifted": "whole = Concat<axis = 0>(past, x) present = Slice(whole, one, end, zero)",
    "a copy": "present = Identity(past)",
}


@pytest.mark.parametrize("body", CHANGED.values(), ids=CHANGED)
def test_a_state_that_is_modified_is_copied(body: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[n] x, float[p] past) => (float[t] present)
    <float two = {{2}}, int64[1] one = {{1}}, int64[1] end = {{1000}}, int64[1] zero = {{0}}> {{ {body} }}"""
    model = onnx.parser.parse_model(text).SerializeToString()
    session, past = sx.InferenceSession(model), np.arange(3, dtype="f")
    binding = session.io_binding()
    binding.bind_state("past", "present", past, capacity=20, axis=0)
    for i in range(4):
        x = np.arange(i + 1, dtype="f") - 7
        binding.bind_cpu_input("x", x)
        session.run_with_iobinding(binding)
        (past,) = session.run(None, {"x": x, "past": past})
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], past)


def test_a_recurrent_state() -> None:
    head = '<ir_version: 10, opset_import: ["" : 21]> g (float[4] x, float[4] h) => (float[4] n)'
    text = head + " { z = Add(x, h) n = Tanh(z) }"
    session = sx.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    binding, h = session.io_binding(), np.zeros(4, "f")
    binding.bind_state("h", "n", h)
    for x in np.random.default_rng(0).standard_normal((5, 4)).astype("f"):
        binding.bind_cpu_input("x", x)
        session.run_with_iobinding(binding)
        (h,) = session.run(None, {"x": x, "h": h})
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], h)


@pytest.mark.parametrize("capacity", [None, 8])
def test_an_input_that_is_bound_again_is_no_state_any_more(capacity: int | None) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[n] x, float[p] past) => (float[t] present) { present = Concat<axis = 0>(past, x) }"""
    session = sx.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    binding = session.io_binding()
    binding.bind_state("past", "present", np.zeros(0, "f"), capacity=capacity, axis=0)
    binding.bind_cpu_input("x", np.array([1, 2], "f"))
    session.run_with_iobinding(binding)
    binding.bind_cpu_input("past", np.array([7], "f"))
    for _ in range(2):
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == [7, 1, 2]
