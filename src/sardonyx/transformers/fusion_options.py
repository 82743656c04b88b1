"""Options that select fusions, with onnxruntime's names."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from enum import Enum
from typing import Any

DIFFUSION = ("unet", "vae", "clip")
"""Model types of Stable Diffusion, which have switches of their own."""

PASSES: dict[str, tuple[str, ...]] = {
    "enable_gelu": ("FuseGelu", "FuseTanhGelu", "SpellBiasGelu", "SpellGelu", "SpellQuickGelu"),
    "enable_layer_norm": ("FuseLayerNorm", "FuseRMSNorm", "SpellSimplifiedLayerNorm"),
    "enable_attention": ("FuseAttention", "FuseFlatAttention", "SpellAttention", "SpellMultiHeadAttention"),
    "enable_rotary_embeddings": ("FuseRotaryEmbedding",),
    "enable_skip_layer_norm": ("SpellSkipLayerNorm",),
    "enable_bias_skip_layer_norm": ("SpellBiasSkipLayerNorm",),
    "enable_embed_layer_norm": ("SpellEmbedLayerNorm",),
    "enable_bias_gelu": ("SpellBiasGelu",),
}
"""Each switch, and the passes that it enables."""

SWITCHES = {
    "gelu": "Gelu",
    "layer_norm": "LayerNormalization",
    "attention": "Attention",
    "skip_layer_norm": "SkipLayerNormalization",
    "embed_layer_norm": "EmbedLayerNormalization",
    "bias_skip_layer_norm": "bias and SkipLayerNormalization",
    "bias_gelu": "bias and Gelu",
    "rotary_embeddings": "RotaryEmbedding",
    "shape_inference": "symbolic shape inference",
}
DIFFUSION_SWITCHES = {
    "group_norm": "GroupNorm",
    "skip_group_norm": "SkipGroupNorm",
    "packed_kv": "packed keys and values of cross attention",
    "packed_qkv": "packed projections of self attention",
    "bias_add": "BiasAdd",
    "bias_splitgelu": "BiasSplitGelu",
    "nhwc_conv": "NhwcConv",
}
"""Options ``enable_X`` that a flag ``--disable_X`` disables, with their descriptions."""


WITHOUT_EFFECT = (
    "disable_multi_head_attention_bias",
    "enable_qordered_matmul",
    "enable_shape_inference",
    "enable_gemm_fast_gelu",
    "group_norm_channels_last",
    "attention_mask_format",
    *(f"enable_{name}" for name in DIFFUSION_SWITCHES),
)
"""Options that are accepted and have no effect: see FusionOptions."""

ONE_INPUT_ATTENTION = "SpellAttention"
"""The pass that writes com.microsoft.Attention; without it, MultiHeadAttention is written."""


class AttentionMaskFormat:
    """The format of the mask of a fused attention. Fusions here keep the model's mask."""

    MaskIndexEnd = 0
    MaskIndexEndAndStart = 1
    AttentionMask = 2
    NoMask = 3


class AttentionOpType(Enum):
    Attention = "Attention"
    MultiHeadAttention = "MultiHeadAttention"
    GroupQueryAttention = "GroupQueryAttention"
    PagedAttention = "PagedAttention"

    def __str__(self) -> str:
        return self.value


