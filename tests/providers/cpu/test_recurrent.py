"""Recurrent layers, against onnxruntime and, for what it lacks, the groups' own meaning."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx
from sardonyx.errors import Fail
from sardonyx.lower import interpret
from tests.comparing import assert_same
from tests.lower.agree import ROUNDING, feeds, parse, part_of
from tests.lower.layers import BOTH, GATES, LATE, LAYERS, Layer
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array

ort = pytest.importorskip("onnxruntime")

CASES = {
    **{name: LAYERS[name] for name in ("rnn", "gru", "coupled gates", "clipped", "both ways", "functions")},
    "one unit": Layer("LSTM", hidden=1, width=1),
    "a whole vector": Layer("LSTM", hidden=16, has_peepholes=True),
    "a vector and one": Layer("GRU", LATE, hidden=17, has_lengths=True),
    "lengths": Layer("LSTM", BOTH, ways=2, hidden=8, has_lengths=True),
    "backwards with lengths": Layer("RNN", 'direction = "reverse"', hidden=12, has_lengths=True),
    "many units": Layer("LSTM", hidden=128, width=20),
    "many units, two stages": Layer("GRU", BOTH, ways=2, hidden=192, width=5),
}
SIZES = ({"t": 5, "n": 3}, {"t": 2, "n": 1}, {"t": 6, "n": 14})


def given(case: Layer, sizes: dict[str, int]) -> list[Array]:
    args = feeds(part_of(parse(*case.text)), sizes, top=sizes["t"] + 1)
    return [a * (2 / case.hidden**0.5) if a.dtype.kind == "f" and a.ndim == 3 else a for a in args]


def expected(case: Layer, args: list[Array]) -> list[Array]:
    body, inputs, outputs = case.text
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({outputs}) {{ {body} }}'
    session = ort.InferenceSession(
        onnx.parser.parse_model(text).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    return [np.asarray(v) for v in session.run(None, dict(zip(names, args, strict=True)))]


@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name: str) -> None:
    """Of a sequence without steps the last state is the first; onnxruntime gives 0, so there are none here."""
    case = CASES[name]
    compiled = Compiled(*case.text)
    for sizes in SIZES:
        args = [np.maximum(a, 1) if a.dtype == np.int32 else a for a in given(case, sizes)]
        got = compiled.run(args)
        for a, b in zip(got, expected(case, args), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
        for threads in (2, 3):
            for a, b in zip(compiled.run(args, threads=threads), got, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize("name", ["a vector and one", "lengths", "many units"])
def test_other_chips(name: str, cpu: str) -> None:
    case = CASES[name]
    compiled = Compiled(*case.text, cpu)
    for sizes in (*SIZES, {"t": 0, "n": 2}):
        args = given(case, sizes)
        for a, b in zip(compiled.run(args, threads=2), interpret.run(compiled.lowered, args), strict=True):
            assert_same(a, b, ROUNDING)


@pytest.mark.parametrize("cpu", ["sapphirerapids", "haswell"])
@pytest.mark.parametrize("name", ["lengths", "many units", "many units, two stages", "a vector and one"])
def test_a_sequence_does_not_depend_on_those_beside_it(name: str, cpu: str) -> None:
    """Whatever batch is multiplied at once, and whether it is known: to the last bit."""
    case = CASES[name]
    compiled = Compiled(*case.text, cpu)
    shapes = [text.split("[")[1].split("]")[0].split(",") for text in case.text[1].split(", ")]
    axes = [shape.index("n") if "n" in shape else None for shape in shapes]
    every = given(case, {"t": 3, "n": 9})
    want = compiled.run(every)
    for batch in (1, 2, 3, 4, 5, 7, 8):
        args = [a if axis is None else np.take(a, range(batch), axis) for a, axis in zip(every, axes, strict=True)]
        known = Compiled(*(part.replace(",n,", f",{batch},").replace("[n]", f"[{batch}]") for part in case.text), cpu)
        for found in (compiled.run(args), known.run(args)):
            for a, b in zip(found, want, strict=True):
                np.testing.assert_array_equal(a, np.take(b, range(batch), b.ndim - 2))


@pytest.mark.parametrize(
    "case",
    [
        Layer("LSTM", BOTH, ways=2, hidden=9, dtype="float16", has_lengths=True),
        Layer("GRU", hidden=9, dtype="double"),
        Layer("LSTM", hidden=5, dtype="bfloat16"),
        Layer("LSTM", BOTH, ways=2, hidden=8, is_batch_first=True, has_lengths=True),
        Layer("RNN", f'{BOTH}, activations = ["Tanh", "Relu"]', ways=2, hidden=6),
    ],
)  # fmt: skip
def test_types_and_layouts_within_their_memory(case: Layer) -> None:
    compiled = Compiled(*case.text)
    for sizes in (*SIZES[:2], {"t": 0, "n": 2}, {"t": 2, "n": 0}):
        args = given(case, sizes)
        for a, b in zip(compiled.run(args, checked=True), interpret.run(compiled.lowered, args), strict=True):
            assert_same(a, b, ROUNDING)


@pytest.mark.parametrize(
    "names", ["Relu Softplus Elu", "Affine LeakyRelu ThresholdedRelu", "ScaledTanh HardSigmoid Softsign"]
)
def test_functions(names: str) -> None:
    said = ", ".join(f'"{name}"' for name in names.split())
    alphas, betas = "[0.7, 0.3, 0.4]", "[0.4, 0.2]"
    case = Layer("LSTM", f"activations = [{said}], activation_alpha = {alphas}, activation_beta = {betas}")
    args = [a * np.float32(0.2) for a in given(case, SIZES[0])]
    for a, b in zip(Compiled(*case.text).run(args), expected(case, args), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_affects_only_its_own_sequence(value: float) -> None:
    case = CASES["a whole vector"]
    compiled, args = Compiled(*case.text), given(case, {"t": 3, "n": 4})
    clean = compiled.run(args)
    args[0][1, 2, 0] = value
    spoilt = compiled.run(args)
    others = [0, 1, 3]
    for a, b in zip(spoilt, clean, strict=True):
        axis = a.ndim - 2
        np.testing.assert_array_equal(np.take(a, others, axis), np.take(b, others, axis))
    for a, b in zip(spoilt, interpret.run(compiled.lowered, args), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("length", [-1, 4])
def test_lengths_out_of_range(length: int) -> None:
    case = CASES["lengths"]
    args = given(case, {"t": 3, "n": 2})
    args[4] = np.array([1, length], np.int32)
    with pytest.raises(Fail):
        Compiled(*case.text).run(args)


def session(precision: str, threads: int, kind: str = "LSTM", hidden: int = 128) -> sardonyx.InferenceSession:
    """A layer with constant weights."""
    rng, height = np.random.default_rng(0), GATES[kind] * hidden
    weights = {name: rng.standard_normal((1, height, hidden)) / hidden**0.5 for name in ("w", "r")}
    node = helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=hidden)
    x = helper.make_tensor_value_info("x", 1, ["t", "n", hidden])
    y = helper.make_tensor_value_info("y", 1, ["t", 1, "n", hidden])
    constants = [numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights.items()]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], constants), ir_version=9)
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    return sardonyx.InferenceSession(model, options, precision=precision)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_threads_share_units(kind: str) -> None:
    x = np.random.default_rng(1).standard_normal((12, 1, 128)).astype(np.float32)
    alone, shared = (session("highest", threads, kind).run(None, {"x": x})[0] for threads in (1, 3))
    np.testing.assert_array_equal(alone, shared)


def test_weights_in_bf16() -> None:
    x = np.random.default_rng(1).standard_normal((6, 2, 128)).astype(np.float32)
    exact, rounded = (session(p, 1).run(None, {"x": x})[0] for p in ("highest", "medium"))
    assert not np.array_equal(exact, rounded)
    np.testing.assert_allclose(rounded, exact, atol=0.02)
