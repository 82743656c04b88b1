"""ai.onnx.ml against onnxruntime, on random models."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidArgument, InvalidGraph, SardonyxError
from sardonyx.ir.tensor import Tensor
from sardonyx.ops import registry
from sardonyx.ops.distances import squared_distances

ort = pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, Any]
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
BRANCHES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def floats(rng: np.random.Generator, *shape: int) -> list[float]:
    return [float(v) for v in rng.standard_normal(shape).astype(np.float32).ravel()]


def model_of(op: str, x: Array, outputs: int, attrs: dict[str, Any], version: int) -> bytes:
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, ["x"], names, domain="ai.onnx.ml", **attrs)
    info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    graph = helper.make_graph([node], "g", [info], [helper.make_empty_tensor_value_info(n) for n in names])
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def check(op: str, x: Array, attrs: dict[str, Any], *, outputs: int = 1, version: int = 1, atol: float = 2e-5) -> None:
    model = model_of(op, x, outputs, attrs, version)
    theirs = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    ours = sardonyx.InferenceSession(model).run(None, {"x": x})
    for u, v in zip(ours, theirs, strict=True):
        assert u.shape == v.shape and u.dtype == v.dtype
        if v.dtype.kind == "f":
            np.testing.assert_allclose(u, v, rtol=2e-5, atol=atol)
        else:
            assert u.tolist() == v.tolist()


class Grown:
    """A random forest in the form before ai.onnx.ml 5."""

    def __init__(self, rng: np.random.Generator, trees: int, depth: int, modes: tuple[str, ...], targets: Any) -> None:
        self.rng, self.modes, self.targets = rng, modes, targets
        self.nodes: list[Any] = []
        self.leaves: list[tuple[int, int, int, float]] = []
        for tree in range(trees):
            self._grow(tree, depth, itertools.count())

    def _grow(self, tree: int, depth: int, numbers: Any) -> int:
        me = next(numbers)
        if depth == 0 or (me and self.rng.random() < 0.2):
            self.nodes.append((tree, me, 0, 0.0, "LEAF", 0, 0, 0))
            self.leaves += [(tree, me, t, float(np.float32(self.rng.standard_normal()))) for t in self.targets(tree)]
            return me
        at = len(self.nodes)
        self.nodes.append(None)
        true, false = self._grow(tree, depth - 1, numbers), self._grow(tree, depth - 1, numbers)
        split = float(self.rng.integers(-2, 3)) if self.rng.random() < 0.5 else float(np.float32(self.rng.random()))
        mode = self.modes[self.rng.integers(len(self.modes))]
        track, feature = int(self.rng.integers(2)), int(self.rng.integers(6))
        self.nodes[at] = (tree, me, feature, split, mode, true, false, track)
        return me

    def attrs(self, kind: str) -> dict[str, Any]:
        names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
        names = (*names, "missing_value_tracks_true")
        nodes = {f"nodes_{n}": list(c) for n, c in zip(names, zip(*self.nodes, strict=True), strict=True)}
        columns = zip(*self.leaves, strict=True)
        return nodes | {
            f"{kind}_{n}": list(c) for n, c in zip(("treeids", "nodeids", "ids", "weights"), columns, strict=True)
        }


@pytest.fixture
def table(rng: np.random.Generator) -> Array:
    """Rows with whole numbers, so that equality tests hold somewhere, and with NaN."""
    x = rng.standard_normal((50, 6)).astype(np.float32)
    x[:, :2] = rng.integers(-2, 3, (50, 2))
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("modes", [BRANCHES[:1], BRANCHES], ids=["leq", "mixed"])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_tree_regressor(
    rng: np.random.Generator, table: Array, targets: int, aggregate: str, modes: tuple[str, ...], dtype: Any
) -> None:
    for transform in TRANSFORMS[:4]:
        grown = Grown(rng, 5, 4, modes, lambda tree: sorted({*rng.integers(targets, size=2).tolist()}))
        attrs = grown.attrs("target") | {"n_targets": targets, "aggregate_function": aggregate}
        attrs |= {"post_transform": transform} | ({"base_values": floats(rng, targets)} if rng.random() < 0.5 else {})
        check("TreeEnsembleRegressor", table.astype(dtype), attrs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("spread", ["all", "first", "last", "turns"])
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_tree_classifier(rng: np.random.Generator, table: Array, classes: int, spread: str, dtype: Any) -> None:
    targets = {
        "all": lambda tree: range(classes),
        "first": lambda tree: [0],
        "last": lambda tree: [classes - 1],
        "turns": lambda tree: [tree % classes],
    }[spread]
    for transform, based in itertools.product(TRANSFORMS[:4], (False, True)):
        attrs = Grown(rng, 6, 4, BRANCHES, targets).attrs("class") | {"post_transform": transform}
        if rng.random() < 0.5:
            attrs["class_weights"] = [abs(w) for w in attrs["class_weights"]]
        if based:
            attrs["base_values"] = floats(rng, classes)
        if rng.random() < 0.5:
            attrs["classlabels_strings"] = [f"c{i}" for i in range(classes)]
        else:
            attrs["classlabels_int64s"] = [10 * i for i in range(classes)]
        check("TreeEnsembleClassifier", np.nan_to_num(table).astype(dtype), attrs, outputs=2)


def test_probit_is_the_single_precision_approximation(rng: np.random.Generator, table: Array) -> None:
    attrs = Grown(rng, 4, 3, BRANCHES[:1], lambda tree: range(3)).attrs("target")
    attrs["target_weights"] = [0.05 + 0.15 * float(rng.random()) for _ in attrs["target_weights"]]
    check("TreeEnsembleRegressor", table, attrs | {"n_targets": 3, "post_transform": "PROBIT"}, atol=2e-3)


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator, table: Array) -> None:
    attrs = Grown(rng, 40, 4, BRANCHES, lambda tree: [0]).attrs("target") | {"n_targets": 1}
    together = _meaning("TreeEnsembleRegressor", table, **attrs)
    alone = [_meaning("TreeEnsembleRegressor", row, **attrs)[0] for row in table]
    np.testing.assert_array_equal(together, alone)


def test_double_thresholds(rng: np.random.Generator, table: Array) -> None:
    attrs = Grown(rng, 5, 4, BRANCHES, lambda tree: [0]).attrs("target") | {"n_targets": 1}
    for name in ("nodes_values", "target_weights"):
        attrs[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(attrs.pop(name)) / 3, name)
    check("TreeEnsembleRegressor", table.astype(np.float64) / 3, attrs, version=3)


def newest_form(rng: np.random.Generator, dtype: Any, **changes: Any) -> dict[str, Any]:
    """Two trees of ai.onnx.ml 5: x0 <= 0 ? (x1 in {1, 2} ? a : b) : c, and a tree that is one leaf."""
    weights = np.array(floats(rng, 5), dtype)
    attrs = {
        "n_targets": 2,
        "tree_roots": [0, 2],
        "nodes_featureids": [0, 1, 0],
        "nodes_splits": numpy_helper.from_array(np.zeros(3, dtype), "s"),
        "nodes_modes": numpy_helper.from_array(np.array([0, 6, 0], np.uint8), "m"),
        "nodes_truenodeids": [1, 0, 3],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 1, 3],
        "nodes_falseleafs": [1, 1, 1],
        "membership_values": numpy_helper.from_array(np.array([1, 2, np.nan], dtype), "v"),
        "leaf_targetids": [0, 1, 0, 1, 0],
        "leaf_weights": numpy_helper.from_array(weights, "w"),
    }
    return attrs | changes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
def test_tree_ensemble(rng: np.random.Generator, aggregate: int, dtype: Any) -> None:
    x = rng.integers(-2, 3, (30, 2)).astype(dtype)
    check("TreeEnsemble", x, newest_form(rng, dtype, aggregate_function=aggregate), version=5)


def _meaning(op: str, *inputs: Any, **attrs: Any) -> Any:
    found = registry.find("ai.onnx.ml", op)
    assert found is not None
    native = {
        k: Tensor.of(numpy_helper.to_array(v)) if isinstance(v, onnx.TensorProto) else v for k, v in attrs.items()
    }
    return found.numpy(*inputs, **native)


def test_many_targets_take_the_sparse_way(
    rng: np.random.Generator, table: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    attrs = Grown(rng, 5, 4, BRANCHES, lambda tree: {*rng.integers(7, size=3).tolist()}).attrs("target")
    for aggregate in ("SUM", "MIN"):
        dense = _meaning("TreeEnsembleRegressor", table, **attrs, n_targets=7, aggregate_function=aggregate)
        monkeypatch.setattr("sardonyx.ops.ml_forest.DENSE", 0)
        again = {k: list(v) for k, v in attrs.items()}
        sparse = _meaning("TreeEnsembleRegressor", table, **again, n_targets=7, aggregate_function=aggregate)
        monkeypatch.undo()
        np.testing.assert_allclose(sparse, dense, rtol=1e-6)


HOSTILE: list[tuple[str, Any]] = [
    ("nodes_truenodeids", [0, 0, 0]),
    ("nodes_truenodeids", [77, 0, 0]),
    ("nodes_falsenodeids", [-1, 0, 0]),
    ("nodes_featureids", [-5, 0, 0]),
    ("nodes_featureids", [1000, 0, 0]),
    ("nodes_modes", ["BRANCH_LEQ", "LEAF"]),
    ("nodes_modes", ["BRANCH_WHAT", "LEAF", "LEAF"]),
    ("nodes_nodeids", [0, 1, 1]),
    ("nodes_nodeids", [0, 1, 2**60]),
    ("nodes_values", [0.5]),
    ("target_ids", [0, 9]),
    ("target_nodeids", [1, 5]),
    ("target_weights", [1.0]),
    ("n_targets", 0),
    ("n_targets", 2**40),
    ("post_transform", "WHAT"),
    ("aggregate_function", "WHAT"),
]


@pytest.mark.parametrize(("name", "value"), HOSTILE, ids=str)
def test_malformed_trees_are_refused(name: str, value: Any) -> None:
    attrs: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
    }
    x = np.array([[0.0], [1.0]], np.float32)
    np.testing.assert_array_equal(_meaning("TreeEnsembleRegressor", x, **attrs), [[1], [2]])
    with pytest.raises((InvalidGraph, InvalidArgument)):
        _meaning("TreeEnsembleRegressor", x, **attrs | {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tree_roots", [9]),
        ("tree_roots", [0, 0]),
        ("nodes_truenodeids", [0, 0, 3]),
        ("nodes_truenodeids", [1, 50, 3]),
        ("nodes_falsenodeids", [-2, 1, 3]),
        ("leaf_targetids", [0, 1, 0, 1, 7]),
        ("membership_values", None),
        ("post_transform", 9),
    ],
    ids=str,
)
def test_malformed_newest_trees_are_refused(rng: np.random.Generator, name: str, value: Any) -> None:
    attrs = newest_form(rng, np.float32)
    if name == "membership_values":
        attrs["nodes_modes"] = numpy_helper.from_array(np.array([6, 6, 6], np.uint8))
    else:
        attrs[name] = value
    with pytest.raises(SardonyxError):
        _meaning("TreeEnsemble", np.zeros((2, 2), np.float32), **attrs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_linear_classifier(rng: np.random.Generator, dtype: Any) -> None:
    x = (3 * rng.standard_normal((20, 5))).astype(dtype)
    for transform, n in itertools.product(TRANSFORMS[:4], (1, 2, 4)):
        attrs = {"coefficients": floats(rng, n, 5), "intercepts": floats(rng, n), "post_transform": transform}
        check("LinearClassifier", x, attrs | {"classlabels_ints": list(range(max(n, 2)))}, outputs=2)
        check("LinearClassifier", x, attrs | {"classlabels_strings": ["a", "b", "c", "d"][: max(n, 2)]}, outputs=2)


def test_weights_beyond_the_features_are_passed_over(rng: np.random.Generator) -> None:
    x, intercepts = rng.standard_normal((7, 2)).astype(np.float32), floats(rng, 3)
    attrs: dict[str, Any] = {"coefficients": floats(rng, 12), "intercepts": intercepts}
    check("LinearClassifier", x, attrs | {"classlabels_ints": [0, 1, 2], "post_transform": "LOGISTIC"}, outputs=2)
    check("LinearRegressor", x, attrs | {"targets": 3})
    for op, count in (("LinearClassifier", 3), ("LinearClassifier", 7), ("LinearRegressor", 5)):
        few = {"coefficients": floats(rng, count), "intercepts": intercepts}
        more = {"targets": 3} if op == "LinearRegressor" else {"classlabels_ints": [0, 1, 2]}
        with pytest.raises(SardonyxError):
            _meaning(op, x, **few, **more)


@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressor(rng: np.random.Generator, targets: int) -> None:
    x = rng.standard_normal((20, 5)).astype(np.float32)
    for transform in TRANSFORMS[:4]:
        attrs = {"coefficients": floats(rng, targets, 5), "intercepts": floats(rng, targets), "targets": targets}
        check("LinearRegressor", x, attrs | {"post_transform": transform})


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("likely", [False, True], ids=["votes", "probabilities"])
def test_svm_classifier(rng: np.random.Generator, kernel: str, classes: int, likely: bool) -> None:
    x = (2 * rng.standard_normal((20, 5))).astype(np.float32)
    for transform in TRANSFORMS[:4]:
        each, pairs = [int(v) for v in rng.integers(1, 4, classes)], classes * (classes - 1) // 2
        attrs = {
            "coefficients": floats(rng, classes - 1, sum(each)),
            "support_vectors": floats(rng, sum(each), 5),
            "vectors_per_class": each,
            "rho": floats(rng, pairs),
            "classlabels_ints": list(range(classes)),
            "kernel_type": kernel,
            "kernel_params": [0.3, 0.2, 3.0],
            "post_transform": transform,
        }
        if likely:
            attrs |= {"prob_a": floats(rng, pairs), "prob_b": floats(rng, pairs)}
        check("SVMClassifier", x, attrs, outputs=2, atol=1e-4)


@pytest.mark.parametrize("classes", [2, 3])
def test_svm_classifier_without_vectors(rng: np.random.Generator, classes: int) -> None:
    x = rng.standard_normal((20, 5)).astype(np.float32)
    attrs = {"coefficients": floats(rng, classes, 5), "rho": floats(rng, 1), "kernel_params": [1.0, 0.0, 1.0]}
    check("SVMClassifier", x, attrs | {"classlabels_strings": ["a", "b", "c"][:classes]}, outputs=2)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(rng: np.random.Generator, kernel: str, one_class: int) -> None:
    x = rng.standard_normal((20, 5)).astype(np.float32)
    attrs = {"coefficients": floats(rng, 4), "support_vectors": floats(rng, 4, 5), "n_supports": 4}
    attrs |= {"rho": floats(rng, 1), "kernel_type": kernel, "kernel_params": [0.3, 0.2, 3.0], "one_class": one_class}
    check("SVMRegressor", x, attrs)


def decision(kernel: str, x: Array, vectors: Array, coefficients: Array, rho: float, gamma: float) -> Array:
    """A support vector machine in float64, by its definition."""
    x, vectors = x.astype(np.float64), vectors.astype(np.float64)
    if kernel == "RBF":
        kernels = np.exp(-gamma * ((x[:, None] - vectors) ** 2).sum(axis=-1))
    else:
        kernels = x @ vectors.T
        kernels = kernels if kernel == "LINEAR" else (gamma * kernels) ** 3
    return np.asarray(kernels @ coefficients.astype(np.float64) + rho)


@pytest.mark.parametrize("kernel", ["RBF", "LINEAR", "POLY"])
@pytest.mark.parametrize("offset", [0.0, 10.0, 1e3, 1e5])
def test_svm_of_features_far_from_zero(rng: np.random.Generator, kernel: str, offset: float) -> None:
    vectors = (rng.standard_normal((40, 6)) + offset).astype(np.float32)
    x = np.concatenate([vectors[:3], (rng.standard_normal((30, 6)) + offset).astype(np.float32)])
    gamma = 0.25 if kernel == "RBF" else float(np.float32(1 / (6 * max(offset, 1.0) ** 2)))
    weights = rng.standard_normal(40).astype(np.float32)
    weights -= weights.mean()
    expected = decision(kernel, x, vectors, weights, -0.5, gamma)
    common = {"kernel_type": kernel, "kernel_params": [gamma, 0.0, 3.0], "rho": [-0.5]}
    common |= {"support_vectors": vectors.ravel().tolist(), "coefficients": weights.tolist()}
    labels = {"classlabels_ints": [0, 1], "vectors_per_class": [15, 25]}
    for op, outputs, attrs in (("SVMRegressor", 1, {"n_supports": 40}), ("SVMClassifier", 2, labels)):
        model = model_of(op, x, outputs, common | attrs, 1)
        ours = sardonyx.InferenceSession(model).run(None, {"x": x})[-1][:, 0]
        theirs = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[-1][:, 0]
        sign = -1 if op == "SVMClassifier" else 1
        error, peer = (float(np.abs(sign * got - expected).max()) for got in (ours, theirs))
        assert error <= max(peer, 1e-7 * float(np.abs(expected).max()))
        assert error <= 2e-7 * max(float(np.abs(expected).max()), 1.0)


def test_distances_of_infinite_and_far_rows() -> None:
    a = np.array([[1e8, 0.0], [np.inf, 1.0], [np.nan, 0.0], [0.0, 0.0]])
    b = np.array([[1e8 + 8, 0.0], [0.0, 1.0]])
    got = squared_distances(a, b)
    np.testing.assert_allclose(got, ((a[:, None] - b) ** 2).sum(axis=-1), rtol=1e-12)
    assert got[0, 0] == 64
    assert squared_distances(np.zeros((0, 3)), np.zeros((2, 3))).shape == (0, 2)
    assert squared_distances(np.zeros((2, 0)), np.zeros((3, 0))).tolist() == [[0.0] * 3] * 2


WORDS = np.array([["a", "b", "c"], ["q", "a", "zz"]], object)
NUMBERS = np.array([[1.5, -2.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
NAN = float("nan")
TABLES = (NUMBERS, NUMBERS[0], np.array([[3, -4]]))
ENDS = np.array([-(2**63), 1 - 2**63, -1, 0, 2**63 - 3, 2**63 - 2, 2**63 - 1])
FEATURES: list[tuple[str, Array, dict[str, Any], int]] = [
    *(("Normalizer", x, {"norm": n}, 1) for x in TABLES for n in ("MAX", "L1", "L2")),
    ("Scaler", NUMBERS, {"offset": [1.0, 2.0, 3.0], "scale": [0.5, 2.0, 3.0]}, 1),
    ("Scaler", NUMBERS.astype(np.int64), {"offset": [1.0], "scale": [0.5]}, 1),
    ("Binarizer", NUMBERS, {"threshold": 0.3}, 1),
    ("Imputer", NUMBERS, {"imputed_value_floats": [7.0, 8.0, 9.0], "replaced_value_float": 0.0}, 1),
    ("Imputer", np.array([[1, NAN]], np.float32), {"imputed_value_floats": [7.0], "replaced_value_float": NAN}, 1),
    ("Imputer", np.array([[1, 0]]), {"imputed_value_int64s": [7], "replaced_value_int64": 0}, 1),
    ("OneHotEncoder", NUMBERS, {"cats_int64s": [-2, 0, 5]}, 1),
    ("OneHotEncoder", WORDS, {"cats_strings": ["a", "c"]}, 1),
    ("OneHotEncoder", NUMBERS, {"cats_int64s": [-2, 0, -2]}, 1),
    ("OneHotEncoder", WORDS, {"cats_strings": ["a", "a", "c"]}, 1),
    ("CategoryMapper", WORDS, {"cats_strings": ["a", "c"], "cats_int64s": [5, 6]}, 1),
    ("CategoryMapper", WORDS, {"cats_strings": ["a", "a", "c"], "cats_int64s": [5, 6, 6]}, 1),
    ("CategoryMapper", np.array([5, 6, 7]), {"cats_strings": ["a", "a", "c"], "cats_int64s": [5, 6, 6]}, 1),
    ("LabelEncoder", WORDS, {"classes_strings": ["a", "q", "a"]}, 1),
    ("CategoryMapper", np.array([5, 6, 7]), {"cats_strings": ["a", "c"], "cats_int64s": [5, 6]}, 1),
    ("LabelEncoder", WORDS, {"classes_strings": ["a", "q", "c"]}, 1),
    ("LabelEncoder", np.array([2, 0, 9]), {"classes_strings": ["a", "q", "c"], "default_string": "?"}, 1),
    ("LabelEncoder", WORDS, {"keys_strings": ["a", "b", "a"], "values_int64s": [1, 2, 3]}, 2),
    ("LabelEncoder", WORDS, {"keys_strings": ["a", "b"], "values_floats": [1.0, 2.0]}, 2),
    ("LabelEncoder", WORDS, {"keys_strings": ["a", "b"], "values_strings": ["x", "y"], "default_string": "d"}, 4),
    ("LabelEncoder", np.array([1, 2]), {"keys_int64s": [3, 1], "values_floats": [0.5, 0.2], "default_float": 9.0}, 2),
    ("LabelEncoder", np.array([1.0, NAN], np.float32), {"keys_floats": [NAN], "values_strings": ["n"]}, 4),
    ("LabelEncoder", np.array([[7, 2], [3, 5]]), {"keys_int64s": [5, 3, 5, 7], "values_int64s": [1, 2, 3, 4]}, 2),
    ("LabelEncoder", np.array([4, 2**40]), {"keys_int64s": [4, -(2**40)], "values_floats": [0.5, 0.2]}, 2),
    ("LabelEncoder", ENDS, {"keys_int64s": ENDS[-2:].tolist(), "values_floats": [1.0, 2.0], "default_float": 9.0}, 2),
    ("LabelEncoder", ENDS, {"keys_int64s": ENDS[:2].tolist(), "values_int64s": [1, 2], "default_int64": 9}, 2),
    ("ZipMap", NUMBERS, {"classlabels_strings": ["a", "b", "c"]}, 1),
    ("ZipMap", NUMBERS[:, :2], {"classlabels_strings": ["d", "c"]}, 1),
    ("ZipMap", np.ones((2, 4), np.float32), {"classlabels_strings": ["a", "b", "c", "d"]}, 1),
    ("FeatureVectorizer", NUMBERS, {"inputdimensions": [3]}, 1),
]  # fmt: skip


@pytest.mark.parametrize(("op", "x", "attrs", "version"), FEATURES, ids=lambda v: v if isinstance(v, str) else "")
def test_features(op: str, x: Array, attrs: dict[str, Any], version: int) -> None:
    if op != "ZipMap":
        check(op, x, attrs, version=version)
        return
    model = model_of(op, x, 1, attrs, version)
    proto = onnx.load_from_string(model)
    proto.graph.output[0].CopyFrom(
        helper.make_value_info(
            "y0",
            helper.make_sequence_type_proto(
                helper.make_map_type_proto(8, helper.make_tensor_type_proto(1, ())),
            ),
        )
    )
    model = proto.SerializeToString()
    (theirs,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert sardonyx.InferenceSession(model).run(None, {"x": x}) == [theirs]


@pytest.mark.parametrize("threshold", [0.5, -0.5, 1.0, -1.0, NAN, float("inf"), -float("inf"), 1e30, -1e30])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers_above_a_threshold(threshold: float, dtype: Any) -> None:
    """The comparison is exact: -0.5 is below 0."""
    x = np.array([[-2, -1, 0, 1, 2, np.iinfo(dtype).max, np.iinfo(dtype).min]], dtype)
    model = model_of("Binarizer", x, 1, {"threshold": threshold}, 1)
    expected = [[int(n > threshold) for n in x[0].tolist()]]
    assert sardonyx.InferenceSession(model).run(None, {"x": x})[0].tolist() == expected


def test_feature_extraction() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(_meaning("ArrayFeatureExtractor", x, np.array([[3, 0]])), x[:, [3, 0]])
    np.testing.assert_array_equal(_meaning("ArrayFeatureExtractor", x[0], np.array([2])), [[2]])
    for bad in ([4], [-1], []):
        with pytest.raises(InvalidArgument):
            _meaning("ArrayFeatureExtractor", x, np.array(bad, np.int64))


@pytest.mark.parametrize("picks", [np.array(2), np.array([2]), np.array([[1, 3]]), np.array([0, 0, 3])], ids=str)
@pytest.mark.parametrize("stated", [None, ["n", 1], ["n", 5], ["a", "b"], [3, 2], [7]], ids=str)
@pytest.mark.parametrize("fed", [False, True], ids=["constant", "fed"])
def test_the_number_of_features_comes_from_the_operand(picks: Array, stated: Any, fed: bool) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    node = helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain="ai.onnx.ml")
    inputs = [helper.make_tensor_value_info("x", 1, ["n", 4])]
    inputs += [helper.make_tensor_value_info("i", 7, [f"i{k}" for k in range(picks.ndim)])] if fed else []
    constants = [] if fed else [numpy_helper.from_array(picks, "i")]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, stated)], constants)
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 1)]
    session = sardonyx.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    feeds = {"x": x, "i": picks} if fed else {"x": x}
    np.testing.assert_array_equal(session.run(None, feeds)[0], x[:, picks.ravel()])


def test_vectors_side_by_side() -> None:
    a, b = np.array([[1, 2, 3]]), np.array([[4.0]], np.float32)
    np.testing.assert_array_equal(_meaning("FeatureVectorizer", a, b, inputdimensions=[2, 3]), [[1, 2, 4, 0, 0]])


def test_maps_to_rows() -> None:
    assert _meaning("CastMap", {3: "2.5", 1: "1"}).tolist() == [[1.0, 2.5]]
    assert _meaning("CastMap", {1: 1.5}, map_form="SPARSE", max_map=2, cast_to="TO_STRING").tolist() == [
        ["0.f", "1.500000"]
    ]
    assert _meaning("CastMap", {3: 2.0}, map_form="SPARSE", max_map=5, cast_to="TO_INT64").tolist() == [[0, 0, 0, 2, 0]]
    assert _meaning("DictVectorizer", {"a": 4.0, "z": 9.0}, string_vocabulary=["z", "q", "a"]).tolist() == [[9, 0, 4]]
    with pytest.raises(InvalidArgument):
        _meaning("CastMap", {7: 2.0}, map_form="SPARSE", max_map=5)


def test_unknown_category_with_zeros_forbidden() -> None:
    with pytest.raises(InvalidArgument):
        _meaning("OneHotEncoder", np.array([4]), cats_int64s=[1], zeros=0)


def test_maps_are_in_the_order_of_their_labels() -> None:
    """onnxruntime's are, whatever the order of the attribute."""
    scores = np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], np.float32)
    found = _meaning("ZipMap", scores, classlabels_int64s=[0, -1, 2])
    assert [list(m.items()) for m in found] == [[(-1, 1.0), (0, 0.0), (2, 2.0)], [(-1, 4.0), (0, 3.0), (2, 5.0)]]