class FusionOptions:
    """Switches, with onnxruntime's names and defaults for a type of model.

    Those of ``WITHOUT_EFFECT`` are accepted, so that programs that set them run, and have no effect: shapes are always
    inferred, a mask keeps its format, biases of MultiHeadAttention are its inputs, and the operators of GPU kernels
    (QOrderedMatMul, GemmFastGelu, and those of Stable Diffusion) are not written. An ``attention_op_type`` other than
    MultiHeadAttention has no effect either: each attention becomes an operator that can express it.
    """

    def __init__(self, model_type: str) -> None:
        self.enable_gelu = True
        self.enable_layer_norm = True
        self.enable_attention = True
        self.enable_rotary_embeddings = True
        self.use_multi_head_attention = False
        self.disable_multi_head_attention_bias = False
        self.enable_skip_layer_norm = True
        self.enable_embed_layer_norm = model_type not in ("clip", "qwen3")
        self.enable_bias_skip_layer_norm = True
        self.enable_bias_gelu = True
        self.enable_gelu_approximation = False
        self.enable_qordered_matmul = True
        self.enable_shape_inference = True
        self.enable_gemm_fast_gelu = False
        self.group_norm_channels_last = True
        self.attention_mask_format = {
            "bert": AttentionMaskFormat.MaskIndexEnd,
            "vit": AttentionMaskFormat.NoMask,
            "qwen3": AttentionMaskFormat.NoMask,
        }.get(model_type, AttentionMaskFormat.AttentionMask)
        self.attention_op_type: AttentionOpType | None = None
        if model_type in DIFFUSION:
            for name in DIFFUSION_SWITCHES:
                setattr(self, f"enable_{name}", True)

    def use_raw_attention_mask(self, use_raw_mask: bool = True) -> None:
        self.attention_mask_format = (
            AttentionMaskFormat.AttentionMask if use_raw_mask else AttentionMaskFormat.MaskIndexEnd
        )

    def disable_attention_mask(self) -> None:
        self.attention_mask_format = AttentionMaskFormat.NoMask

    def set_attention_mask_format(self, mask_format: int) -> None:
        self.attention_mask_format = mask_format

    def set_attention_op_type(self, attn_op_type: AttentionOpType) -> None:
        self.attention_op_type = attn_op_type

    def disabled_passes(self) -> set[str]:
        """The passes that these options disable."""
        off = {name for option, names in PASSES.items() if not getattr(self, option) for name in names}
        several = self.use_multi_head_attention or self.attention_op_type is AttentionOpType.MultiHeadAttention
        return off | {ONE_INPUT_ATTENTION} if several else off

    @staticmethod
    def parse(args: Namespace) -> FusionOptions:
        """The options of command line flags."""
        options = FusionOptions(args.model_type)
        switches = {**SWITCHES, **(DIFFUSION_SWITCHES if args.model_type in DIFFUSION else {})}
        for name in switches:
            if getattr(args, f"disable_{name}"):
                setattr(options, f"enable_{name}", False)
        options.enable_gelu_approximation = args.enable_gelu_approximation
        options.enable_gemm_fast_gelu = args.enable_gemm_fast_gelu
        options.use_multi_head_attention = args.use_multi_head_attention
        options.group_norm_channels_last = not args.use_group_norm_channels_first
        if args.use_mask_index:
            options.use_raw_attention_mask(False)
        if args.use_raw_attention_mask:
            options.use_raw_attention_mask(True)
        if args.no_attention_mask:
            options.disable_attention_mask()
        return options

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Add the flags that ``parse`` reads to a parser."""

        def flag(name: str, about: str) -> Any:
            parser.add_argument(f"--{name}", action="store_true", help=about)

        for name, what in SWITCHES.items():
            flag(f"disable_{name}", f"no {what}" if "inference" in what else f"no fusion to {what}")
        for name, what in DIFFUSION_SWITCHES.items():
            flag(f"disable_{name}", f"no {what} (model types {', '.join(DIFFUSION)})")
        flag("enable_gelu_approximation", "Gelu by its tanh approximation")
        flag("enable_gemm_fast_gelu", "fusion to GemmFastGelu")
        flag("use_mask_index", "masks as lengths; needs padding on the right")
        flag("use_raw_attention_mask", "masks as the model has them")
        flag("no_attention_mask", "no attention mask")
        flag("use_multi_head_attention", "MultiHeadAttention in place of Attention")
        flag("use_group_norm_channels_first", "GroupNorm over NCHW")
