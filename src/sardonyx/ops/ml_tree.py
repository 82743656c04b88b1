"""Tree ensembles: TreeEnsemble, and the older classifier and regressor, which have separate implementations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.ir.tensor import Tensor
from sardonyx.ops.identity_cache import IdentityCache
from sardonyx.ops.limits import check_elements
from sardonyx.ops.ml_forest import MEMBER, MODES, Forest, Weights
from sardonyx.ops.ml_scores import ML, TRANSFORMS, class_labels, pair, rows, transform
from sardonyx.ops.registry import op

Array = np.ndarray[Any, Any]
Model = tuple[Forest, Weights]

AGGREGATES: dict[str, tuple[np.ufunc, float]] = {
    "AVERAGE": (np.add, 0.0), "SUM": (np.add, 0.0), "MIN": (np.minimum, np.inf), "MAX": (np.maximum, -np.inf),
}  # fmt: skip
"""In the order of TreeEnsemble's numbers."""

_FORESTS = IdentityCache()


@op("TreeEnsemble", domain=ML)
def tree_ensemble(
    x: Array,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Any,
    leaf_weights: Tensor,
    membership_values: Tensor | None = None,
    n_targets: int = 1,
    nodes_falseleafs: Any,
    nodes_falsenodeids: Any,
    nodes_featureids: Any,
    nodes_hitrates: Tensor | None = None,
    nodes_missing_value_tracks_true: Any = (),
    nodes_modes: Tensor,
    nodes_splits: Tensor,
    nodes_trueleafs: Any,
    nodes_truenodeids: Any,
    post_transform: int = 0,
    tree_roots: Any,
) -> Array:
    if not 0 <= aggregate_function < len(AGGREGATES) or not 0 <= post_transform < len(TRANSFORMS):
        raise InvalidGraph("no such aggregate or transform", got=(aggregate_function, post_transform))
    model = _FORESTS.get(
        _from_branches, tree_roots, nodes_featureids, nodes_splits, nodes_modes, nodes_truenodeids, nodes_trueleafs,
        nodes_falsenodeids, nodes_falseleafs, nodes_missing_value_tracks_true, membership_values, n_targets,
        leaf_targetids, leaf_weights,
    )  # fmt: skip
    scores, _ = _scores(model, x, list(AGGREGATES)[aggregate_function], x.dtype)
    return transform(scores, TRANSFORMS[post_transform]).astype(x.dtype)


def _from_branches(
    roots: Any, feature: Any, splits: Tensor, modes: Tensor, true: Any, true_leaf: Any, false: Any, false_leaf: Any,
    track: Any, members: Tensor | None, targets: int, leaf_target: Any, leaf_weight: Tensor,
) -> Model:  # fmt: skip
    """The format of ai.onnx.ml 5: branches and leaves are separate arrays, and children index either."""
    columns = [np.array(c, np.int64) for c in (feature, true, true_leaf, false, false_leaf)]
    mode, split, weight = modes.numpy().reshape(-1), splits.numpy().reshape(-1), leaf_weight.numpy().reshape(-1)
    _same_length(len(mode), *columns, split, _tracks(track, len(mode)))
    leaves = len(weight)
    feature, true, true_leaf, false, false_leaf = columns
    for ids, is_leaf in ((true, true_leaf), (false, false_leaf)):
        if ((ids < 0) | (ids >= np.where(is_leaf, leaves, len(mode)))).any():
            raise InvalidGraph("a child of a tree is not a node", expected=f"{len(mode)} branches, {leaves} leaves")
    values = np.zeros(0) if members is None else members.numpy().reshape(-1)
    sets = np.split(values, np.flatnonzero(np.isnan(values)))
    wanted = int((mode == MEMBER).sum())
    if len(sets) < wanted:
        raise InvalidGraph("membership_values has too few sets", expected=wanted, got=len(sets))
    forest = Forest(
        leaves,
        np.array(roots, np.int64) + leaves,
        feature,
        split,
        mode,
        np.where(true_leaf, true, true + leaves),
        np.where(false_leaf, false, false + leaves),
        _tracks(track, len(mode)),
        sets[:wanted],
    )
    return forest, Weights(leaves, _count(targets), np.arange(leaves), np.array(leaf_target, np.int64), weight)


