"""Tree ensembles of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sardonyx.errors import SardonyxError
from sardonyx.ir.graph import Node
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Forest, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.sizes import Refused
from sardonyx.ops.ml_scores import ML
from sardonyx.ops.ml_tree import AGGREGATES, Model, from_branches, from_nodes

MODES = ("le", "lt", "ge", "gt", "eq", "ne")
COMBINED = {"SUM": "sum", "AVERAGE": "mean", "MIN": "min", "MAX": "max"}
MAX_WEIGHTS = 1 << 22
"""The largest dense matrix of weights, leaves times targets."""


@rule("TreeEnsemble", domain=ML)
def tree_ensemble(low: Lowering, node: Node) -> None:
    attrs = node.attrs
    if attrs.get("post_transform", 0):
        raise Refused("the transform of the scores is not compiled")
    aggregate = attrs.get("aggregate_function", 1)
    if not 0 <= aggregate < len(AGGREGATES):
        raise Refused(f"there is no aggregate {aggregate}")
    _forest(low, node, from_branches, attrs, list(AGGREGATES)[aggregate])


@rule("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(low: Lowering, node: Node) -> None:
    attrs = node.attrs
    if attrs.get("post_transform", "NONE") != "NONE" or attrs.get("base_values") or "base_values_as_tensor" in attrs:
        raise Refused("base values, and the transform of the scores, are not compiled")
    _forest(low, node, from_nodes, attrs, attrs.get("aggregate_function", "SUM"))


def _forest(
    low: Lowering, node: Node, model: Callable[[Mapping[str, Any]], Model], attrs: Mapping[str, Any], combine: str
) -> None:
    x = low.view(low.input(0))
    try:
        forest, held = model(attrs)
    except (SardonyxError, LookupError, ValueError, TypeError, OverflowError) as why:
        raise Refused(f"the forest is not valid: {why}") from None
    # The kernel tests feature 0 at leaves, too: a leaf is its own child.
    if len(x.shape) != 2 or not isinstance(x.shape[1], int) or x.shape[1] < max(forest.features, 1):
        raise Refused("the input is not known to have the features that the trees test")
    if len(forest.modes) > 1 or forest.sets:
        raise Refused("a forest whose nodes compare in several ways is not compiled")
    out = low.make(node.output)
    low.require_shape(f"{node.op_type}: the stated shape", out.shape, (x.shape[0], held.targets))
    if out.dtype.bits < 32 or (out.dtype.bits == 64) != (x.dtype.bits == 64 and x.dtype.is_float):
        raise Refused(f"sums of {x.dtype} scores in {out.dtype} are not compiled")
    if combine not in COMBINED or (combine in ("MIN", "MAX") and not held.reach_every_target(forest)):
        raise Refused(f"{combine} of targets that some rows do not reach is not compiled")
    if not len(forest.roots) or forest.leaves * held.targets > MAX_WEIGHTS:
        raise Refused("a forest without trees, or with very many leaves, is not compiled")
    start = {"MIN": np.inf, "MAX": -np.inf}.get(combine, 0.0)
    work = np.float64 if out.dtype.bits == 64 else np.float32
    with np.errstate(over="ignore"):
        if not np.array_equal(forest.split.astype(work), forest.split, equal_nan=True):
            raise Refused(f"splits that {np.dtype(work)} cannot hold are not compiled")
    table = np.full((forest.leaves, held.targets), start, work)
    AGGREGATES[combine][0].at(table, (held.leaf, held.target), held.weight.astype(work))
    low.groups.append(
        Forest(
            (node,), x, _constant(low, forest.roots[forest.restore], np.int32),
            _constant(low, forest.feature, np.int32), _constant(low, forest.split, work),
            _constant(low, forest.child.reshape(-1, 2), np.int32),
            None if forest.track is None else _constant(low, forest.track, np.uint8),
            _constant(low, table, work), MODES[forest.modes[0]] if forest.modes else "le", COMBINED[combine], out,
        )
    )  # fmt: skip


def _constant(low: Lowering, array: Any, dtype: Any) -> View:
    return low.constant(Tensor.of(np.ascontiguousarray(array.astype(dtype))))
