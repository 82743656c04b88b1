"""Transformers of the zoo, from transformers' own configurations; `small` narrows them and keeps their layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.samples import Input, Recipe, Sample

TRANSFORMERS: dict[str, Recipe] = {}
IDS = ("batch", "sequence")


def transformer(
    name: str, eager: tuple[str, ...] = ("ts", "ts14", "dynamo"), sdpa: tuple[str, ...] = ("ts", "dynamo")
) -> Callable[[Any], Any]:
    def register(build: Callable[[bool, str], Sample]) -> Callable[[bool, str], Sample]:
        TRANSFORMERS[name] = Recipe(build, {"eager": eager, "sdpa": sdpa})
        return build

    return register


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
        return (
            *(getattr(out, name) for name in self.results),
            *(t for layer in present for t in (layer.keys, layer.values)),
        )


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


@transformer("bert", sdpa=("ts", "dynamo", "dynamo23"))
def bert(small: bool, attention: str) -> Sample:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 500}
    config = BertConfig(attn_implementation=attention, **(sizes if small else {}))
    inputs = text(config.vocab_size, Input("token_type_ids", IDS, limit=2))
    return called(BertModel(config), inputs, ["last_hidden_state", "pooler_output"])


@transformer("bert-classic", eager=("ts14", "ts", "dynamo"), sdpa=())
def bert_classic(small: bool, attention: str) -> Sample:
    """BERT with the mask as transformers wrote it before version 5: (1 - mask) times the lowest float, added."""
    sample = bert(small, attention)

    class Masked(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, attention_mask: Tensor, **given: Any) -> Any:
            mask = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
            return self.model(attention_mask=mask, **given)

    sample.module.model = Masked(sample.module.model)
    return sample


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


@transformer("vit", sdpa=("ts", "dynamo", "dynamo23"))
def vit(small: bool, attention: str) -> Sample:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "image_size": 48}
    config = ViTConfig(attn_implementation=attention, num_labels=1000, **(sizes if small else {}))
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

        def forward(self, ids: Tensor, mask: Tensor, encoded: Tensor) -> Tensor:
            out = self.decoder(input_ids=ids, attention_mask=mask, encoder_hidden_states=encoded, use_cache=False)
            return self.head(out.last_hidden_state)

    inputs = [
        Input("decoder_input_ids", IDS, limit=config.vocab_size),
        Input("decoder_attention_mask", IDS, mask=True),
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


@transformer("llama")
def llama(small: bool, attention: str) -> Sample:
    model = grouped("Llama", small, attention)
    return called(model, text(model.config.vocab_size), ["logits"], use_cache=False)


@transformer("llama-past", sdpa=("ts", "dynamo", "dynamo23"))
def llama_past(small: bool, attention: str) -> Sample:
    model = grouped("Llama", small, attention)
    config = model.config
    return cached(
        model, config.vocab_size, config.num_hidden_layers, config.num_key_value_heads, config.hidden_size // 4
    )


@transformer("qwen2")
def qwen2(small: bool, attention: str) -> Sample:
    """Like Llama, with biases on queries, keys and values."""
    model = grouped("Qwen2", small, attention)
    return called(model, text(model.config.vocab_size), ["logits"], use_cache=False)
