"""A trained model with what is needed to quantize and to judge it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Task:
    """``score(session)`` is in points: percent right, or a rank correlation times 100."""

    name: str
    measure: str
    model: Path
    calibration: Sequence[Feeds]
    score: Callable[[Any], float]


class Readings:
    """Calibration data as onnxruntime's API asks for it."""

    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self._rest: Iterator[Feeds] = iter(feeds)
        self._count = len(feeds)

    def get_next(self) -> Feeds | None:
        return next(self._rest, None)

    def __iter__(self) -> Iterator[Feeds]:
        return self

    def __next__(self) -> Feeds:
        return next(self._rest)

    def __len__(self) -> int:
        return self._count


def batches(array: np.ndarray, size: int) -> list[np.ndarray]:
    return [array[i : i + size] for i in range(0, len(array), size)]


def export(
    net: Any, example: tuple[Any, ...], path: Path, inputs: list[str], dynamic: dict[str, dict[int, str]]
) -> None:
    """Write a torch net as ONNX with one output ``y``, and prepare it for quantization as onnxruntime recommends."""
    import torch
    from onnxruntime.quantization.shape_inference import quant_pre_process

    net.eval()
    part = path.with_suffix(".part.onnx")
    torch.onnx.export(
        net,
        example,
        part,
        input_names=inputs,
        output_names=["y"],
        dynamic_axes={**dynamic, "y": {0: "n"}},
        opset_version=17,
        dynamo=False,
    )
    quant_pre_process(str(part), str(path), skip_symbolic_shape=True)
    part.unlink()


def train(net: Any, batches_of: Callable[[int], Any], epochs: int, rate: float) -> None:
    """Adam with a one-cycle rate and cross entropy; ``batches_of(epoch)`` gives pairs of operands and classes."""
    import torch

    steps = len(batches_of(0))
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps * epochs)
    net.train()
    for epoch in range(epochs):
        for operand, classes in batches_of(epoch):
            loss = torch.nn.functional.cross_entropy(net(operand), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
