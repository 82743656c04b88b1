"""com.microsoft, onnxruntime's own operators, as bodies over ai.onnx. Importing this package registers them."""

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
    rotary,
    signal,
    tensor,
    text,
)
