import numpy as np
import pytest
from onnx import helper

import sardonyx
from sardonyx import dtypes, errors
from sardonyx.ir.scalar import run_numpy, trace
from sardonyx.ops import random, registry
from tests.ops.peers import meaning, normal, same

DRAWS = [
    ("RandomNormal", [], {"shape": [200, 100], "mean": 2.0, "scale": 3.0}, 2.0, 3.0),
    ("RandomNormalLike", [np.zeros((200, 100), np.float32)], {}, 0.0, 1.0),
    ("RandomUniform", [], {"shape": [200, 100], "low": -1.0, "high": 3.0}, 1.0, 4 / 12**0.5),
    ("RandomUniformLike", [np.zeros((200, 100), np.float32)], {}, 0.5, 12**-0.5),
    ("Bernoulli", [np.full((200, 100), 0.3, np.float32)], {}, 0.3, 0.21**0.5),
]


@pytest.mark.parametrize(("name", "inputs", "attributes", "mean", "deviation"), DRAWS, ids=[d[0] for d in DRAWS])
def test_law(name, inputs, attributes, mean, deviation):
    got = meaning(name, *inputs, seed=2.0, **attributes)[0]
    assert got.shape == (200, 100) and got.dtype == np.float32
    np.testing.assert_allclose([got.mean(), got.std()], [mean, deviation], atol=0.06)


@pytest.mark.parametrize(("name", "inputs", "attributes", "mean", "deviation"), DRAWS, ids=[d[0] for d in DRAWS])
def test_seeds(name, inputs, attributes, mean, deviation):
    same(meaning(name, *inputs, seed=3.0, **attributes), meaning(name, *inputs, seed=3.0, **attributes))
    assert not np.array_equal(
        meaning(name, *inputs, seed=4.0, **attributes)[0], meaning(name, *inputs, seed=3.0, **attributes)[0]
    )
    random.set_seed(11)
    first, second = (meaning(name, *inputs, **attributes)[0] for _ in range(2))
    assert not np.array_equal(first, second)
    random.set_seed(11)
    same(meaning(name, *inputs, **attributes), [first])
    kept = random.stream(3.0)
    one, two = (meaning(name, *inputs, seed=3.0, generator=kept, **attributes)[0] for _ in range(2))
    same([one], meaning(name, *inputs, seed=3.0, **attributes))
    assert not np.array_equal(one, two)


@pytest.mark.parametrize("name", [d[0] for d in DRAWS])
def test_types(name):
    inputs = [] if name in ("RandomNormal", "RandomUniform") else [np.full((2, 3), 0.5, np.float32)]
    shape = {} if inputs else {"shape": [2, 3]}
    for t in (dtypes.f64, dtypes.f16, dtypes.bf16):
        assert meaning(name, *inputs, dtype=t.onnx, **shape)[0].dtype == t.numpy
    assert not registry.find("", name).pure


def test_multinomial():
    x = np.log(np.array([[0.1, 0.6, 0.3], [1, 0, 0]], np.float32) + 1e-30)
    got = meaning("Multinomial", x, sample_size=5000, seed=2.0, dtype=7)[0]
    assert got.dtype == np.int64 and got.shape == (2, 5000)
    np.testing.assert_allclose(np.bincount(got[0]) / 5000, [0.1, 0.6, 0.3], atol=0.03)
    assert not got[1].any()


def test_dropout():
    x = normal(100, 100)
    same(meaning("Dropout", x, np.array(0.5, np.float32), outputs=2), [x, np.ones(x.shape, bool)])
    same(meaning("Dropout", x), [x])
    y, mask = meaning("Dropout", x, np.array(0.25, np.float32), np.array(True), seed=5, outputs=2)
    assert 0.73 < mask.mean() < 0.77
    same([y], [np.where(mask, x / 0.75, 0).astype(np.float32)])
    same(meaning("Dropout", x, np.array(0.0, np.float32), np.array(True), outputs=2), [x, np.ones(x.shape, bool)])
    with pytest.raises(errors.InvalidArgument, match="ratio"):
        meaning("Dropout", x, np.array(1.5, np.float32), np.array(True))


@pytest.mark.parametrize(
    ("counter", "seed", "words"),
    [
        (0, 0, (0xFF1DAE59, 0x6CD10DF2)),
        (-1, 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        (0x85A308D3243F6A88 - (1 << 64), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_the_known_answers_of_philox(counter, seed, words):
    for i, word in enumerate(words):
        program = trace(lambda e, c, f, s, i=i: random._words(e, c, f, s)[i], (True,) * 3)
        got = run_numpy(program, np.array([counter]), np.asarray(0), np.asarray(seed))
        assert int(got[0]) == word


@pytest.mark.parametrize("dtype", [1 << 31, -(1 << 63), 0, 99])
def test_unknown_types_are_told(dtype: int) -> None:
    """They do not fit the field of a declared type, either."""
    node = helper.make_node("RandomUniform", [], ["y"], shape=[2], dtype=dtype)
    y = helper.make_tensor_value_info("y", 1, None)
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(helper.make_graph([node], "g", [], [y]), ir_version=10, opset_imports=opsets)
    with pytest.raises(errors.InvalidGraph):
        sardonyx.InferenceSession(model.SerializeToString()).run(None, {})
