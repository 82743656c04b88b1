"""Nets that are timed and not judged by their node counts: a small BERT, a perceptron, an LSTM tagger and others."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from benchmarks.zoo.samples import Input, Sample
from benchmarks.zoo.sequences import recognizer, vocoder
from benchmarks.zoo.transformers import IDS, called, text


def minilm(small: bool) -> Sample:
    """BERT in the sizes of all-MiniLM-L6-v2."""
    from transformers import BertConfig, BertModel

    width = 48 if small else 384
    config = BertConfig(
        attn_implementation="eager",
        num_hidden_layers=6,
        hidden_size=width,
        num_attention_heads=12,
        intermediate_size=4 * width,
        vocab_size=500 if small else 30522,
    )
    inputs = text(config.vocab_size, Input("token_type_ids", IDS, limit=2))
    return called(BertModel(config), inputs, ["last_hidden_state"])


def mlp(small: bool) -> Sample:
    width = 64 if small else 1024
    layers = (nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    return Sample(nn.Sequential(*layers), [Input("x", ("batch", 784))], ["logits"])


class Tagger(nn.Module):
    """A label for each word: embedding, a layer of LSTM in both directions, and a linear one."""

    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 100)
        self.lstm = nn.LSTM(100, hidden, bidirectional=True, batch_first=True)
        self.linear = nn.Linear(2 * hidden, 20)

    def forward(self, ids: Tensor) -> Tensor:
        return self.linear(self.lstm(self.embedding(ids))[0])


def tagger(small: bool) -> Sample:
    words, hidden = (500, 32) if small else (20000, 256)
    return Sample(Tagger(words, hidden), [Input("ids", IDS, limit=words)], ["logits"])


ONLY_TIMED: dict[str, Callable[[bool], Sample]] = {
    "minilm": minilm,
    "mlp": mlp,
    "tagger": tagger,
    "vocoder": vocoder,
    "recognizer": recognizer,
}
