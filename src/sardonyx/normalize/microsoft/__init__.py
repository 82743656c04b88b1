"""com.microsoft, the operators of onnxruntime's own, as bodies over ai.onnx: importing registers them."""

from sardonyx.normalize.microsoft import (  # noqa: F401
    activation,
    attention,
    blockwise,
    conv,
    embedding,
    group_query,
    index,
    matmul,
    norm,
    qlinear,
    qmatmul,
    quantize,
    recurrent,
    rotary,
    signal,
    tensor,
)
