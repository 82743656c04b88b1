"""What the zoo's models are made of: a module, its inputs, and the exporters that write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Feeds = dict[str, "np.ndarray[Any, Any]"]


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
    """How a model is built, given whether it is small and its attention, and which exporters write each attention."""

    build: Callable[[bool, str], Sample]
    variants: dict[str, tuple[str, ...]]
