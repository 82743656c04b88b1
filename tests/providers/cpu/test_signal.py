"""Transforms, equations, recurrences and random numbers as compiled code, on several chips and numbers of threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import sardonyx as sx
from sardonyx.lower.groups import LinearAttention
from sardonyx.ops import random, registry
from sardonyx.providers.cpu.kernels.attention import linear
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array, Memory

CHIPS = [None, "haswell", "skylake-avx512", "sapphirerapids"]
RNG = np.random.default_rng(5)


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def parts(z: Array) -> Array:
    return np.stack([z.real, z.imag], axis=-1)


def assert_near(got: Array, want: Array, tolerance: float) -> None:
    assert got.shape == want.shape
    assert np.abs(got - want).max(initial=0) <= tolerance * max(np.abs(want).max(initial=0), 1)


@pytest.mark.parametrize(("chip", "points"), [(None, 10), (None, 1000), (None, 1031), ("skylake-avx512", 1000)])
def test_transforms(chip: str | None, points: int) -> None:
    """In one round, in two, and by a convolution."""
    x = normal(3, points, 2)
    compiled = Compiled("y = DFT(x)", f"float[3,{points},2] x", f"float[3,{points},2] y", chip)
    want = parts(np.fft.fft(x[..., 0] + 1j * x[..., 1].astype(float), axis=1))
    results = [compiled.run([x], threads=threads, checked=points == 10)[0] for threads in (1, 2, 3)]
    assert_near(results[0], want, 1e-6)
    assert all(np.array_equal(r, results[0]) for r in results)


@pytest.mark.parametrize("length", [400, 1024])
def test_frames(length: int) -> None:
    body = f"s = Constant<value = int64 {{160}}>() l = Constant<value = int64 {{{length}}}>() y = STFT(x, s, w, l)"
    x, w = normal(2, 3300), np.hanning(length).astype(np.float32)
    compiled = Compiled(body, f"float[b,n] x, float[{length}] w", "float[b,f,k,2] y")
    (got,) = compiled.run([x, w], threads=2)
    frames = np.lib.stride_tricks.sliding_window_view(x.astype(float), length, axis=1)[:, ::160] * w
    assert_near(got, parts(np.fft.rfft(frames)), 1e-6)


EQUATIONS: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
    ("ij,jk->ki", ((7, 33), (33, 5))),
    ("bhij,bjhd->bihd", ((2, 3, 4, 6), (2, 6, 3, 5))),
    ("abk,kcd->acbd", ((2, 3, 4), (4, 5, 6))),
    ("abc,cd,db->a", ((3, 4, 5), (5, 6), (6, 4))),
    ("ij,jk->ik", ((3, 0), (0, 5))),
    ("bii->bi", ((2, 17, 17),)),
    ("i,ij,j->", ((3,), (3, 4), (4,))),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=[e for e, _ in EQUATIONS])
def test_equations(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    given = [normal(*shape) for shape in shapes]
    inputs = ", ".join(f"float[{','.join(map(str, s))}] x{i}" for i, s in enumerate(shapes))
    names = ", ".join(f"x{i}" for i in range(len(shapes)))
    want = np.einsum(equation, *(x.astype(float) for x in given))
    shape = f"[{','.join(map(str, want.shape))}]" if want.ndim else ""
    compiled = Compiled(f'y = Einsum<equation = "{equation}">({names})', inputs, f"float{shape} y")
    assert_near(compiled.run(given, threads=2)[0], want, 1e-5)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("tokens", "width", "columns"), [(1, 8, 16), (5, 3, 17), (3, 4, 1), (0, 4, 5)])
def test_linear_attention(chip: str | None, tokens: int, width: int, columns: int) -> None:
    q, k, v = normal(2, 4, tokens, width), normal(2, 2, tokens, width), normal(2, 2, tokens, columns)
    decay, beta = np.exp(-np.abs(normal(2, 2, tokens, width))), np.abs(normal(2, 2, tokens))
    past = normal(2, 2, width, columns)
    state, want = past.astype(float), np.zeros((2, 4, tokens, columns))
    for t in range(tokens):
        state = state * decay[:, :, t, :, None]
        write = beta[:, :, t, None] * (v[:, :, t] - np.einsum("bhd,bhdc->bhc", k[:, :, t], state))
        state = state + k[:, :, t, :, None] * write[:, :, None]
        want[:, :, t] = 0.5 * np.einsum("bhd,bhdc->bhc", q[:, :, t], np.repeat(state, 2, axis=1))
    for threads in (1, 3):
        memory, machine = Memory(), isa.named(chip)
        out, present = memory.output(want.shape, "f4"), memory.output(past.shape, "f4")
        views = [memory.input(x) for x in (q, k, v, decay, beta, past)]
        group = LinearAttention((), *views, out, present, 0.5)
        memory.run(linear.steps(group, Analysis(Target(machine))), threads=threads, isa=machine, checked=True)
        assert_near(memory.array(out), want, 1e-5)
        assert_near(memory.array(present), state, 1e-5)


P = RNG.random((37, 41)).astype(np.float32)
DRAWS: list[tuple[str, dict[str, Array], dict[str, Any], int]] = [
    ("RandomNormal", {}, {"shape": [50, 70], "mean": 1.0, "scale": 2.0}, 1),
    ("RandomNormalLike", {"x": P.astype(np.float64)}, {}, 11),
    ("RandomUniform", {}, {"shape": [50, 70], "dtype": 10}, 10),
    ("RandomUniformLike", {"x": P}, {"low": -1.0}, 1),
    ("Bernoulli", {"x": P}, {"dtype": 9}, 9),
    ("Multinomial", {"x": np.log(P)}, {"sample_size": 9}, 6),
]


def session(name: str, feeds: Mapping[str, Array], attributes: Mapping[str, Any], to: int, threads: int) -> Any:
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()
    ]
    node = helper.make_node(name, list(feeds), ["y"], **attributes)
    graph = helper.make_graph([node], "g", inputs, [onnx.helper.make_tensor_value_info("y", to, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    options = sx.SessionOptions()
    options.intra_op_num_threads = threads
    made = sx.InferenceSession(model.SerializeToString(), options)
    assert {p.provider for p in made.explain().placements} == {"cpu"}
    return made


@pytest.mark.parametrize(("name", "feeds", "attributes", "to"), DRAWS, ids=[d[0] for d in DRAWS])
def test_random_numbers_are_those_of_the_reference(
    name: str, feeds: dict[str, Array], attributes: dict[str, Any], to: int
) -> None:
    """Run after run, whatever the number of threads."""
    attributes = {**attributes, "seed": 7.0}
    one, two = (session(name, feeds, attributes, to, threads) for threads in (1, 2))
    meaning, stream = registry.find("", name), random.stream(7.0)
    assert meaning is not None
    drawn = []
    for _ in range(2):
        want = meaning.numpy(*feeds.values(), generator=stream, **attributes)
        got = one.run(None, feeds)[0]
        assert np.array_equal(got, two.run(None, feeds)[0]) and got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-5, atol=2e-6)
        drawn.append(got)
    assert not np.array_equal(*drawn)


def test_nodes_without_a_seed_share_a_stream() -> None:
    drawing = session("RandomUniform", {}, {"shape": [100]}, 1, 1)
    sx.set_seed(3)
    first, second = (drawing.run(None, {})[0] for _ in range(2))
    sx.set_seed(3)
    again = session("RandomUniform", {}, {"shape": [100]}, 1, 1).run(None, {})[0]
    assert np.array_equal(first, again) and not np.array_equal(first, second)
