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
    clipped_convs,
    conv,
    conv_resize,
    flat_attention,
    gemm,
    growing,
    heads,
    integers,
    lookups,
    loops,
    ml,
    movement,
    norm,
    pad,
    positions,
    quantization,
    reductions,
    reshapes,
    rotary,
    sibling_convs,
    slice_assignment,
    space_to_depth,
    support_vectors,
    transposes,
    weight_only,
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
"""Shapes and constants first: other rewrites depend on them."""

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
    "FuseSliceAssignment",
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
"""Operators that move elements, before the products that read them."""
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
"""Folding into the weights of products, nearest operator first: a chain is folded one operator at a time."""
SIMPLIFY = (*POINTWISE, *MOVEMENT, *PRODUCTS)
"""Rewrites that leave fewer or cheaper ai.onnx operators."""

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
"""The core first, then the surrounding operators from the inside out."""

ML_EXPANSIONS = (
    "ExpandLinearClassifier",
    "ExpandLinearRegressor",
    "ExpandSVMClassifier",
    "ExpandSVMRegressor",
    "ExpandTreeClassifier",
    "ExpandTwoClassTrees",
    "ExpandTreeRegressor",
    "ExpandNormalizer",
    "ExpandScaler",
    "InferShapes",
)
"""Models of ai.onnx.ml as operators of ai.onnx."""

FINAL = ("FoldMulConv", "FoldGatheredPointwise", "HoistLoopProducts", "CollectRows", "MultiplyByReciprocal")
"""Rewrites that would hide expressions from the fusions above."""

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
"""Extend integer regions as far as possible, then fuse operators within them."""

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

INTEGERS = (
    "QuantizeConcatenated",
    "FoldQuantize",
    "FoldConstants",
    "GatherQuantized",
    "FoldRealZeroPoints",
    "RectifyIntegers",
    "SinkDequantize",
    "CancelQuantization",
    "SinkConstantDequantize",
    "RestoreDequantize",
    "MultiplyIntegers",
    "MultiplyIntegersAdd",
    "ConvolveIntegers",
    "ConvolveIntegersTransposed",
    "MultiplyUnits",
    "ReportRealProducts",
    "FoldDequantize",
    "FoldQuantizedClip",
    "ClipIntegers",
    "DequantizeForReductions",
    "RemoveDeadCode",
)
"""For providers with integer kernels: integers are rearranged and multiplied as such; other constants are dequantized
once, or read as they are by products."""

IMAGES = ("ClipConvWindows", "JoinConvs", "JoinDepthwiseConvs", "ConvolveBeforeResize")
"""For providers with channels along vector lanes, and with convolutions that add to their output."""

PORTABLE = ("AdaptAttentionMasks", "ShareConstants", "ShareDuplicates", "RemoveDeadCode")
"""Changes for other engines' interpretations of ai.onnx's operators, for models that are saved for any of them."""

SPELLINGS = {"contrib": CONTRIB, "portable": PORTABLE}

ALWAYS = (*SHAPES, *SIMPLIFY, *CLEANUP)
BASIC = tuple(name for name in ALWAYS if name != "FuseCasts")
"""Chains of conversions stay as the model states them, as in onnxruntime's basic level."""
EXTENDED = (*ALWAYS, *ML_EXPANSIONS, *RAISE, *ATTENTION, *FINAL, *CLEANUP)

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
"""onnxruntime's optimizers and the passes that correspond to them, for ``disabled_optimizers``."""

_MODULES = (
    activation,
    arithmetic,
    attention,
    attention_parts,
    branches,
    flex_attention,
    casts,
    cleanup,
    clipped_convs,
    conv,
    conv_resize,
    flat_attention,
    fold,
    fold_shapes,
    gemm,
    growing,
    heads,
    integers,
    ml,
    lookups,
    loops,
    movement,
    noop,
    norm,
    pad,
    positions,
    quantization,
    quantized,
    quantized_blocks,
    quantized_matmul,
    quantized_movement,
    reductions,
    reshapes,
    rotary,
    shapes,
    sibling_convs,
    slice_assignment,
    space_to_depth,
    spelled_activation,
    spelled_attention,
    spelled_attention_mask,
    spelled_conv,
    spelled_embedding,
    spelled_matmul,
    spelled_norm,
    support_vectors,
    transposes,
    weight_only,
)


def optimize(graph: Graph, level: str, disabled: Collection[str] = ()) -> Report:
    """Rewrite a graph in place by the passes of a level, except those in ``disabled``."""
    return manager.run(graph, LEVELS[level], our_names(disabled))


def our_names(names: Collection[str]) -> set[str]:
    """Our names of passes, from our names or onnxruntime's; unknown names are returned unchanged."""
    found: set[str] = set()
    for name in names:
        ours = ONNXRUNTIME_NAMES.get(name, name)
        found.update([ours] if isinstance(ours, str) else ours)
    return found
