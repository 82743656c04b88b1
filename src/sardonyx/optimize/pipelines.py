"""The one place where the order of passes is decided."""

from __future__ import annotations

from collections.abc import Collection

from sardonyx.ir.graph import Graph
from sardonyx.optimize import branches, cleanup, flex_attention, fold, fold_shapes, manager, noop, shapes
from sardonyx.optimize.fusions import (
    activation,
    arithmetic,
    attention,
    attention_parts,
    casts,
    conv,
    conv_resize,
    flat_attention,
    gemm,
    heads,
    integers,
    learned,
    lookups,
    loops,
    movement,
    norm,
    pad,
    positions,
    reductions,
    reshapes,
    rotary,
    sibling_convs,
    space_to_depth,
    transposes,
)
from sardonyx.optimize.report import Report
from sardonyx.optimize.spelling import activation as spelled_activation
from sardonyx.optimize.spelling import attention as spelled_attention
from sardonyx.optimize.spelling import attention_mask as spelled_attention_mask
from sardonyx.optimize.spelling import conv as spelled_conv
from sardonyx.optimize.spelling import embedding as spelled_embedding
from sardonyx.optimize.spelling import matmul as spelled_matmul
from sardonyx.optimize.spelling import norm as spelled_norm
from sardonyx.optimize.spelling import quantized, quantized_blocks, quantized_matmul, quantized_movement

SHAPES = (
    "RemoveNoOps",
    "FoldLoopInvariants",
    "FoldConstants",
    "InlineBranches",
    "ExpandFlexAttention",
    "FoldShapes",
    "FoldConstants",
    "HoistLoopInvariants",
    "InferShapes",
)
"""What is known decides what fits: shapes and constants first."""

POINTWISE = (
    "RemoveDeadCode",
    "RemoveNoOps",
    "FoldCastLike",
    "FuseCasts",
    "CancelQuantization",
    "FuseNotWhere",
    "FuseDivMul",
    "FuseMinMax",
    "FuseClips",
    "FoldClipRelu",
    "FoldShapeOfPointwise",
)
MOVEMENT = (
    "FuseSpaceToDepth",
    "FuseSlices",
    "FuseGatherUnsqueeze",
    "FoldGatherND",
    "CancelSplits",
    "FuseConcats",
    "FuseTransposes",
    "CancelTransposes",
    "FuseTransposes",
    "FoldTransposeReduce",
    "FoldShapeOfTranspose",
    "FoldUnitTranspose",
    "FoldTransposedConstants",
    "FuseFlatSoftmax",
    "FuseReshapes",
    "RemoveNoOps",
)
"""What moves elements, before the products that read them."""
PRODUCTS = (
    "FoldGatherConv",
    "FoldPadConv",
    "FoldPadAveragePool",
    "FoldPadMaxPool",
    "FoldConvMul",
    "FoldConvAdd",
    "FoldConvBatchNorm",
    "FoldConvMul",
    "FoldConvAdd",
    "FoldBatchNormConv",
    "FoldOneHotMatMul",
    "FoldMatMulBatchNorm",
    "FuseMatMulAdd",
    "FuseGemmTranspose",
    "FuseTransposeGemm",
    "FuseGemmAdd",
    "FoldGemmMul",
    "FoldGemmBatchNorm",
)
"""What goes into the weights of a product, nearest first: a chain is folded link by link."""
SIMPLIFY = (*POINTWISE, *MOVEMENT, *PRODUCTS)
"""Rewrites that leave fewer or cheaper nodes of the same vocabulary."""

CLEANUP = ("FoldConstants", "ShareConstants", "ShareDuplicates", "RemoveDeadCode")