def from_branches(attrs: Mapping[str, Any]) -> Model:
    """The forest of a TreeEnsemble, from its attributes."""
    return _FORESTS.get(
        _from_branches, attrs["tree_roots"], attrs["nodes_featureids"], attrs["nodes_splits"], attrs["nodes_modes"],
        attrs["nodes_truenodeids"], attrs["nodes_trueleafs"], attrs["nodes_falsenodeids"], attrs["nodes_falseleafs"],
        attrs.get("nodes_missing_value_tracks_true", ()), attrs.get("membership_values"), attrs.get("n_targets", 1),
        attrs["leaf_targetids"], attrs["leaf_weights"],
    )  # fmt: skip


def from_nodes(attrs: Mapping[str, Any]) -> Model:
    """The forest of a TreeEnsembleRegressor, from its attributes."""

    def column(name: str) -> Any:
        return attrs.get(name, ())

    return _FORESTS.get(
        _from_nodes, column("nodes_treeids"), column("nodes_nodeids"), column("nodes_featureids"),
        column("nodes_values"), attrs.get("nodes_values_as_tensor"), column("nodes_modes"), column("nodes_truenodeids"),
        column("nodes_falsenodeids"), column("nodes_missing_value_tracks_true"), attrs.get("n_targets", 1),
        column("target_treeids"), column("target_nodeids"), column("target_ids"), column("target_weights"),
        attrs.get("target_weights_as_tensor"),
    )  # fmt: skip


@op("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(
    x: Array,
    *,
    aggregate_function: str = "SUM",
    base_values: Any = (),
    base_values_as_tensor: Tensor | None = None,
    n_targets: int = 1,
    nodes_falsenodeids: Any = (),
    nodes_featureids: Any = (),
    nodes_hitrates: Any = (),
    nodes_hitrates_as_tensor: Tensor | None = None,
    nodes_missing_value_tracks_true: Any = (),
    nodes_modes: Any = (),
    nodes_nodeids: Any = (),
    nodes_treeids: Any = (),
    nodes_truenodeids: Any = (),
    nodes_values: Any = (),
    nodes_values_as_tensor: Tensor | None = None,
    post_transform: str = "NONE",
    target_ids: Any = (),
    target_nodeids: Any = (),
    target_treeids: Any = (),
    target_weights: Any = (),
    target_weights_as_tensor: Tensor | None = None,
) -> Array:
    if aggregate_function not in AGGREGATES:
        raise InvalidGraph(f"aggregate {aggregate_function!r} is not known", expected=", ".join(AGGREGATES))
    model = _FORESTS.get(
        _from_nodes, nodes_treeids, nodes_nodeids, nodes_featureids, nodes_values, nodes_values_as_tensor, nodes_modes,
        nodes_truenodeids, nodes_falsenodeids, nodes_missing_value_tracks_true, n_targets, target_treeids,
        target_nodeids, target_ids, target_weights, target_weights_as_tensor,
    )  # fmt: skip
    scores, seen = _scores(model, x, aggregate_function, _accumulator(x))
    base = _values(base_values, base_values_as_tensor)
    if len(base) == n_targets:
        scores = np.where(seen | (n_targets == 1), scores + base.astype(scores.dtype), scores)
    return transform(scores, post_transform).astype(np.float32)


