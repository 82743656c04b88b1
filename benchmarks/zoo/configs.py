"""Well-known models at published sizes, from their libraries' configurations and random weights, by both exporters.

    python -m benchmarks.zoo configs --out DIR [swin-ts swin-dynamo ...]
    python -m benchmarks.compare.reference DIR
    python -m benchmarks.compare --folder DIR --starts

NAME-ts is written by torch's TorchScript exporter at opset 17, NAME-dynamo by its dynamo one at opset 18. Beside a
model lie feeds and what torch answers to them. Attention is transformers' `sdpa`. Images are as large as published,
except where one run would take many seconds: those of Stable Diffusion have 256 x 256 pixels. Models are built one at a
time, each in a process of its own, whose memory is about four times the model's file. Needs the `bench` extra,
diffusers for Stable Diffusion and scipy for Mask2Former.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

EXPORTERS = ("ts", "dynamo")
SIZES = {"batch": 1, "sequence": 128, "source": 128}
STEP_SIZES = {"batch": 1, "sequence": 1, "past": 255, "total": 256}
"""Of free axes, in the feeds that are timed: those of a model with a cache."""

CONFIGS: dict[str, Callable[[], Any]] = {}
"""What builds each model: a ``samples.Sample``."""
Build = Callable[[], Any]


def config(name: str) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        CONFIGS[name] = build
        return build

    return register


def image_of(model: Any, sides: tuple[int, int], results: list[str]) -> Any:
    """A model of transformers that is given one image."""
    from benchmarks.zoo.samples import Input
    from benchmarks.zoo.transformers import called

    return called(model, [Input("pixel_values", (1, 3, *sides))], results)


def unet(width: int) -> Any:
    """The noise predictor of Stable Diffusion 1.5, whose first level has so many channels (published: 320)."""
    from diffusers import UNet2DConditionModel
    from torch import Tensor, nn

    from benchmarks.zoo.samples import Input, Sample

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = tuple(width * factor for factor in (1, 2, 4, 4))
            self.unet = UNet2DConditionModel(sample_size=64, block_out_channels=widths, cross_attention_dim=768)

        def forward(self, sample: Tensor, timestep: Tensor, prompt: Tensor) -> Tensor:
            return self.unet(sample, timestep, prompt, return_dict=False)[0]

    inputs = [
        Input("sample", (1, 4, 32, 32)),
        Input("timestep", (1,), limit=1000),
        Input("encoder_hidden_states", (1, 77, 768)),
    ]
    return Sample(Step(), inputs, ["noise"])


@config("sd15-unet")
def sd15_unet() -> Any:
    return unet(320)


@config("sd15-unet-half")
def sd15_unet_half() -> Any:
    return unet(160)


def vae() -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
        sample_size=512,
    )


@config("sd15-vae-decoder")
def sd15_vae_decoder() -> Any:
    from torch import Tensor, nn

    from benchmarks.zoo.samples import Input, Sample

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = vae()
            self.post_quant_conv, self.decoder = whole.post_quant_conv, whole.decoder

        def forward(self, latent: Tensor) -> Tensor:
            return self.decoder(self.post_quant_conv(latent))

    return Sample(Decoder(), [Input("latent_sample", (1, 4, 32, 32))], ["sample"])


@config("sd15-vae-encoder")
def sd15_vae_encoder() -> Any:
    from torch import Tensor, nn

    from benchmarks.zoo.samples import Input, Sample

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = vae()
            self.encoder, self.quant_conv = whole.encoder, whole.quant_conv

        def forward(self, sample: Tensor) -> Tensor:
            return self.quant_conv(self.encoder(sample))

    return Sample(Encoder(), [Input("sample", (1, 3, 256, 256))], ["moments"])


@config("llama-half-b")
def llama_half_b() -> Any:
    """Half a billion weights, as many as fit into one file; one token after 255."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from benchmarks.zoo.transformers import cached

    layers, heads, width = 24, 14, 896
    sizes = LlamaConfig(
        hidden_size=width,
        intermediate_size=4864,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        vocab_size=49152,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    return cached(LlamaForCausalLM(sizes), sizes.vocab_size, layers, 2, width // heads)


def whisper_small() -> Any:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in WHISPER_PARTS.items()}
    return WhisperForConditionalGeneration(WhisperConfig(d_model=768, attn_implementation="sdpa", **sizes))


WHISPER_PARTS = {"layers": 12, "attention_heads": 12, "ffn_dim": 3072}


@config("whisper-small-encoder")
def whisper_small_encoder() -> Any:
    from benchmarks.zoo.samples import Input
    from benchmarks.zoo.transformers import called

    return called(whisper_small().model.encoder, [Input("input_features", (1, 80, 3000))], ["last_hidden_state"])


@config("whisper-small-step")
def whisper_small_step() -> Any:
    """One token after 255, with the keys and values of those and of 1500 frames."""
    import torch
    from torch import Tensor
    from transformers import DynamicCache, EncoderDecoderCache

    from benchmarks.zoo.samples import Input, Sample
    from benchmarks.zoo.transformers import Call

    def cache_of(tensors: list[Tensor]) -> Any:
        return DynamicCache(list(zip(tensors[::2], tensors[1::2], strict=True)))

    class Step(Call):
        def __init__(self) -> None:
            super().__init__(whisper_small(), [], [])

        def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
            ids, *pairs = tensors
            half = len(pairs) // 2
            unread = torch.zeros(1, 1, 768)  # its keys and values are given
            cache = EncoderDecoderCache(cache_of(pairs[:half]), cache_of(pairs[half:]))
            out = self.model.model.decoder(
                input_ids=ids, encoder_hidden_states=unread, past_key_values=cache, use_cache=True
            )
            present = out.past_key_values.self_attention_cache.layers
            return self.model.proj_out(out.last_hidden_state), *(
                t for layer in present for t in (layer.keys, layer.values)
            )

    parts = [f"{i}.{part}" for i in range(WHISPER_PARTS["layers"]) for part in ("key", "value")]
    inputs = [
        Input("input_ids", (1, 1), limit=50000),
        *(Input(f"past_key_values.decoder.{part}", (1, 12, "past", 64)) for part in parts),
        *(Input(f"past_key_values.encoder.{part}", (1, 12, 1500, 64)) for part in parts),
    ]
    return Sample(Step(), inputs, ["logits", *(f"present.decoder.{part}" for part in parts)])


@config("t5-encoder")
def t5_encoder() -> Any:
    from benchmarks.zoo.transformers import TRANSFORMERS

    return TRANSFORMERS["t5-encoder"].build(False, "sdpa")


@config("t5-decoder")
def t5_decoder() -> Any:
    from benchmarks.zoo.transformers import TRANSFORMERS

    return TRANSFORMERS["t5-decoder"].build(False, "sdpa")


@config("swin")
def swin() -> Any:
    from transformers import SwinConfig, SwinForImageClassification

    return image_of(SwinForImageClassification(SwinConfig(num_labels=1000)), (224, 224), ["logits"])


@config("segformer")
def segformer() -> Any:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return image_of(SegformerForSemanticSegmentation(SegformerConfig(num_labels=150)), (512, 512), ["logits"])


@config("detr")
def detr() -> Any:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(out_features=["stage4"])
    sizes = DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone)
    return image_of(DetrForObjectDetection(sizes), (640, 640), ["logits", "pred_boxes"])


