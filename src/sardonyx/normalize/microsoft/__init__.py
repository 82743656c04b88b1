"""onnxruntime's own operators (com.microsoft) as bodies over ai.onnx, one module per family; importing registers them."""

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
