"""The table of operators.

An operator's implementation is a Python function on numpy values: tensors are positional (None for an omitted one),
attributes keyword-only with ONNX's defaults, and it returns an array or a tuple of outputs. It never writes to its
inputs. Two keywords are not attributes and are passed to the functions that declare them: ``outputs``, the number of
outputs of the node, and ``generator``, the node's own random stream.

Only the newest version of an operator is implemented: ``normalize`` upgrades older ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from sardonyx.ir.graph import Node
from sardonyx.lazy import Families
from sardonyx.records import Record

F = TypeVar("F", bound=Callable[..., Any])

FAMILIES = Families(__package__, {
    "pointwise": (
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor "
        "Ceil Clip Cos Cosh Div Equal Erf Exp Floor Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Log "
        "Max Mean Min Mod Mul Neg Not Or Pow Reciprocal Round Sign Sin Sinh Sqrt Sub Sum Tan Tanh Where Xor"
    ),
    "activation": (
        "Celu Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Shrink Sigmoid Softplus Softsign "
        "SwiGLU Swish ThresholdedRelu"
    ),
    "cast": "BitCast Cast CastLike",
    "reduce": (
        "ArgMax ArgMin CumProd CumSum Hardmax LogSoftmax ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
        "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Softmax"
    ),
    "topk": "NonZero TopK Unique",
    "movement": (
        "CenterCropPad Compress Concat DepthToSpace Expand Flatten Identity Pad Reshape ReverseSequence Slice "
        "SpaceToDepth Split Squeeze TensorScatter Tile Transpose Trilu Unsqueeze"
    ),
    "create": "Constant ConstantOfShape EyeLike Range Shape Size",
    "index": "Gather GatherElements GatherND OneHot ScatterElements ScatterND",
    "matmul": "Det Einsum Gemm MatMul MatMulInteger QLinearMatMul",
    "conv": "CausalConvWithState Conv ConvInteger QLinearConv",
    "conv_transpose": "Col2Im ConvTranspose sardonyx.ConvTransposeInteger",
    "pool": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxRoiPool MaxUnpool",
    "norm": (
        "BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization "
        "MeanVarianceNormalization RMSNormalization"
    ),
    "resize": "Resize",
    "sample": "AffineGrid DeformConv GridSample RoiAlign",
    "recurrent": "GRU LSTM RNN",
    "attention": "Attention LinearAttention RotaryEmbedding",
    "quantize": "DequantizeLinear DynamicQuantizeLinear QuantizeLinear",
    "signal": "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT",
    "random": "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    "sequence": (
        "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct "
        "SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence"
    ),
    "text": "RegexFullMatch StringConcat StringNormalizer StringSplit",
    "tokenizer": "com.microsoft.Tokenizer",
    "tfidf": "TfIdfVectorizer",
    "vision": "ImageDecoder NonMaxSuppression",
    "loss": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    "training": "ai.onnx.preview.training.Adagrad ai.onnx.preview.training.Adam ai.onnx.preview.training.Momentum",
    "ml": (
        "ai.onnx.ml.ArrayFeatureExtractor ai.onnx.ml.Binarizer ai.onnx.ml.CastMap ai.onnx.ml.CategoryMapper "
        "ai.onnx.ml.DictVectorizer ai.onnx.ml.FeatureVectorizer ai.onnx.ml.Imputer ai.onnx.ml.LabelEncoder "
        "ai.onnx.ml.Normalizer ai.onnx.ml.OneHotEncoder ai.onnx.ml.Scaler ai.onnx.ml.ZipMap"
    ),
    "ml_linear": (
        "ai.onnx.ml.LinearClassifier ai.onnx.ml.LinearRegressor ai.onnx.ml.SVMClassifier "
        "ai.onnx.ml.SVMRegressor"
    ),
    "ml_tree": "ai.onnx.ml.TreeEnsemble ai.onnx.ml.TreeEnsembleClassifier ai.onnx.ml.TreeEnsembleRegressor",
    "contrib": (
        "com.microsoft.CropAndResize com.microsoft.Inverse com.microsoft.MurmurHash3 "
        "com.microsoft.SparseToDenseMatMul"
    ),
    "recurrent_quantized": "com.microsoft.DynamicQuantizeLSTM",
})  # fmt: skip
"""The operators of each module."""

CUSTOM = "custom"
"""The family of operators that users define."""
SUPPLIED = frozenset({"outputs", "generator"})


class Custom(Record):
    """Additional properties of a custom operator."""

    function: Callable[..., Any]
    """The user's function."""
    parts: tuple[Any, ...]
    """Everything that the operator's result depends on; its digest is part of cache keys."""
    check: Callable[[Node], None]
    """Raises InvalidGraph for an invalid node."""
    launch: Callable[..., Any] | None = None
    """The kernel and its arguments, for views of inputs and outputs."""


class Op(Record):
    """An operator: its numpy implementation and further properties."""

    domain: str
    name: str
    numpy: Callable[..., Any]
    attributes: frozenset[str]
    supplied: frozenset[str]
    """Which of ``SUPPLIED`` the function takes."""
    pure: bool = True
    """False if the result is not a function of the inputs: such nodes are not folded or merged."""
    custom: Custom | None = None


_OPS: dict[tuple[str, str], Op] = {}


def op(name: str, *, domain: str = "", pure: bool = True) -> Callable[[F], F]:
    """Register the numpy implementation of an operator."""

    def register(fn: F) -> F:
        assert (domain, name) not in _OPS, f"{domain}.{name} has a meaning already"
        add(domain, name, fn, pure=pure)
        return fn

    return register


def add(domain: str, name: str, fn: Callable[..., Any], *, pure: bool = True, custom: Custom | None = None) -> None:
    """Add an implementation to the table, replacing an existing one."""
    keywords = {p.name for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY}
    attributes, supplied = frozenset(keywords - SUPPLIED), frozenset(keywords & SUPPLIED)
    _OPS[domain, name] = Op(domain, name, fn, attributes, supplied, pure, custom)


def find(domain: str, name: str) -> Op | None:
    """The entry of an operator; None if it is not in the table."""
    found = _OPS.get((domain, name))
    if found is None:
        FAMILIES.load(domain, name)
        found = _OPS.get((domain, name))
    return found


def family_of(found: Op) -> str | None:
    """The module that defines an operator, with whose import it is in the table; ``CUSTOM`` for a custom one."""
    package, _, module = found.numpy.__module__.rpartition(".")
    return CUSTOM if found.custom is not None else module if package == __package__ else None


def of_family(family: str, domain: str, name: str) -> Op:
    """The entry of an operator without importing other families."""
    if family != CUSTOM:
        FAMILIES.load_family(family)
    return _OPS[domain, name]


def every() -> list[Op]:
    FAMILIES.load_all()
    return list(_OPS.values())


def customs() -> list[Op]:
    """All custom operators."""
    return [op for op in list(_OPS.values()) if op.custom is not None]
