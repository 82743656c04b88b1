"""Block-wise weight packing that onnxruntime's quantizer calls; Sardonyx has no quantizer yet, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from sardonyx.errors import NotImplemented


def _absent(name: str) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplemented(f"{name} belongs to the quantizer, which this version does not have")

    function.__name__ = function.__qualname__ = name
    return function


pack_fp4_weights_for_cuda_moe_gemm = _absent("pack_fp4_weights_for_cuda_moe_gemm")
quantize_matmul_2bits = _absent("quantize_matmul_2bits")
quantize_matmul_4bits = _absent("quantize_matmul_4bits")
quantize_matmul_8bits = _absent("quantize_matmul_8bits")
quantize_matmul_bnb4 = _absent("quantize_matmul_bnb4")
quantize_qdq_matmul_2bits = _absent("quantize_qdq_matmul_2bits")
quantize_qdq_matmul_4bits = _absent("quantize_qdq_matmul_4bits")
