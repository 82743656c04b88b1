"""Which operators are quantized by default, in each mode. Values are the names of the rules' functions.

``IntegerOpsRegistry``: dynamic quantization. ``QLinearOpsRegistry``: QOperator format. ``CommonOpsRegistry``: in both.
``QDQRegistry``: operators with a rule of their own in QDQ format; every other one may be asked for by its type.
"""

from __future__ import annotations

from sardonyx.quantization.companions import companions

CommonOpsRegistry: dict[str, str] = {
    "Gather": "gather",
    "Transpose": "movement",
    "EmbedLayerNormalization": "embed_layer_normalization",
}

IntegerOpsRegistry: dict[str, str] = {
    "Conv": "conv_integer",
    "MatMul": "matmul_integer",
    "Attention": "attention",
    "LSTM": "lstm",
    **CommonOpsRegistry,
}

QLinearOpsRegistry: dict[str, str] = {
    "ArgMax": "arg_max",
    "Conv": "convolution",
    "Gemm": "gemm",
    "MatMul": "matmul",
    "Add": "binary",
    "Mul": "binary",
    "Relu": "removable",
    "Clip": "removable",
    "LeakyRelu": "activation",
    "Sigmoid": "activation",
    "MaxPool": "movement",
    "GlobalAveragePool": "global_average_pool",
    "Split": "split",
    "Pad": "pad",
    "Reshape": "movement",
    "Squeeze": "movement",
    "Unsqueeze": "movement",
    "Flatten": "movement",
    "Resize": "movement",
    "AveragePool": "average_pool",
    "Concat": "concat",
    "Softmax": "softmax",
    "Where": "where",
    **CommonOpsRegistry,
}

QDQRegistry: dict[str, str] = {
    "Conv": "convolution",
    "ConvTranspose": "convolution",
    "Gemm": "gemm",
    "Clip": "removable",
    "Relu": "removable",
    "Reshape": "movement",
    "Transpose": "movement",
    "Squeeze": "movement",
    "Unsqueeze": "movement",
    "Flatten": "movement",
    "Resize": "movement",
    "MaxPool": "movement",
    "AveragePool": "movement",
    "Slice": "movement",
    "Pad": "pad",
    "MatMul": "matmul",
    "Split": "split",
    "Gather": "gather",
    "GatherElements": "gather",
    "Where": "where",
    "InstanceNormalization": "normalization",
    "LayerNormalization": "normalization",
    "BatchNormalization": "normalization",
    "TopK": "movement",
    "CumSum": "every_tensor",
}

STATIC_OPERATORS: frozenset[str] = frozenset(QLinearOpsRegistry) | frozenset(QDQRegistry)
"""What ``quantize_static`` quantizes by default."""


__getattr__ = companions(__name__)
