"""Products of matrices take in what surrounds them, and give the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optimize.rewritten import Case, check
from tests.optimize.test_conv import norm

PASSES = (
    "FoldMatMulBatchNorm", "FuseMatMulAdd", "FuseGemmTranspose", "FuseTransposeGemm", "FuseGemmAdd", "FoldGemmMul",
    "FoldGemmBatchNorm",
)  # fmt: skip
X = {"x": (5, 3)}
W = (3, 4)

FUSED = {
    "matmul and bias": Case("a = MatMul(x, w) y = Add(b, a)", ["Gemm"], X, {"w": W, "b": (4,)}),
    "matmul and a matrix": Case("a = MatMul(x, w) y = Add(a, z)", ["Gemm"], {**X, "z": (5, 4)}, {"w": W}),
    "matmul and a column": Case("a = MatMul(x, w) y = Add(a, z)", ["Gemm"], {**X, "z": (5, 1)}, {"w": W}),
    "unknown rows": Case(
        "a = MatMul(x, w) y = Add(b, a)", ["Gemm"], X, {"w": W, "b": (4,)}, symbols={"x": "[rows, 3]"}
    ),
    "unknown rows of both": Case(
        "a = MatMul(x, w) y = Add(z, a)", ["Gemm"], {**X, "z": (5, 4)}, {"w": W},
        symbols={"x": "[rows, 3]", "z": "[rows, 4]"},
    ),
    "gemm and a term": Case("a = Gemm<beta=2.0>(x, w) y = Add(a, b)", ["Gemm"], X, {"w": W, "b": (4,)}),
    "gemm and a second term": Case(
        "a = Gemm<beta=2.0, alpha=0.5>(x, w, b) y = Sum(a, c)", ["Gemm"], X, {"w": W, "b": (4,), "c": (5, 1)}
    ),
    "turned left factor": Case(
        "a = Transpose<perm=[1,0]>(x) y = Gemm(a, w, b)", ["Gemm"], {"x": (3, 5)}, {"w": W, "b": (4,)}
    ),
    "both factors turned": Case(
        "a = Transpose(x) c = Transpose(z) y = Gemm<transB=1>(a, c)", ["Gemm"], {"x": (3, 5), "z": (3, 4)}
    ),
    "turned factor that others read": Case(
        "a = Transpose(x) b = Relu(a) y = Gemm(a, w)", ["Transpose", "Relu", "Gemm"], {"x": (3, 5)}, {"w": W},
        outputs="float[] y, float[] b",
    ),
    "turned product": Case("a = Gemm<transA=1, alpha=0.5>(x, w) y = Transpose(a)", ["Gemm"], {"x": (3, 5)}, {"w": W}),
    "gemm times": Case("a = Gemm(x, w, b) y = Mul(a, k)", ["Gemm"], X, {"w": W, "b": (4,), "k": (4,)}),
    "turned gemm over": Case("a = Gemm<transB=1>(x, w) y = Div(a, k)", ["Gemm"], X, {"w": (4, 3), "k": (4,)}),
    "gemm and batch norm": Case(
        "a = Gemm<beta=2.0>(x, w, b) y = BatchNormalization(a, s, t, m, v)", ["Gemm"], X, norm(4, w=W, b=(4,))
    ),
    "matmul and batch norm": Case(
        "a = MatMul(x, w) y = BatchNormalization(a, s, t, m, v)", ["Gemm"], X, norm(4, w=W)
    ),
    "matmul, turned, and batch norm": Case(
        "a = MatMul(x, w) b = Transpose<perm=[0,2,1]>(a) y = BatchNormalization(b, s, t, m, v)",
        ["MatMul", "Add", "Transpose"], {"x": (2, 5, 3)}, norm(4, w=W),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FUSED.values(), ids=FUSED.keys())
def test_fused(case: Case) -> None:
    check(case, *PASSES)


KEPT = {
    "more than matrices": Case(
        "a = MatMul(x, w) y = Add(a, b)", ["MatMul", "Add"], {"x": (2, 5, 3)}, {"w": W, "b": (4,)}
    ),
    "a term that enlarges the product": Case(
        "a = MatMul(x, w) y = Add(a, b)", ["MatMul", "Add"], {"x": (1, 3)}, {"w": W, "b": (5, 4)}, reason="larger than"
    ),
    "a term of unknown size": Case(
        "a = MatMul(x, w) y = Add(a, z)", ["MatMul", "Add"], {**X, "z": (5, 4)}, {"w": W},
        symbols={"x": "[rows, 3]", "z": "[lines, 4]"}, reason="larger than",
    ),
    "a term of rank 3": Case(
        "a = MatMul(x, w) y = Add(a, b)", ["MatMul", "Add"], X, {"w": W, "b": (2, 1, 4)}, reason="at most two axes"
    ),
    "integers": Case(
        "a = MatMul(x, w) y = Add(a, b)", ["MatMul", "Add"], {"x": np.arange(6).reshape(2, 3)},
        {"w": np.arange(12).reshape(3, 4), "b": np.arange(4)}, outputs="int64[] y", reason="integers",
    ),
    "two terms, one from outside": Case(
        "a = Gemm(x, w, b) y = Add(a, z)", ["Gemm", "Add"], {**X, "z": (5, 4)}, {"w": W, "b": (4,)},
        reason="the term is not a constant",
    ),
    "turned product with a term": Case(
        "a = Gemm(x, w, b) y = Transpose(a)", ["Gemm", "Transpose"], X, {"w": W, "b": (4,)}
    ),
    "batch norm of rows": Case(
        "a = MatMul(x, w) b = Transpose<perm=[0,2,1]>(a) y = BatchNormalization(a, s, t, m, v)",
        ["MatMul", "BatchNormalization"], {"x": (2, 5, 3)}, norm(5, w=W), reason="not matrices",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT.keys())
def test_near_misses_are_reported_with_a_reason(case: Case) -> None:
    check(case, "RemoveDeadCode", *PASSES)