RAISE = (
    "FuseLayerNorm",
    "FuseRMSNorm",
    "FuseNormScale",
    "FuseNormBias",
    "FuseNormCast",
    "FuseNormScale",
    "FuseNormBias",
    "FuseGroupNorm",
    "FuseLpNormalization",
    "FuseGlobalAveragePool",
    "FuseSoftmax",
    "FuseGelu",
    "FuseTanhGelu",
    "FuseSoftplus",
    "FuseMish",
    "FuseHardSigmoid",
    "FuseHardSwish",
    "FuseSwish",
    "FuseLeakyRelu",
    "FusePRelu",
)
"""Fusions of written-out expressions into operators of ai.onnx."""

ATTENTION = (
    "FuseRotaryEmbedding",
    "FuseAttention",
    "FuseFlatAttention",
    "FuseReshapes",
    "FoldAttentionScale",
    "FoldRepeatedHeads",
    "RemoveDeadCode",
    "FoldPast",
    "FoldHeads",
    "FoldAttentionScale",
    "FoldPositionGather",
    "FoldMask",
)
"""The core first, then what stands around it, from the inside out."""

LEARNED = (
    "ExpandLinearClassifier",
    "ExpandLinearRegressor",
    "ExpandTreeClassifier",
    "ExpandTreeRegressor",
    "ExpandNormalizer",
    "ExpandScaler",
    "InferShapes",
)
"""Models of ai.onnx.ml in the operators of ai.onnx."""

LATE = ("FoldMulConv", "FoldGatheredPointwise", "HoistLoopProducts", "MultiplyByReciprocal")
"""What would hide an expression from the fusions above."""

QUANTIZED = (
    "FoldQuantizedClip",
    "SinkDequantize",
    "FoldDequantizedArg",
    "CancelQuantization",
    "RaiseQuantize",
    "RemoveDeadCode",
    "SpellQLinearAveragePool",
    "SpellQGemm",
    "SpellQLinear",
    "SpellIntegerGemm",
    "SpellMatMulIntegerToFloat",
    "SpellDequantizedMatMul",
    "SpellDynamicQuantizeMatMul",
    "SpellMatMulNBits",
    "RemoveDeadCode",
)
"""Integers as far as they reach, then the operators that read and give them."""

CONTRIB = (
    "SpellAttention",
    "SpellMultiHeadAttention",
    "AdaptAttentionMasks",
    "ShareConstants",
    "ShareDuplicates",
    "RemoveDeadCode",
    *QUANTIZED,
    "SpellEmbedLayerNorm",
    "SpellSkipLayerNorm",
    "SpellBiasSkipLayerNorm",
    "SpellSimplifiedLayerNorm",
    "SpellBiasGelu",
    "SpellGelu",
    "SpellQuickGelu",
    "SpellQuantizedBias",
    "SpellShapesLast",
    "SpellConvAdd",
    "SpellConvActivation",
    "SpellGemmActivation",
    "SpellMatMulTranspose",
    "SpellMatMulScale",
    "RemoveDeadCode",
)
"""Fusions into onnxruntime's own operators, for models that are saved in its spelling."""

INTEGERS = ("MultiplyIntegers", "MultiplyIntegersAdd", "ConvolveIntegers", "FoldDequantize", "RemoveDeadCode")
"""For providers that multiply bytes: what is quantized is multiplied so, and what is not is computed once."""

IMAGES = ("JoinConvs", "JoinDepthwiseConvs", "ConvolveBeforeResize")
"""For providers that have the channels of a pixel along their vectors, and add to what they convolve."""

PORTABLE = ("AdaptAttentionMasks", "ShareConstants", "ShareDuplicates", "RemoveDeadCode")
"""What other engines' readings of ai.onnx's operators need, for models that are saved for any of them."""

SPELLINGS = {"contrib": CONTRIB, "portable": PORTABLE}

BASIC = (*SHAPES, *SIMPLIFY, *CLEANUP)
EXTENDED = (*BASIC, *LEARNED, *RAISE, *ATTENTION, *LATE, *CLEANUP)

LEVELS: dict[str, tuple[str, ...]] = {
    "disabled": (),
    "basic": BASIC,
    "extended": EXTENDED,
    "layout": EXTENDED,
    "all": EXTENDED,
}

