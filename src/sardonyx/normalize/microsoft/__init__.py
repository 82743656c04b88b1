"""com.microsoft, the operators of onnxruntime's own, as bodies over ai.onnx: importing registers them."""

from sardonyx.normalize.microsoft import (  # noqa: F401
    activation,
    attention,
    blockwise,
    conv,
    distance,
    embedding,
    experts,
    group_query,
    hybrid,
    index,
    matmul,
    multi_head,
    norm,
    qlinear,
    qmatmul,
    quantize,
    recurrent,
    rotary,
    signal,
    tensor,
)
