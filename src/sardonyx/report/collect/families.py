"""Operators by the kind of work that they are, which colours them on the page."""

from __future__ import annotations

_MEMBERS = {
    "matmul": "MatMul Gemm FusedMatMul FusedGemm Einsum MatMulNBits LinearClassifier LinearRegressor",
    "convolution": "Conv ConvTranspose ConvTransposeInteger FusedConv DeformConv QLinearConv ConvInteger",
    "attention": "Attention MultiHeadAttention GroupQueryAttention FlexAttention RotaryEmbedding LinearAttention",
    "normalization": "BatchNormalization LayerNormalization SkipLayerNormalization EmbedLayerNormalization "
    "RMSNormalization SimplifiedLayerNormalization InstanceNormalization GroupNormalization LpNormalization "
    "Normalizer LRN Softmax LogSoftmax MeanVarianceNormalization",
    "reduction": "AveragePool MaxPool GlobalAveragePool GlobalMaxPool LpPool ArgMax ArgMin CumSum TopK ReduceMean "
    "ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare",
    "movement": "Reshape Transpose Concat Split Slice Gather GatherElements GatherND Scatter ScatterElements "
    "ScatterND Squeeze Unsqueeze Flatten Expand Tile Pad Identity DepthToSpace SpaceToDepth Shape Size Resize "
    "Upsample Constant ConstantOfShape Range NonZero ReverseSequence Compress",
    "quantization": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearMatMul",
    "control": "If Loop Scan SequenceAt SequenceConstruct SequenceInsert SequenceMap SplitToSequence Optional "
    "ConcatFromSequence",
    "trees": "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor SVMClassifier SVMRegressor ZipMap "
    "LabelEncoder ArrayFeatureExtractor",
    "recurrence": "LSTM GRU RNN",
}
_FAMILY_OF = {op: family for family, ops in _MEMBERS.items() for op in ops.split()}
POINTWISE = "pointwise"
WEIGHT = (
    "attention", "convolution", "matmul", "recurrence", "trees", "normalization", "reduction", "quantization",
    "control", POINTWISE, "movement",
)  # fmt: skip
"""The families, the one that a fused group is named after first."""


def family_of(op_type: str) -> str:
    """The family of an operator; what no other family has is pointwise."""
    return _FAMILY_OF.get(op_type, POINTWISE)


def leading(op_types: list[str]) -> str:
    """Of the operators of a fused group, the one that does most of its work."""
    return min(op_types, key=lambda op: WEIGHT.index(family_of(op)))
