"""A convolutional net on scikit-learn's handwritten digits: 1,797 images of 8 x 8, a third of them held out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.task import Task, batches, export, train

TRAINED_ON, EPOCHS, BATCH = 1200, 40, 64


def task(folder: Path) -> Task:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.images[order, None] / 16).astype(np.float32)
    labels = data.target[order]
    path = folder / "digits.onnx"
    if not path.exists():
        _train(images[:TRAINED_ON], labels[:TRAINED_ON], path)
    held_out, truth = images[TRAINED_ON:], labels[TRAINED_ON:]

    def score(session: Any) -> float:
        told = np.concatenate([session.run(None, {"x": part})[0] for part in batches(held_out, BATCH)])
        return 100 * float((told.argmax(axis=1) == truth).mean())

    calibration = [{"x": part} for part in batches(images[:256], 2)]
    return Task("digits, CNN", f"% of {len(truth)} images right", path, calibration, score)


def _train(images: np.ndarray, labels: np.ndarray, path: Path) -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)

    def block(ins: int, outs: int, group: int = 1, kernel: int = 3) -> list[nn.Module]:
        conv = nn.Conv2d(ins, outs, kernel, padding=kernel // 2, groups=group, bias=False)
        return [conv, nn.BatchNorm2d(outs), nn.ReLU()]

    net = nn.Sequential(
        *block(1, 32), *block(32, 32, group=32), *block(32, 64, kernel=1), nn.MaxPool2d(2),
        *block(64, 64, group=64), *block(64, 64, kernel=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    x, y = torch.from_numpy(images), torch.from_numpy(labels)

    def of_epoch(epoch: int) -> list[Any]:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        return [(x[part], y[part]) for part in order.split(BATCH)]

    train(net, of_epoch, EPOCHS, 1e-2)
    export(net, (x[:1],), path, ["x"], {"x": {0: "n"}})