@op("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(
    x: Array,
    *,
    base_values: Any = (),
    base_values_as_tensor: Tensor | None = None,
    class_ids: Any = (),
    class_nodeids: Any = (),
    class_treeids: Any = (),
    class_weights: Any = (),
    class_weights_as_tensor: Tensor | None = None,
    classlabels_int64s: Any = None,
    classlabels_strings: Any = None,
    nodes_falsenodeids: Any = (),
    nodes_featureids: Any = (),
    nodes_hitrates: Any = (),
    nodes_hitrates_as_tensor: Tensor | None = None,
    nodes_missing_value_tracks_true: Any = (),
    nodes_modes: Any = (),
    nodes_nodeids: Any = (),
    nodes_treeids: Any = (),
    nodes_truenodeids: Any = (),
    nodes_values: Any = (),
    nodes_values_as_tensor: Tensor | None = None,
    post_transform: str = "NONE",
) -> tuple[Array, Array]:
    labels = class_labels(classlabels_strings, classlabels_int64s)
    if labels is None:
        raise InvalidGraph("TreeEnsembleClassifier has no class labels")
    forest, weights = _FORESTS.get(
        _from_nodes, nodes_treeids, nodes_nodeids, nodes_featureids, nodes_values, nodes_values_as_tensor, nodes_modes,
        nodes_truenodeids, nodes_falsenodeids, nodes_missing_value_tracks_true, len(labels), class_treeids,
        class_nodeids, class_ids, class_weights, class_weights_as_tensor,
    )  # fmt: skip
    scores, seen = _scores((forest, weights), x, "SUM", _accumulator(x))
    base = _values(base_values, base_values_as_tensor).astype(scores.dtype)
    if len(base) not in ((0, 1) if len(labels) == 1 else (0, 1, 2) if len(labels) == 2 else (0, len(labels))):
        raise InvalidGraph("base_values does not fit the classes", expected=len(labels), got=len(base))
    if len(labels) > 2:
        if len(base):
            scores, seen = scores + base, np.ones_like(seen)
        chosen = np.where(seen, scores, -np.inf).argmax(axis=1)
        return labels[chosen], transform(scores, post_transform).astype(np.float32)
    return _binary(labels, scores, seen, base, weights, post_transform)


def _binary(labels: Array, scores: Array, seen: Array, base: Array, weights: Weights, name: str) -> tuple[Array, Array]:
    """The decision between two classes (or one), as in onnxruntime.

    With leaves for one class only, its score is compared with 0.5, or with zero if there are negative and positive
    weights. With leaves for both, the second class wins if its score is positive, and integer labels are then 1 and 0.
    """
    one_sided = len(labels) == 2 and len(np.unique(weights.target)) == 1
    second = seen[:, 1] if len(labels) == 2 else np.zeros(len(scores), bool)
    columns = np.where(seen, scores, 0)
    if len(base) == 2:
        shifted = base[1] + scores[:, :1]
        columns = np.where(
            second[:, None], np.concatenate([-shifted, shifted], axis=1), scores + np.array([base[0], 0])
        )
        columns = np.where(seen, columns, 0).astype(scores.dtype)
    elif len(base) == 1:
        columns[:, 0] = np.where(seen[:, 0], columns[:, 0] + base[0], 0)
    deciding = np.where(second, columns[:, -1], columns[:, 0])
    positive = bool((weights.weight >= 0).all())
    won = deciding > (0.5 if one_sided and positive else 0)
    names = labels if one_sided or labels.dtype == object else np.array([0, 1])
    chosen = names[np.minimum(won, len(names) - 1).astype(int)]
    if len(labels) == 1:
        return chosen, transform(columns, name).astype(np.float32)
    single = ~second & (len(base) != 2)
    made = np.where(
        single[:, None],
        pair(columns[:, :1], name, complement=one_sided and positive),
        transform(columns, name),
    )
    return chosen, made.astype(np.float32)