@config("mask2former")
def mask2former() -> Any:
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation

    model = Mask2FormerForUniversalSegmentation(Mask2FormerConfig())
    return image_of(model, (384, 384), ["class_queries_logits", "masks_queries_logits"])


@config("owlvit")
def owlvit() -> Any:
    from transformers import OwlViTConfig, OwlViTForObjectDetection

    from benchmarks.zoo.samples import Input
    from benchmarks.zoo.transformers import called

    inputs = [
        Input("input_ids", (2, 16), limit=49000),
        Input("pixel_values", (1, 3, 768, 768)),
        Input("attention_mask", (2, 16), mask=True),
    ]
    return called(OwlViTForObjectDetection(OwlViTConfig()), inputs, ["logits", "pred_boxes"])


@config("efficientnet-b4")
def efficientnet_b4() -> Any:
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    sizes = EfficientNetConfig(
        width_coefficient=1.4, depth_coefficient=1.8, image_size=380, hidden_dim=1792, num_labels=1000
    )
    return image_of(EfficientNetForImageClassification(sizes), (380, 380), ["logits"])


@config("convnext-base")
def convnext_base() -> Any:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    sizes = ConvNextConfig(depths=[3, 3, 27, 3], hidden_sizes=[128, 256, 512, 1024], num_labels=1000)
    return image_of(ConvNextForImageClassification(sizes), (224, 224), ["logits"])


SETTLED = ("efficientnet-b4", "detr", "segformer")
"""Nets with batch normalizations, which get the statistics of their data."""


def build(name: str, exporter: str, out: Path) -> str:
    """Write one model, its feeds and torch's answers; returns the line to print."""
    import time
    import warnings

    import torch

    from benchmarks.compare.cases import Case
    from benchmarks.zoo.exported import export
    from benchmarks.zoo.timed import SEED, move_off_zero, settle, told
    from sardonyx.bench.arrays import store

    start, full = time.perf_counter(), f"{name}-{exporter}"
    path = out / f"{full}.onnx"
    torch.manual_seed(SEED)
    sample = CONFIGS[name]()
    move_off_zero(sample.module)
    has_cache = any("past" in i.shape for i in sample.inputs)
    feeds = {i.name: i.sample(STEP_SIZES if has_cache else SIZES) for i in sample.inputs}
    if name in SETTLED:
        settle(sample.module, list(feeds.values()))
    sample.module.eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        answers = sample.module(*feeds.values())
        export(sample, exporter, path)
    answers = (answers,) if isinstance(answers, torch.Tensor) else answers
    answered = {n: t.numpy() for n, t in zip(sample.outputs, answers, strict=True) if "present" not in n}
    store(Case.of(full).feeds(out), **{"in": {n: t.numpy() for n, t in feeds.items()}, "told": answered})
    return told(path, f"by {exporter}", start)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("names", nargs="*", help=f"models to build, with exporter or without: {', '.join(CONFIGS)}")
    add("--out", type=Path, default=Path("zoo"))


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    all_of = {f"{name}-{exporter}": (name, exporter) for name in CONFIGS for exporter in EXPORTERS}
    if unknown := set(args.names) - {*CONFIGS, *all_of}:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    chosen = [full for full, (name, _) in all_of.items() if not args.names or {full, name} & set(args.names)]
    args.out.mkdir(parents=True, exist_ok=True)
    failures = 0
    for full in chosen:
        if (args.out / f"{full}.npz").exists():
            continue
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            try:
                print(pool.submit(build, *all_of[full], args.out).result(), flush=True)
            except Exception as error:
                failures += 1
                print(f"{full}: {type(error).__name__}: {str(error)[:500]}", flush=True)
    sys.exit(bool(failures))
