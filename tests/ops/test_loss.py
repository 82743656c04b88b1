import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peers import agree, integers, meaning, normal, onnxruntime, rounds_once, same

NAMES = ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"]
SHAPES = [(6, 5), (3, 5, 4), (2, 5, 3, 4), (2, 5, 2, 3, 2)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 2, -100])
def test_losses(name, shape, reduction, weighted, ignore):
    target = integers(0, 5, shape[0], *shape[2:])
    attributes = {"reduction": reduction}
    if ignore is not None:
        target.flat[1] = ignore
        attributes["ignore_index"] = ignore
    weight = np.abs(normal(5)) if weighted else None
    # onnxruntime has its NegativeLogLikelihoodLoss as a function body, which cannot skip an index outside the classes.
    if name == "NegativeLogLikelihoodLoss" and ignore == -100:
        got = meaning(name, normal(*shape), target, weight, **attributes)
        target.flat[1] = 0
        keep = np.arange(target.size).reshape(target.shape) != 1
        weights = (np.ones(5) if weight is None else weight)[target] * keep
        picked = -np.take_along_axis(normal(*shape).astype(np.float64), target[:, None], axis=1)[:, 0] * weights
        expected = {"none": picked, "sum": picked.sum(), "mean": picked.sum() / weights.sum()}[reduction]
        same(got, (np.asarray(expected, np.float32),))
    else:
        agree(name, normal(*shape), target, weight, **attributes)


@pytest.mark.parametrize("shape", SHAPES)
def test_log_probabilities(shape):
    args = normal(*shape) * 3, integers(0, 5, shape[0], *shape[2:], dtype=np.int32)
    same(meaning("SoftmaxCrossEntropyLoss", *args, outputs=2), onnxruntime("SoftmaxCrossEntropyLoss", *args, outputs=2))


@pytest.mark.parametrize("name", NAMES)
def test_types(name):
    args = normal(6, 5), integers(0, 5, 6), np.abs(normal(5))
    for dtype in (np.float16, ml_dtypes.bfloat16):
        rounds_once(name, dtype, *args, reduction="none")
    assert meaning(name, args[0].astype(np.float64), args[1])[0].dtype == np.float64


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [-1, 5])
def test_targets_are_checked(name, bad):
    with pytest.raises(errors.InvalidArgument, match=f"0 to 4; got: {bad}"):
        meaning(name, normal(2, 5), np.array([0, bad]))
    assert np.isfinite(meaning(name, normal(2, 5), np.array([0, bad]), ignore_index=bad)[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("target", "weight"), [((3,), None), ((2, 1), None), ((2,), (4,))])
def test_shapes_that_do_not_fit(name, target, weight):
    with pytest.raises(errors.InvalidArgument):
        meaning(name, normal(2, 5), integers(0, 5, *target), None if weight is None else normal(*weight))