def _from_nodes(
    tree: Any, node: Any, feature: Any, values: Any, values_tensor: Tensor | None, modes: Any, true: Any, false: Any,
    track: Any, targets: int, weight_tree: Any, weight_node: Any, target: Any, weights: Any,
    weights_tensor: Tensor | None,
) -> Model:  # fmt: skip
    """The format before ai.onnx.ml 5: leaves among the nodes, addressed by tree and number; a tree begins with its
    root.
    """
    split, weight = _values(values, values_tensor), _values(weights, weights_tensor)
    tree, node, feature, true, false = (np.array(c, np.int64) for c in (tree, node, feature, true, false))
    kinds = {name: i for i, name in enumerate((*MODES[:MEMBER], "LEAF"))}
    if not set(modes) <= kinds.keys():
        raise InvalidGraph("a tree has a node of unknown mode", got=sorted(set(modes) - kinds.keys())[0])
    mode = np.array([kinds[m] for m in modes], np.uint8)
    _same_length(len(tree), node, feature, split, mode, true, false, _tracks(track, len(tree)))
    if not len(tree):
        raise InvalidGraph("the forest has no nodes")
    is_leaf = mode == kinds["LEAF"]
    number = np.where(is_leaf, np.cumsum(is_leaf) - 1, is_leaf.sum() + np.cumsum(~is_leaf) - 1)
    find = _Finder(tree, node)
    branch = np.flatnonzero(~is_leaf)
    on_true, on_false = find(tree[branch], true[branch]), find(tree[branch], false[branch])
    _, first = np.unique(tree, return_index=True)
    roots = np.sort(first)
    forest = Forest(
        int(is_leaf.sum()),
        number[roots],
        feature[branch],
        split[branch],
        mode[branch],
        number[on_true],
        number[on_false],
        _tracks(track, len(tree))[branch],
    )
    at = find(np.array(weight_tree, np.int64), np.array(weight_node, np.int64))
    target = np.array(target, np.int64)
    _same_length(len(at), target, weight)
    on_leaf = is_leaf[at]
    held = Weights(forest.leaves, _count(targets), number[at[on_leaf]], target[on_leaf], weight[on_leaf])
    return forest, held


class _Finder:
    """Positions of nodes by tree and node number."""

    def __init__(self, tree: Array, node: Array) -> None:
        if tree.size and (min(tree.min(), node.min()) < 0 or max(tree.max(), node.max()) >= 1 << 31):
            raise InvalidGraph("a tree or node has an invalid number")
        self.order = np.lexsort((node, tree))
        self.keys = (tree << 31 | node)[self.order]
        if (self.keys[1:] == self.keys[:-1]).any():
            raise InvalidGraph("two nodes of a tree have the same number")

    def __call__(self, tree: Array, node: Array) -> Array:
        _same_length(len(tree), node)
        if tree.size and (min(tree.min(), node.min()) < 0 or max(tree.max(), node.max()) >= 1 << 31):
            raise InvalidGraph("a tree refers to a node with an invalid number")
        wanted = tree << 31 | node
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        missing = self.keys[at] != wanted
        if missing.any():
            which = int(np.flatnonzero(missing)[0])
            raise InvalidGraph("a tree refers to an unknown node", got=(int(tree[which]), int(node[which])))
        return self.order[at]


def _scores(model: Model, x: Array, aggregate: str, dtype: Any) -> tuple[Array, Array]:
    """The combined weights of every row as (rows, targets), zero without leaves; and a mask of those with leaves."""
    forest, weights = model
    table = rows(x)
    if table.dtype.kind != "f" or table.dtype.itemsize < 4:
        table = table.astype(np.float32)
    check_elements(len(table) * weights.targets, np.dtype(dtype), "the scores of a forest")
    ufunc, initial = AGGREGATES[aggregate]
    parts = [weights.gather(forest.walk(table[block]), ufunc, initial, dtype) for block in forest.blocks(table)]
    if not parts:
        return np.zeros((0, weights.targets), dtype), np.zeros((0, weights.targets), bool)
    scores, seen = (np.concatenate(p) for p in zip(*parts, strict=True))
    if aggregate == "AVERAGE":
        scores = scores / scores.dtype.type(max(1, len(forest.roots)))
    return np.where(seen, scores, 0).astype(dtype), seen


def _accumulator(x: Array) -> Any:
    return np.float64 if x.dtype == np.float64 else np.float32


def _values(floats: Any, tensor: Tensor | None) -> Array:
    return np.array(floats, np.float32) if tensor is None else tensor.numpy().reshape(-1)


def _tracks(track: Any, count: int) -> Array:
    return np.array(track, np.int64) if len(track) else np.zeros(count, np.int64)


def _count(targets: int) -> int:
    if not 0 < targets <= 1 << 31:
        raise InvalidGraph("the number of targets is invalid", got=targets)
    return targets


def _same_length(length: int, *columns: Array) -> None:
    for column in columns:
        if len(column) != length:
            raise InvalidGraph("the arrays of a forest differ in length", expected=length, got=len(column))
