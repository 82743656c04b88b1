"""Folds Pad into operators that have padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.noop import NOT_NEGATIVE
from sardonyx.optimize.pattern import Match, attribute


def _pad(op: Any, x: Any, pads: Any) -> Any:
    return op.Pad(x, pads, op.optional("fill"), op.optional("axes"), name="pad")


@fusion
class FoldPadConv(Fusion):
    """Conv(Pad(x), w)  ->  Conv(x, w) with padding."""

    def pattern(self, op: Any, x: Any, pads: Any, w: Any) -> Any:
        return op.Conv(_pad(op, x, pads), w, op.optional("b"), name="conv")

    def rewrite(self, op: Builder, m: Match) -> Any:
        conv = m.node("conv")
        require(_fill(m) == 0, "the padding is not zero", m.fill)
        return op.Conv(m.x, m.w, m.b, **_with_pads(conv, m))


@fusion
class FoldPadAveragePool(Fusion):
    """AveragePool(Pad(x))  ->  AveragePool(x) with padding, which is counted."""

    def pattern(self, op: Any, x: Any, pads: Any) -> Any:
        return op.AveragePool(_pad(op, x, pads), name="pool")

    def rewrite(self, op: Builder, m: Match) -> Any:
        pool = m.node("pool")
        require(_fill(m) == 0, "the padding is not zero", m.fill)
        counted = attribute(pool, "count_include_pad") or not any(pool.attrs.get("pads", ()))
        require(counted, "the pool leaves its own padding out of the average")
        return op.AveragePool(m.x, **{**_within_kernel(pool, m), "count_include_pad": 1})


@fusion
class FoldPadMaxPool(Fusion):
    """MaxPool(Pad(x))  ->  MaxPool(x) with padding, if the pad value can never be the maximum."""

    def pattern(self, op: Any, x: Any, pads: Any) -> Any:
        return op.MaxPool(_pad(op, x, pads), name="pool")

    def rewrite(self, op: Builder, m: Match) -> Any:
        pool = m.node("pool")
        require(all(out.is_dead for out in pool.outputs[1:]), "the indices of the maxima are read")
        require(_is_lowest(_fill(m), m.x), "the padding may be the maximum", m.x)
        return op.MaxPool(m.x, **_within_kernel(pool, m))


def _fill(m: Match) -> Any:
    """The value of a constant Pad."""
    require(attribute(m.node("pad"), "mode") == "constant", "it does not pad with a constant")
    require(m.fill is None or m.fill.is_scalar_const, "the pad value is not a constant", m.fill)
    return 0 if m.fill is None else m.fill.item()


def _is_lowest(fill: Any, x: Value) -> bool:
    """Whether nothing in ``x`` is less than ``fill``. Every window holds an element of ``x``."""
    if fill == 0:
        return x.producer is not None and x.producer.onnx_op in NOT_NEGATIVE
    if x.dtype is None:
        return False
    if x.dtype.is_integer:
        return bool(fill == np.iinfo(x.dtype.numpy).min)
    return x.dtype.name in ("f16", "f32", "f64") and bool(fill <= np.finfo(x.dtype.numpy).min)


def _with_pads(node: Node, m: Match) -> dict[str, Any]:
    """A node's attributes with its padding enlarged by the preceding Pad."""
    rank = m.x.rank
    require(rank, "the rank of its input is not known, or 0", m.x)
    require(m.pads.is_const and (m.axes is None or m.axes.is_const), "the padding is not a constant", m.pads)
    require(attribute(node, "auto_pad") in ("NOTSET", "VALID"), "the padding of its reader depends on its input")
    pads = m.pads.numpy().tolist()
    axes = list(range(rank)) if m.axes is None else [a % rank for a in m.axes.numpy().tolist()]
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    require(min(before + after) >= 0, "it crops instead of padding", m.pads)
    require(not any(before[:2] + after[:2]), "it pads batch or channels", m.pads)
    own = node.attrs.get("pads") or [0] * (2 * rank - 4)
    total = [a + b for a, b in zip(own, before[2:] + after[2:], strict=True)]
    return {**{key: value for key, value in node.attrs.items() if key != "auto_pad"}, "pads": total}


def _within_kernel(pool: Node, m: Match) -> dict[str, Any]:
    attrs, kernel = _with_pads(pool, m), attribute(pool, "kernel_shape")
    require(not attribute(pool, "ceil_mode"), "windows past the end are cut by its own padding only")
    require(all(p < k for p, k in zip(attrs["pads"], kernel * 2, strict=True)), "a window would see padding only")
    return attrs
