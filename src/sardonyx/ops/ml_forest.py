"""A forest of decision trees as flat arrays, evaluated level by level for many rows and trees at once.

Leaves are numbered first, so that a leaf's number indexes its weights; a leaf is its own child.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph

Array = np.ndarray[Any, Any]

MEMBER = 6
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_HOLDS = (operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne)

BLOCK = 1 << 16
"""Rows times trees that are evaluated at once: positions and gathered values stay in L2."""

DENSE = 1 << 22
"""Leaves times targets up to which weights are stored as a matrix."""


class Forest:
    def __init__(
        self,
        leaves: int,
        roots: Array,
        feature: Array,
        split: Array,
        mode: Array,
        true: Array,
        false: Array,
        track: Array,
        sets: Sequence[Array] = (),
    ) -> None:
        """``feature`` to ``track`` describe the branches; roots and children are node numbers, leaves first."""
        count = leaves + len(feature)
        for what, ids in (("root", roots), ("child", true), ("child", false)):
            if len(ids) and (ids.min() < 0 or ids.max() >= count):
                raise InvalidGraph(f"a {what} of a tree is not a node", expected=f"[0, {count})")
        if len(feature) and (feature.min() < 0 or feature.max() > 1 << 40):
            raise InvalidGraph("a tree tests an invalid feature", got=int(feature.min()))
        if len(mode) and mode.max() > MEMBER:
            raise InvalidGraph("a tree has a node of unknown mode", got=int(mode.max()))
        self.leaves, self.features = leaves, int(feature.max()) + 1 if len(feature) else 0
        whole = np.arange(count)
        self.feature = np.concatenate([np.zeros(leaves, np.intp), feature.astype(np.intp)])
        self.split = np.concatenate([np.zeros(leaves, split.dtype), split])
        self.child = np.stack([whole, whole], axis=1)
        self.child[leaves:, 0], self.child[leaves:, 1] = false, true
        self.modes = np.unique(mode).tolist()
        self.mode = np.concatenate([np.zeros(leaves, np.uint8), mode.astype(np.uint8)])
        self.track = np.concatenate([np.zeros(leaves, bool), track.astype(bool)]) if track.any() else None
        self.sets = dict(zip((np.flatnonzero(mode == MEMBER) + leaves).tolist(), sets, strict=True))
        depth = self._depths(roots)
        order = np.argsort(-depth, kind="stable")
        self.roots, self.restore = roots[order].astype(np.intp), np.argsort(order)
        self.live: list[int] = (len(roots) - np.cumsum(np.bincount(depth))).tolist()
        """How many trees are deeper than each level."""
        self.child = self.child.reshape(-1)

    def _depths(self, roots: Array) -> Array:
        """The number of branches above the deepest leaf of each tree. Each node has one parent, so there are no
        cycles.
        """
        branches = np.concatenate([self.child[self.leaves :].reshape(-1), roots])
        if np.bincount(branches[branches >= self.leaves], minlength=1).max() > 1:
            raise InvalidGraph("a node of a tree has two parents, or is its own ancestor")
        depth = np.zeros(len(roots), np.int64)
        at, tree, level = roots, np.arange(len(roots)), 0
        while len(at):
            depth[tree] = level
            inner = at >= self.leaves
            at, tree, level = self.child[at[inner]].reshape(-1), np.repeat(tree[inner], 2), level + 1
        return depth

    def trees_of_leaves(self) -> Array | None:
        """The tree of each leaf, 0 for unreachable ones; None if a leaf is reached in two ways."""
        children, found = self.child.reshape(-1, 2), np.zeros(self.leaves, np.int64)
        at, tree, ways = self.roots, np.arange(len(self.roots)), np.zeros(self.leaves, np.int64)
        while len(at):
            inner = at >= self.leaves
            found[at[~inner]] = tree[~inner]
            np.add.at(ways, at[~inner], 1)
            at, tree = children[at[inner]].reshape(-1), np.repeat(tree[inner], 2)
        return None if (ways > 1).any() else found

    def walk(self, x: Array) -> Array:
        """The leaf that each row reaches in each tree, as (trees, rows)."""
        n, width = x.shape
        values, start = np.ascontiguousarray(x).reshape(-1), np.arange(n) * width
        at = np.repeat(self.roots[:, None], n, axis=1)
        for live in self.live[:-1]:
            here = at[:live]
            found = values.take(self.feature.take(here) + start)
            here[...] = self.child.take(2 * here + self._condition_holds(here, found))
        return at[self.restore]

    def _condition_holds(self, at: Array, value: Array) -> Array:
        split = self.split.take(at)
        if len(self.modes) == 1 and self.modes[0] != MEMBER:
            holds: Array = _HOLDS[self.modes[0]](value, split)
        else:
            mode, holds = self.mode.take(at), np.zeros(at.shape, bool)
            for m in self.modes:
                mine = self._is_member(at, value) if m == MEMBER else _HOLDS[m](value, split)
                holds = np.where(mode == m, mine, holds)
        if self.track is not None:
            holds = holds | ((value != value) & self.track.take(at))
        return holds

    def _is_member(self, at: Array, value: Array) -> Array:
        found = np.zeros(at.shape, bool)
        for node in np.unique(at).tolist():
            if node in self.sets:
                here = at == node
                found[here] = np.isin(value[here], self.sets[node])
        return found

    def blocks(self, x: Array) -> list[slice]:
        """Slices of rows that are evaluated together."""
        if x.shape[1] < self.features:
            raise InvalidArgument(
                "the trees test features that the input lacks", expected=self.features, got=x.shape[1]
            )
        step = max(1, BLOCK // max(1, len(self.roots)))
        return [slice(i, i + step) for i in range(0, len(x), step)]


class Weights:
    """The contributions of leaves to targets."""

    def __init__(self, leaves: int, targets: int, leaf: Array, target: Array, weight: Array) -> None:
        if not len(leaf) == len(target) == len(weight):
            raise InvalidGraph("the weights of a forest differ in number", got=(len(leaf), len(target), len(weight)))
        if len(target) and (target.min() < 0 or target.max() >= targets):
            raise InvalidGraph("a leaf refers to an unknown target", expected=f"[0, {targets})")
        order = np.argsort(leaf, kind="stable")
        self.targets, self.leaf, self.target, self.weight = targets, leaf[order], target[order], weight[order]
        self.start = np.searchsorted(self.leaf, np.arange(leaves + 1))
        self.dense = leaves * targets <= DENSE

    def gather(self, at: Array, ufunc: np.ufunc, initial: float, dtype: Any) -> tuple[Array, Array]:
        """Combine the weights of the leaves in (trees, rows), tree by tree; also which targets got any."""
        out = np.full((at.shape[1], self.targets), initial, dtype)
        seen = np.zeros(out.shape, bool)
        if self.dense:
            table, any_ = self._table(ufunc, initial, dtype)
            if len(at):
                given = table.take(at, axis=0)
                # numpy would sum a single column pairwise, so a row's result would depend on the batch size.
                out = ufunc.reduce(given, axis=0) if out.size > 1 else ufunc.accumulate(given, axis=0)[-1]
                seen = np.logical_or.reduce(any_.take(at, axis=0), axis=0)
            return out, seen
        for leaf in at:
            first, count = self.start[leaf], self.start[leaf + 1] - self.start[leaf]
            for slot in range(int(count.max(initial=0))):
                row = np.flatnonzero(count > slot)
                entry = first[row] + slot
                target = self.target[entry]
                out[row, target] = ufunc(out[row, target], self.weight[entry].astype(dtype))
                seen[row, target] = True
        return out, seen

    def reach_every_target(self, forest: Forest) -> bool:
        """Whether every row gets a weight for every target: for each target, all leaves of some tree have one."""
        trees = forest.trees_of_leaves()
        if trees is None:
            return False
        leaf, target, _ = _distinct(self.leaf, self.target)
        tree, target, count = _distinct(trees[leaf], target)
        leaves = np.bincount(trees, minlength=len(forest.roots))
        return len(np.unique(target[count == leaves[tree]])) == self.targets

    def _table(self, ufunc: np.ufunc, initial: float, dtype: Any) -> tuple[Array, Array]:
        key = (ufunc, np.dtype(dtype))
        if getattr(self, "_made", (None,))[0] != key:
            table = np.full((len(self.start) - 1, self.targets), initial, dtype)
            any_ = np.zeros(table.shape, bool)
            ufunc.at(table, (self.leaf, self.target), self.weight.astype(dtype))
            any_[self.leaf, self.target] = True
            self._made = key, table, any_
        return self._made[1:]


def _distinct(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Pairs without repetition, and how often each occurs. (``np.unique`` of two rows compares them as records.)"""
    order = np.lexsort((b, a))
    a, b = a[order], b[order]
    first = np.flatnonzero(np.r_[True, (a[1:] != a[:-1]) | (b[1:] != b[:-1])][: len(a)])
    return a[first], b[first], np.diff(np.r_[first, len(a)])
