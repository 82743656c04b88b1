"""Models as exporters write them: transformers, convolutional nets and quantized nets, from random weights and one seed.

    python benchmarks/zoo.py --out DIR                  every model, at its published size
    python benchmarks/zoo.py --out DIR --small          the same layers and patterns, narrow: a few MB per file
    python benchmarks/zoo.py --out DIR --only bert-     those whose name holds one of the given strings
    python benchmarks/zoo.py --list

A name reads MODEL[-ATTENTION]-EXPORTER: the attention is transformers' `eager` or `sdpa`; the exporter is torch's
TorchScript one at opset 17 (`ts`) or 14 (`ts14`, where LayerNormalization does not exist), or torch's dynamo one at
opset 18 (`dynamo`) or 23 (`dynamo23`, where Attention and RMSNormalization exist). Names that start with `quant` are
written by onnxruntime's quantizers.

Beside NAME.onnx lies NAME.npz: feeds (`in:INPUT`), of other sizes than those that the exporter saw, and what
onnxruntime answers with its optimizer off (`out:OUTPUT`). Files that exist are kept. Needs the `bench` extra.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SEED = 0
TRACED = {"batch": 2, "sequence": 16, "source": 12, "past": 8, "total": 24}
CHECKED = {"batch": 3, "sequence": 11, "source": 9, "past": 5, "total": 16}
EXPORTERS = {
    "ts": {"dynamo": False, "opset_version": 17},
    "ts14": {"dynamo": False, "opset_version": 14},
    "dynamo": {"dynamo": True, "opset_version": 18},
    "dynamo23": {"dynamo": True, "opset_version": 23},
}


@dataclass
class Input:
    """A graph input: its axes, by size or by the name of a free one, and what its values are.

    `limit` bounds token ids; without one the values are normal. A mask is 1 up to a length of its own in each row.
    """

    name: str
    shape: tuple[int | str, ...]
    limit: int | None = None
    mask: bool = False

    def sample(self, sizes: dict[str, int]) -> Tensor:
        shape = [sizes[d] if isinstance(d, str) else d for d in self.shape]
        if self.mask:
            lengths = torch.arange(shape[0]).flip(0) + shape[1] - shape[0] + 1
            return (torch.arange(shape[1]) < lengths[:, None]).long()
        return torch.randn(shape) if self.limit is None else torch.randint(0, self.limit, shape)

    def free(self) -> dict[int, str]:
        return {axis: d for axis, d in enumerate(self.shape) if isinstance(d, str)}


@dataclass
class Sample:
    """A module, the inputs it takes by position, and the names of the tensors it gives."""

    module: nn.Module
    inputs: list[Input]
    outputs: list[str]


@dataclass
class Recipe:
    build: Callable[[bool, str], Sample]
    attentions: tuple[str, ...]
    exporters: dict[str, tuple[str, ...]] = field(default_factory=dict)


TRANSFORMERS: dict[str, Recipe] = {}
CONVNETS: dict[str, Recipe] = {}
QUANTIZED: dict[str, Callable[[bool, Path], None]] = {}


def transformer(name: str, modern: bool = False) -> Callable[[Any], Any]:
    """Register a builder of (small, attention); every attention is exported by both exporters."""

    def register(build: Callable[[bool, str], Sample]) -> Callable[[bool, str], Sample]:
        last = ("dynamo23",) if modern else ()
        exporters = {"eager": ("ts", "ts14", "dynamo"), "sdpa": ("ts", "dynamo", *last)}
        TRANSFORMERS[name] = Recipe(build, ("eager", "sdpa"), exporters)
        return build

    return register


def convnet(name: str) -> Callable[[Any], Any]:
    def register(build: Callable[[bool], Sample]) -> Callable[[bool], Sample]:
        CONVNETS[name] = Recipe(lambda small, _: build(small), ("",), {"": ("ts", "dynamo")})
        return build

    return register


def quantized(name: str) -> Callable[[Any], Any]:
    def register(build: Callable[[bool, Path], None]) -> Callable[[bool, Path], None]:
        QUANTIZED[name] = build
        return build

    return register


# --- transformers ---------------------------------------------------------------------------------------------------

IDS = ("batch", "sequence")


class Call(nn.Module):
    """A transformers model called by keyword, its named results given as a tuple; a cache travels as flat tensors."""

    def __init__(self, model: nn.Module, names: list[str], results: list[str], **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.results, self.fixed = model, names, results, fixed

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        given = dict(zip(self.names, tensors, strict=False))
        flat = tensors[len(self.names) :]
        if flat:
            given["past_key_values"] = DynamicCache(list(zip(flat[::2], flat[1::2], strict=True)))
        out = self.model(**given, **self.fixed)
        present = out.past_key_values.layers if flat else []
        return (*(getattr(out, name) for name in self.results), *(t for layer in present for t in (layer.keys, layer.values)))


def called(model: nn.Module, inputs: list[Input], results: list[str], **fixed: Any) -> Sample:
    return Sample(Call(model, [i.name for i in inputs], results, **fixed), inputs, results)


def cached(model: nn.Module, vocab: int, layers: int, heads: int, head_size: int) -> Sample:
    """A decoder that is given, and gives, the keys and values of every layer."""
    inputs = [
        Input("input_ids", IDS, limit=vocab),
        Input("attention_mask", ("batch", "total"), mask=True),
        Input("position_ids", IDS, limit=16),
    ]
    pairs = [f"{i}.{part}" for i in range(layers) for part in ("key", "value")]
    past = [Input(f"past_key_values.{pair}", ("batch", heads, "past", head_size)) for pair in pairs]
    module = Call(model, [i.name for i in inputs], ["logits"], use_cache=True)
    return Sample(module, inputs + past, ["logits", *(f"present.{pair}" for pair in pairs)])


def text(vocab: int, *more: Input) -> list[Input]:
    return [Input("input_ids", IDS, limit=vocab), Input("attention_mask", IDS, mask=True), *more]


@transformer("bert", modern=True)
def bert(small: bool, attention: str) -> Sample:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 500}
    config = BertConfig(attn_implementation=attention, **(sizes if small else {}))
    inputs = text(config.vocab_size, Input("token_type_ids", IDS, limit=2))
    return called(BertModel(config), inputs, ["last_hidden_state", "pooler_output"])


@transformer("gpt2")
def gpt2(small: bool, attention: str) -> Sample:
    model = gpt2_model(small, attention)
    return called(model, text(model.config.vocab_size), ["logits"], use_cache=False)


@transformer("gpt2-past")
def gpt2_past(small: bool, attention: str) -> Sample:
    model = gpt2_model(small, attention)
    config = model.config
    return cached(model, config.vocab_size, config.n_layer, config.n_head, config.n_embd // config.n_head)


def gpt2_model(small: bool, attention: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 64, "n_head": 4, "vocab_size": 500, "n_positions": 128}
    return GPT2LMHeadModel(GPT2Config(attn_implementation=attention, **(sizes if small else {})))


@transformer("vit")
def vit(small: bool, attention: str) -> Sample:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "image_size": 48}
    config = ViTConfig(attn_implementation=attention, **(sizes if small else {}))
    image = Input("pixel_values", ("batch", 3, config.image_size, config.image_size))
    return called(ViTForImageClassification(config), [image], ["logits"])


@transformer("distilbert")
def distilbert(small: bool, attention: str) -> Sample:
    from transformers import DistilBertConfig, DistilBertModel

    sizes = {"dim": 64, "n_heads": 4, "hidden_dim": 256, "vocab_size": 500}
    config = DistilBertConfig(attn_implementation=attention, **(sizes if small else {}))
    return called(DistilBertModel(config), text(config.vocab_size), ["last_hidden_state"])


def t5_config(small: bool, attention: str, **more: Any) -> Any:
    from transformers import T5Config

    sizes = {"d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 256, "vocab_size": 500}
    return T5Config(attn_implementation=attention, **(sizes if small else {}), **more)


def t5_decoder_of(config: Any) -> Sample:
    from transformers import T5ForConditionalGeneration

    class Decoder(nn.Module):
        """The decoder and its head, fed with what the encoder gave."""

        def __init__(self) -> None:
            super().__init__()
            self.whole = T5ForConditionalGeneration(config)

        def forward(self, **given: Any) -> Any:
            given["encoder_outputs"] = (given.pop("encoder_hidden_states"),)
            return self.whole(**given, use_cache=False)

    inputs = [
        Input("decoder_input_ids", IDS, limit=config.vocab_size),
        Input("attention_mask", ("batch", "source"), mask=True),
        Input("encoder_hidden_states", ("batch", "source", config.d_model)),
    ]
    return called(Decoder(), inputs, ["logits"])


@transformer("t5-encoder")
def t5_encoder(small: bool, attention: str) -> Sample:
    from transformers import T5EncoderModel

    config = t5_config(small, attention)
    return called(T5EncoderModel(config), text(config.vocab_size), ["last_hidden_state"])


@transformer("t5-decoder")
def t5_decoder(small: bool, attention: str) -> Sample:
    return t5_decoder_of(t5_config(small, attention))


@transformer("t5-gated-encoder")
def t5_gated_encoder(small: bool, attention: str) -> Sample:
    """The feed-forward layer of T5 1.1: tanh-Gelu times a gate."""
    from transformers import T5EncoderModel

    config = t5_config(small, attention, feed_forward_proj="gated-gelu")
    return called(T5EncoderModel(config), text(config.vocab_size), ["last_hidden_state"])


def clip_config(small: bool, attention: str) -> Any:
    from transformers import CLIPConfig

    narrow = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256}
    words = {**narrow, "vocab_size": 500, "eos_token_id": 499} if small else {"eos_token_id": 49407}
    image = {**narrow, "image_size": 64} if small else {}
    width = {"projection_dim": 32} if small else {}
    return CLIPConfig(text_config=words, vision_config=image, attn_implementation=attention, **width)


@transformer("clip-text")
def clip_text(small: bool, attention: str) -> Sample:
    from transformers import CLIPTextModelWithProjection

    config = clip_config(small, attention).text_config
    config._attn_implementation = attention
    return called(CLIPTextModelWithProjection(config), text(config.vocab_size), ["text_embeds", "last_hidden_state"])


@transformer("clip-vision")
def clip_vision(small: bool, attention: str) -> Sample:
    from transformers import CLIPVisionModelWithProjection

    config = clip_config(small, attention).vision_config
    config._attn_implementation = attention
    image = Input("pixel_values", ("batch", 3, config.image_size, config.image_size))
    return called(CLIPVisionModelWithProjection(config), [image], ["image_embeds", "last_hidden_state"])


def whisper_model(small: bool, attention: str) -> Any:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    tiny = {"encoder_layers": 4, "decoder_layers": 4}
    full = {"d_model": 384, "encoder_attention_heads": 6, "decoder_attention_heads": 6} | {
        "encoder_ffn_dim": 1536,
        "decoder_ffn_dim": 1536,
    }
    narrow = {"d_model": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4} | {
        "encoder_ffn_dim": 256,
        "decoder_ffn_dim": 256,
        "vocab_size": 500,
        "max_source_positions": 40,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }
    config = WhisperConfig(attn_implementation=attention, **tiny, **(narrow if small else full))
    return WhisperForConditionalGeneration(config)


@transformer("whisper-encoder")
def whisper_encoder(small: bool, attention: str) -> Sample:
    model = whisper_model(small, attention)
    sound = Input("input_features", ("batch", model.config.num_mel_bins, 2 * model.config.max_source_positions))
    return called(model.model.encoder, [sound], ["last_hidden_state"])


@transformer("whisper-decoder")
def whisper_decoder(small: bool, attention: str) -> Sample:
    whole = whisper_model(small, attention)
    config = whole.config

    class Decoder(nn.Module):
        """The decoder and its head, fed with what the encoder gave."""

        def __init__(self) -> None:
            super().__init__()
            self.decoder, self.head = whole.model.decoder, whole.proj_out

        def forward(self, ids: Tensor, encoded: Tensor) -> Tensor:
            out = self.decoder(input_ids=ids, encoder_hidden_states=encoded, use_cache=False)
            return self.head(out.last_hidden_state)

    inputs = [
        Input("decoder_input_ids", IDS, limit=config.vocab_size),
        Input("encoder_hidden_states", ("batch", config.max_source_positions, config.d_model)),
    ]
    return Sample(Decoder(), inputs, ["logits"])


GROUPED = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
GROUPED_SMALL = {"hidden_size": 64, "intermediate_size": 160, "vocab_size": 500}
GROUPED_FULL = {"hidden_size": 512, "intermediate_size": 1408, "vocab_size": 32000}


def grouped(family: str, small: bool, attention: str) -> Any:
    """A decoder of four layers with rotary embedding and two queries per key."""
    import transformers

    config = getattr(transformers, f"{family}Config")(
        attn_implementation=attention, **GROUPED, **(GROUPED_SMALL if small else GROUPED_FULL)
    )
    return getattr(transformers, f"{family}ForCausalLM")(config)


@transformer("llama", modern=True)
def llama(small: bool, attention: str) -> Sample:
    model = grouped("Llama", small, attention)
    return called(model, text(model.config.vocab_size), ["logits"], use_cache=False)


@transformer("llama-past", modern=True)
def llama_past(small: bool, attention: str) -> Sample:
    model = grouped("Llama", small, attention)
    config = model.config
    return cached(model, config.vocab_size, config.num_hidden_layers, config.num_key_value_heads, config.hidden_size // 4)


@transformer("qwen2")
def qwen2(small: bool, attention: str) -> Sample:
    """Like Llama, with biases on queries, keys and values."""
    model = grouped("Qwen2", small, attention)
    return called(model, text(model.config.vocab_size), ["logits"], use_cache=False)


# --- convolutional nets ---------------------------------------------------------------------------------------------


def conv_norm(fan_in: int, fan_out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(fan_in, fan_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(fan_out)]


class Residual(nn.Module):
    """shortcut(x) + branch(x), then an activation."""

    def __init__(self, branch: list[nn.Module], shortcut: list[nn.Module], activation: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut, self.activation = nn.Sequential(*branch), nn.Sequential(*shortcut), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.branch(x) + self.shortcut(x))


def bottleneck(fan_in: int, width: int, stride: int) -> Residual:
    fan_out = 4 * width
    branch = [
        *conv_norm(fan_in, width, 1), nn.ReLU(), *conv_norm(width, width, 3, stride), nn.ReLU(),
        *conv_norm(width, fan_out, 1),
    ]  # fmt: skip
    shortcut = [] if stride == 1 and fan_in == fan_out else conv_norm(fan_in, fan_out, 1, stride)
    return Residual(branch, shortcut, nn.ReLU())


def pooled(features: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)]


@convnet("resnet50")
def resnet50(small: bool) -> Sample:
    width, side, classes = (8, 64, 100) if small else (64, 224, 1000)
    layers = [*conv_norm(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    fan_in = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(bottleneck(fan_in, width << stage, 2 if stage and not block else 1))
            fan_in = 4 * width << stage
    return Sample(nn.Sequential(*layers, *pooled(fan_in, classes)), [Input("image", ("batch", 3, side, side))], ["logits"])


@convnet("mobilenetv2")
def mobilenetv2(small: bool) -> Sample:
    scale, side, classes = (4, 64, 100) if small else (1, 224, 1000)
    fan_in = 32 // scale
    layers = [*conv_norm(3, fan_in, 3, 2), nn.ReLU6()]
    for expand, width, blocks, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(blocks):
            stride, fan_out, hidden = (1 if block else first), width // scale, fan_in * expand
            wide = [] if expand == 1 else [*conv_norm(fan_in, hidden, 1), nn.ReLU6()]
            deep = [*conv_norm(hidden, hidden, 3, stride, hidden), nn.ReLU6(), *conv_norm(hidden, fan_out, 1)]
            whole = wide + deep
            layers += [Residual(whole, [], nn.Identity())] if stride == 1 and fan_in == fan_out else whole
            fan_in = fan_out
    last = 1280 // scale
    layers += [*conv_norm(fan_in, last, 1), nn.ReLU6(), *pooled(last, classes)]
    return Sample(nn.Sequential(*layers), [Input("image", ("batch", 3, side, side))], ["logits"])


class SqueezeExcite(nn.Module):
    """Channels weighed by a hard sigmoid of their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.ReLU(), nn.Conv2d(width // 4, width, 1), nn.Hardsigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weigh(x)


@convnet("mobilenetv3")
def mobilenetv3(small: bool) -> Sample:
    """Blocks of MobileNetV3: hard swish, squeeze-and-excitation."""
    width, side, classes = (8, 64, 100) if small else (16, 224, 1000)
    layers = [*conv_norm(3, width, 3, 2), nn.Hardswish()]
    for _ in range(4):
        hidden = 4 * width
        layers += [
            *conv_norm(width, hidden, 1), nn.Hardswish(), *conv_norm(hidden, hidden, 5, 2, hidden), nn.Hardswish(),
            SqueezeExcite(hidden), *conv_norm(hidden, 2 * width, 1),
        ]  # fmt: skip
        width *= 2
    layers += [*pooled(width, 4 * width), nn.Hardswish(), nn.Linear(4 * width, classes)]
    return Sample(nn.Sequential(*layers), [Input("image", ("batch", 3, side, side))], ["logits"])


def conv_silu(fan_in: int, fan_out: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(*conv_norm(fan_in, fan_out, kernel, stride), nn.SiLU())


class Split(nn.Module):
    """YOLO's C2f: half the channels pass a chain of residual convolutions, and every step is kept."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.first, self.last = conv_silu(width, width, 1), conv_silu(2 * width, width, 1)
        self.chain = nn.ModuleList(
            Residual([conv_silu(half, half), conv_silu(half, half)], [], nn.Identity()) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = list(self.first(x).chunk(2, 1))
        for step in self.chain:
            kept.append(step(kept[-1]))
        return self.last(torch.cat(kept, 1))


class Yolo(nn.Module):
    """A focus stem (slices to depth), two scales joined by upsampling, a pooled pyramid, boxes by expectation over bins."""

    def __init__(self, width: int, classes: int, bins: int) -> None:
        super().__init__()
        self.classes, self.bins = classes, bins
        self.stem = conv_silu(12, width)
        self.down = nn.Sequential(conv_silu(width, 2 * width, stride=2), Split(2 * width))
        self.deep = nn.Sequential(conv_silu(2 * width, 4 * width, stride=2), Split(4 * width))
        self.before, self.pool = conv_silu(4 * width, 2 * width, 1), nn.MaxPool2d(5, 1, 2)
        self.after = conv_silu(8 * width, 4 * width, 1)
        self.up = nn.Upsample(scale_factor=2.0, mode="nearest")
        self.join = conv_silu(6 * width, 2 * width, 1)
        self.heads = nn.ModuleList(
            nn.Sequential(conv_silu(fan_in, fan_in), nn.Conv2d(fan_in, classes + 4 * bins, 1)) for fan_in in (2 * width, 4 * width)
        )
        self.expect = nn.Conv2d(bins, 1, 1, bias=False)

    def decode(self, raw: Tensor, stride: int) -> Tensor:
        batch, _, high, wide = raw.shape
        bins, scores = raw.flatten(2).split((4 * self.bins, self.classes), 1)
        sides = self.expect(bins.view(batch, 4, self.bins, high * wide).transpose(2, 1).softmax(1)).view(batch, 4, -1)
        y, x = torch.meshgrid(torch.arange(high) + 0.5, torch.arange(wide) + 0.5, indexing="ij")
        centre = torch.stack((x, y)).view(1, 2, -1)
        near, far = sides.chunk(2, 1)
        low, top = centre - near, centre + far
        return torch.cat((torch.cat(((low + top) / 2, top - low), 1) * stride, scores.sigmoid()), 1)

    def forward(self, x: Tensor) -> Tensor:
        corners = (x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2])
        fine = self.down(self.stem(torch.cat(corners, 1)))
        coarse = self.before(self.deep(fine))
        pyramid = [coarse]
        for _ in range(3):
            pyramid.append(self.pool(pyramid[-1]))
        coarse = self.after(torch.cat(pyramid, 1))
        fine = self.join(torch.cat((self.up(coarse), fine), 1))
        scales = zip(self.heads, (fine, coarse), (4, 8), strict=True)
        return torch.cat([self.decode(head(scale), stride) for head, scale, stride in scales], 2)


@convnet("yolo")
def yolo(small: bool) -> Sample:
    width, side = (8, 64) if small else (32, 320)
    return Sample(Yolo(width, 10, 16), [Input("image", ("batch", 3, side, side))], ["boxes"])


class Mlp(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 10))


@convnet("mlp")
def mlp(small: bool) -> Sample:
    width = 64 if small else 512
    return Sample(Mlp(width), [Input("x", ("batch", "sequence", width))], ["y"])


# --- quantized nets -------------------------------------------------------------------------------------------------


class Readings:
    """Calibration data: a few random feeds, as onnxruntime's calibrator asks for them."""

    def __init__(self, inputs: list[Input]) -> None:
        torch.manual_seed(SEED)
        self.feeds = iter([{i.name: i.sample(CHECKED).numpy() for i in inputs} for _ in range(4)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def source(name: str, small: bool, out: Path) -> Path:
    """The float model that a quantizer starts from, built when it is not there."""
    path = out / f"{name}.onnx"
    if not path.exists():
        dict(plan(small, out))[name]()
    return path


def quantize_static(base: str, inputs: list[Input], form: str, small: bool, path: Path, **more: Any) -> None:
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = path.with_suffix(".prepared")
    quant_pre_process(str(source(base, small, path.parent)), str(prepared))
    q.quantize_static(
        str(prepared), str(path), Readings(inputs), quant_format=q.QuantFormat[form], per_channel=True, **more
    )
    prepared.unlink()


def quantize_dynamic(base: str, small: bool, path: Path, **more: Any) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(str(source(base, small, path.parent)), str(path), **more)


def quantize_nbits(base: str, form: str, small: bool, path: Path) -> None:
    """Weights of four bits in blocks of 32, as DequantizeLinear+MatMul or as MatMulNBits."""
    import onnx
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    model = onnx.version_converter.convert_version(onnx.load(source(base, small, path.parent)), 21)
    for i, node in enumerate(model.graph.node):
        node.name = node.name or f"node_{i}"
    settings = DefaultWeightOnlyQuantConfig(32, is_symmetric=False, quant_format=QuantFormat[form])
    quantizer = MatMulNBitsQuantizer(model, algo_config=settings)
    quantizer.process()
    onnx.save(quantizer.model.model, path)


def image_of(small: bool) -> list[Input]:
    side = 64 if small else 224
    return [Input("image", ("batch", 3, side, side))]


@quantized("quant-resnet50-qdq")
def quant_resnet50_qdq(small: bool, path: Path) -> None:
    quantize_static("resnet50-ts", image_of(small), "QDQ", small, path)


@quantized("quant-resnet50-qoperator")
def quant_resnet50_qoperator(small: bool, path: Path) -> None:
    quantize_static("resnet50-ts", image_of(small), "QOperator", small, path)


@quantized("quant-mobilenetv2-qdq")
def quant_mobilenetv2_qdq(small: bool, path: Path) -> None:
    quantize_static("mobilenetv2-ts", image_of(small), "QDQ", small, path)


@quantized("quant-mlp-qdq")
def quant_mlp_qdq(small: bool, path: Path) -> None:
    quantize_static("mlp-ts", mlp(small).inputs, "QDQ", small, path)


@quantized("quant-mlp-dynamic")
def quant_mlp_dynamic(small: bool, path: Path) -> None:
    quantize_dynamic("mlp-ts", small, path)


@quantized("quant-bert-dynamic")
def quant_bert_dynamic(small: bool, path: Path) -> None:
    quantize_dynamic("bert-eager-ts", small, path)


@quantized("quant-bert-qdq")
def quant_bert_qdq(small: bool, path: Path) -> None:
    quantize_static("bert-eager-ts", bert(True, "eager").inputs, "QDQ", small, path)


@quantized("quant-mlp-int4-qdq")
def quant_mlp_int4_qdq(small: bool, path: Path) -> None:
    quantize_nbits("mlp-ts", "QDQ", small, path)


@quantized("quant-llama-int4-qdq")
def quant_llama_int4_qdq(small: bool, path: Path) -> None:
    quantize_nbits("llama-eager-dynamo", "QDQ", small, path)


@quantized("quant-llama-int4-qoperator")
def quant_llama_int4_qoperator(small: bool, path: Path) -> None:
    quantize_nbits("llama-eager-dynamo", "QOperator", small, path)


# --- building -------------------------------------------------------------------------------------------------------


def randomize(module: nn.Module) -> None:
    """Weights of unit gain; biases, scales and statistics that no rewrite may lose without its being seen."""
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim > 1:
                p.normal_(0, 1 / math.sqrt(p[0].numel()))
            else:
                p.add_(0.1 * torch.randn_like(p))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


def export(sample: Sample, exporter: str, path: Path) -> None:
    feeds = tuple(i.sample(TRACED) for i in sample.inputs)
    names = [i.name for i in sample.inputs]
    free = [i.free() for i in sample.inputs]
    settings: dict[str, Any] = dict(EXPORTERS[exporter])
    if settings["dynamo"]:
        varargs = isinstance(sample.module, Call)
        settings |= {"dynamic_shapes": (tuple(free),) if varargs else tuple(free), "verbose": False}
    else:
        settings["dynamic_axes"] = dict(zip(names, free, strict=True))
        settings["dynamic_axes"] |= {n: {0: "batch"} for n in sample.outputs}
    big = sum(p.numel() for p in sample.module.parameters()) * 4 > 1 << 30
    torch.onnx.export(
        sample.module, feeds, path, input_names=names, output_names=sample.outputs, external_data=big, **settings
    )


def record(path: Path, inputs: list[Input]) -> None:
    """Feeds, and what onnxruntime answers with its optimizer off."""
    import onnxruntime

    torch.manual_seed(SEED)
    feeds = {i.name: i.sample(CHECKED).numpy() for i in inputs}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    outputs = session.run(names, {i.name: feeds[i.name] for i in session.get_inputs()})
    for name, value in zip(names, outputs, strict=True):
        if not np.isfinite(value).all():
            raise ValueError(f"{path.name}: {name} is not finite")
    arrays = {f"in:{k}": v for k, v in feeds.items()} | {f"out:{k}": v for k, v in zip(names, outputs, strict=True)}
    np.savez_compressed(path.with_suffix(".npz"), **{k.replace("/", "|"): v for k, v in arrays.items()})


def build(recipe: Recipe, attention: str, exporter: str, small: bool, path: Path) -> None:
    torch.manual_seed(SEED)
    sample = recipe.build(small, attention)
    sample.module.eval()
    randomize(sample.module)
    with torch.no_grad():
        export(sample, exporter, path)
    record(path, sample.inputs)


def build_quantized(make: Callable[[bool, Path], None], small: bool, path: Path) -> None:
    make(small, path)
    base = next(path.parent / f"{name}.npz" for name in BASES if name in dict(plan(small, path.parent)) and make in BASES[name])
    stored = np.load(base)
    feeds = {k[3:]: stored[k] for k in stored if k.startswith("in:")}
    record(path, [Given(k, v.shape, value=v) for k, v in feeds.items()])


def plan(small: bool, out: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every model's name and the call that builds it: both exporters of the usual attention first."""
    table = {**TRANSFORMERS, **CONVNETS}
    pairs = [(name, a, e) for name, r in table.items() for a in r.attentions for e in r.exporters[a]]
    for name, attention, exporter in sorted(pairs, key=lambda p: (p[1] == "sdpa", p[2] in ("ts14", "dynamo23"))):
        full = "-".join(filter(None, (name, attention, exporter)))
        yield full, partial(build, table[name], attention, exporter, small, out / f"{full}.onnx")
    for name, make in QUANTIZED.items():
        yield name, partial(build_quantized, make, small, out / f"{name}.onnx")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("zoo"))
    parser.add_argument("--only", nargs="+", default=[""], help="build the models whose name holds one of these")
    parser.add_argument("--small", action="store_true", help="the same layers, narrow")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    failures = 0
    for name, make in plan(args.small, args.out):
        if not any(part in name for part in args.only):
            continue
        path = args.out / f"{name}.onnx"
        if args.list or (path.exists() and path.with_suffix(".npz").exists()):
            print(name)
            continue
        start = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                make()
        except Exception as error:
            failures += 1
            path.unlink(missing_ok=True)
            traceback.print_exc(limit=-3)
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        else:
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB, {time.perf_counter() - start:.0f} s", flush=True)
        gc.collect()
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
