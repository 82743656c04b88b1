"""Real Fourier transforms over the last axes; a further axis holds real and imaginary parts."""

from __future__ import annotations

from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node
from sardonyx.normalize.edits import required_input
from sardonyx.normalize.microsoft.body import MICROSOFT, refuse
from sardonyx.normalize.registry import expand


def check(node: Node) -> None:
    if node.attrs.get("normalized", 0) or not node.attrs.get("onesided", 1) or node.attrs.get("signal_ndim", 1) != 1:
        raise refuse(node, "a transform that is normalized, two-sided or of several axes")


@expand("Rfft", domain=MICROSOFT)
def rfft(op: Builder, node: Node) -> Any:
    check(node)
    pairs = op.Unsqueeze(required_input(node, 0), op.const([-1]))
    return op.DFT(pairs, None, op.const(-2), onesided=1)


@expand("Irfft", domain=MICROSOFT)
def irfft(op: Builder, node: Node) -> Any:
    """The inverse for an even length, scaled by 1 / length."""
    check(node)
    return op.Squeeze(op.DFT(required_input(node, 0), None, op.const(-2), onesided=1, inverse=1), op.const([-1]))


@expand("ComplexMul", domain=MICROSOFT)
def complex_mul(op: Builder, node: Node) -> Any:
    return complex_product(op, node, conjugate=False)


@expand("ComplexMulConj", domain=MICROSOFT)
def complex_mul_conj(op: Builder, node: Node) -> Any:
    return complex_product(op, node, conjugate=True)


def complex_product(op: Builder, node: Node, *, conjugate: bool) -> Any:
    """(a + bi)(c + di), or with (c - di)."""
    (a, b), (c, d) = (op.Split(required_input(node, i), outputs=2, axis=-1, num_outputs=2) for i in (0, 1))
    if conjugate:
        d = op.Neg(d)
    re = op.Sub(op.Mul(a, c), op.Mul(b, d))
    return op.Concat(re, op.Add(op.Mul(a, d), op.Mul(b, c)), axis=-1)
