import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peers import agree, meaning, normal, reference, rounds_once, same

NARROW = [np.float16, ml_dtypes.bfloat16]
IMAGES = [(2, 3, 5), (2, 3, 5, 4), (2, 4, 3, 5, 4)]


def statistics(channels, dtype=np.float32):
    scale, bias, mean, var = (normal(channels, seed=k, dtype=dtype) for k in range(4))
    return scale, bias, mean, np.abs(var) + dtype(0.1)


@pytest.mark.parametrize("shape", [(6, 3), *IMAGES])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_normalization(shape, dtype):
    agree("BatchNormalization", normal(*shape, dtype=dtype), *statistics(shape[1], dtype), epsilon=1e-3)


@pytest.mark.parametrize("shape", IMAGES)
def test_batch_normalization_in_training(shape):
    args = (normal(*shape), *statistics(shape[1]))
    agree("BatchNormalization", *args, outputs=3, training_mode=1, momentum=0.7, peer=reference)


def test_batch_normalization_of_mixed_types():
    x, (scale, bias, mean, var) = normal(2, 3, 4, dtype=np.float16), statistics(3)
    got = meaning("BatchNormalization", x, scale, bias, mean, var, outputs=3, training_mode=1)
    assert [v.dtype for v in got] == [np.float16, np.float32, np.float32]


@pytest.mark.parametrize("shape", IMAGES)
def test_instance_and_group_normalization(shape):
    x, scale, bias = normal(*shape) + 3, normal(shape[1]), normal(shape[1], seed=1)
    agree("InstanceNormalization", x, scale, bias, epsilon=1e-2)
    groups = 2 if shape[1] == 4 else 3
    (got,) = meaning("GroupNormalization", x, scale, bias, num_groups=groups)
    parts = x.reshape(shape[0], groups, -1).astype(np.float64)
    parts = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 1e-5)
    spread = (-1,) + (1,) * (len(shape) - 2)
    same((got,), ((parts.reshape(shape) * scale.reshape(spread) + bias.reshape(spread)).astype(np.float32),))


@pytest.mark.parametrize("axis", [-1, 1, 0, -2])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_normalization(axis, bias):
    x = normal(3, 4, 5) * 2 + 1
    tail = x.shape[axis:]
    scale, b = normal(*tail), normal(*tail, seed=1) if bias else None
    agree("LayerNormalization", x, scale, b, outputs=3, axis=axis, epsilon=1e-3)
    agree("RMSNormalization", x, scale, axis=axis, peer=reference)


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_floats_round_once(dtype):
    x, (scale, bias, mean, var) = normal(4, 6, 5) + 2, statistics(6)
    rounds_once("BatchNormalization", dtype, x, scale, bias, mean, var)
    rounds_once("InstanceNormalization", dtype, x, scale, bias)
    rounds_once("GroupNormalization", dtype, x, scale, bias, num_groups=2)
    rounds_once("LayerNormalization", dtype, x, normal(5), normal(5, seed=1), outputs=3)
    rounds_once("RMSNormalization", dtype, x, normal(5))
    rounds_once("LpNormalization", dtype, x)
    rounds_once("LRN", dtype, x, size=3)
    rounds_once("MeanVarianceNormalization", dtype, x, axes=[0, 2])


def test_stashed_statistics_have_their_own_type():
    x, scale = normal(3, 8, dtype=np.float16), normal(8, dtype=np.float16)
    assert [v.dtype for v in meaning("LayerNormalization", x, scale, outputs=3)] == [np.float16, np.float32, np.float32]
    stashed = meaning("LayerNormalization", x, scale, outputs=3, stash_type=16)[1]
    assert stashed.dtype == ml_dtypes.bfloat16
    assert meaning("RMSNormalization", x, scale.astype(np.float32))[0].dtype == np.float32


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lp_normalization(p, axis):
    x = normal(3, 4, 5)
    x[1] = 0
    y = meaning("LpNormalization", x, p=p, axis=axis)[0].astype(np.float64)
    norm = np.abs(x.astype(np.float64)) ** p
    norm = norm.sum(axis=axis, keepdims=True) ** (1 / p)
    np.testing.assert_allclose(y * norm, x, atol=1e-6)
    assert not y[1].any()


@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_lrn(size):
    agree("LRN", normal(2, 6, 4, 3) * 30, size=size, alpha=0.01, beta=0.6, bias=1.5)


@pytest.mark.parametrize("axes", [None, [1], [0, 2, 3], [-1]])
def test_mean_variance_normalization(axes):
    agree("MeanVarianceNormalization", normal(2, 3, 4, 5) + 1, **({} if axes is None else {"axes": axes}))


@pytest.mark.parametrize(
    ("name", "shapes", "attributes"),
    [
        ("BatchNormalization", [(2, 3, 4), (3,), (3,), (2,), (3,)], {}),
        ("InstanceNormalization", [(2, 3, 4), (4,), (3,)], {}),
        ("GroupNormalization", [(2, 3, 4), (3,), (3,)], {"num_groups": 2}),
        ("LayerNormalization", [(2, 3, 4), (3,)], {}),
        ("LayerNormalization", [(2, 3, 4), (4,)], {"axis": 3}),
        ("LpNormalization", [(2, 3)], {"axis": 2}),
    ],
)
def test_shapes_that_do_not_fit(name, shapes, attributes):
    with pytest.raises(errors.InvalidArgument):
        meaning(name, *(normal(*s) for s in shapes), **attributes)