ONNXRUNTIME_NAMES: dict[str, str | tuple[str, ...]] = {
    "AttentionFusion": ("FuseAttention", "FuseFlatAttention", "SpellAttention", "SpellMultiHeadAttention"),
    "ConstantFolding": "FoldConstants",
    "ConstantSharing": "ShareConstants",
    "CommonSubexpressionElimination": "ShareDuplicates",
    "EliminateIdentity": "RemoveNoOps",
    "EliminateSlice": "RemoveNoOps",
    "EliminateDropout": "RemoveNoOps",
    "CastElimination": "RemoveNoOps",
    "ExpandElimination": "RemoveNoOps",
    "NoopElimination": "RemoveNoOps",
    "UnsqueezeElimination": "FuseReshapes",
    "ReshapeFusion": "FuseReshapes",
    "CastChainElimination": "FuseCasts",
    "RemoveDuplicateCastTransformer": "FuseCasts",
    "DoubleQDQPairsRemover": "CancelQuantization",
    "NotWhereFusion": "FuseNotWhere",
    "DivMulFusion": "FuseDivMul",
    "FuseReluClip": ("FuseClips", "FoldClipRelu"),
    "PreShapeNodeElimination": "FoldShapeOfPointwise",
    "SliceConcatToSpaceToDepthFusion": "FuseSpaceToDepth",
    "TransposeOptimizer": ("FuseTransposes", "CancelTransposes", "FoldTransposeReduce", "FoldShapeOfTranspose"),
    "PadFusion": ("FoldPadConv", "FoldPadAveragePool", "FoldPadMaxPool"),
    "ConvMulFusion": "FoldConvMul",
    "ConvAddFusion": "FoldConvAdd",
    "ConvBNFusion": "FoldConvBatchNorm",
    "MatmulBNFusion": ("FoldMatMulBatchNorm", "FoldGemmBatchNorm"),
    "MatMulAddFusion": "FuseMatMulAdd",
    "GemmTransposeFusion": ("FuseGemmTranspose", "FuseTransposeGemm"),
    "GemmSumFusion": "FuseGemmAdd",
    "QDQPropagationTransformer": ("SinkDequantize", "RaiseQuantize"),
    "QDQSelectorActionTransformer": (
        "SpellQLinear",
        "SpellIntegerGemm",
        "SpellDequantizedMatMul",
        "SpellMatMulNBits",
    ),
    "MatMulIntegerToFloatFusion": "SpellMatMulIntegerToFloat",
    "DynamicQuantizeMatMulFusion": "SpellDynamicQuantizeMatMul",
}
"""onnxruntime's optimizers and the passes that do their work here: ``disabled_optimizers`` keeps its meaning."""

_MODULES = (
    activation,
    arithmetic,
    attention,
    attention_parts,
    branches,
    flex_attention,
    casts,
    cleanup,
    conv,
    conv_resize,
    flat_attention,
    fold,
    fold_shapes,
    gemm,
    heads,
    integers,
    learned,
    lookups,
    loops,
    movement,
    noop,
    norm,
    pad,
    positions,
    quantized,
    quantized_blocks,
    quantized_matmul,
    quantized_movement,
    reductions,
    reshapes,
    rotary,
    shapes,
    sibling_convs,
    space_to_depth,
    spelled_activation,
    spelled_attention,
    spelled_attention_mask,
    spelled_conv,
    spelled_embedding,
    spelled_matmul,
    spelled_norm,
    transposes,
)


def optimize(graph: Graph, level: str, disabled: Collection[str] = ()) -> Report:
    """Rewrite a graph in place by the passes of a level, leaving out those named in ``disabled``."""
    return manager.run(graph, LEVELS[level], our_names(disabled))


def our_names(names: Collection[str]) -> set[str]:
    """Passes that are named by us or by onnxruntime; a name that nobody has stays as it is."""
    found: set[str] = set()
    for name in names:
        ours = ONNXRUNTIME_NAMES.get(name, name)
        found.update([ours] if isinstance(ours, str) else ours)
    return found
