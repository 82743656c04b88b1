"""The operators of each module of lowering rules, which is imported for the first of its operators."""

from sardonyx.lazy import Families

FAMILIES = Families("sardonyx.lower.rules", {
    "attention": "Attention RotaryEmbedding",
    "col2im": "Col2Im",
    "concat": "Concat",
    "control": "If Loop Scan",
    "conv": "Conv",
    "conv_transpose": "ConvTranspose",
    "create": "Constant ConstantOfShape EyeLike OneHot Range Shape Size Trilu",
    "cumulative_sum": "CumProd CumSum",
    "data_dependent": "Compress NonMaxSuppression NonZero Unique",
    "determinant": "Det",
    "einsum": "Einsum",
    "gather": "Gather GatherElements GatherND ReverseSequence",
    "grid_sample": "AffineGrid GridSample",
    "integer": "MatMulInteger QLinearMatMul",
    "integer_conv": "ConvInteger QLinearConv sardonyx.ConvTransposeInteger",
    "linear_attention": "CausalConvWithState LinearAttention",
    "loss": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    "matmul": "Gemm MatMul",
    "ml": (
        "ai.onnx.ml.ArrayFeatureExtractor ai.onnx.ml.Binarizer ai.onnx.ml.FeatureVectorizer "
        "ai.onnx.ml.Imputer ai.onnx.ml.LabelEncoder ai.onnx.ml.OneHotEncoder"
    ),
    "movement": (
        "DepthToSpace Dropout Expand Flatten Identity Reshape Slice SpaceToDepth Split Squeeze Tile Transpose "
        "Unsqueeze"
    ),
    "norm": (
        "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization LpNormalization "
        "MeanVarianceNormalization RMSNormalization"
    ),
    "pad": "CenterCropPad Pad",
    "pointwise": "BitCast Cast CastLike",
    "pool": "AveragePool GlobalLpPool LRN LpPool MaxPool",
    "quantize": "DequantizeLinear DynamicQuantizeLinear QuantizeLinear",
    "random": "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    "recurrent": "GRU LSTM RNN",
    "recurrent_quantized": "com.microsoft.DynamicQuantizeLSTM",
    "reduce": (
        "ArgMax ArgMin GlobalAveragePool GlobalMaxPool Hardmax LogSoftmax ReduceL1 ReduceL2 ReduceLogSum "
        "ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Softmax"
    ),
    "resize": "Resize",
    "roi_align": "MaxRoiPool RoiAlign",
    "scatter": "ScatterElements ScatterND TensorScatter",
    "signal": "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT",
    "top_k": "TopK",
    "training": "ai.onnx.preview.training.Adagrad ai.onnx.preview.training.Adam ai.onnx.preview.training.Momentum",
    "tree_ensemble": "ai.onnx.ml.TreeEnsemble ai.onnx.ml.TreeEnsembleRegressor",
    "unpool": "MaxUnpool",
})  # fmt: skip
"""``pointwise`` and ``custom`` have the rules for operators without one of their own, too."""
