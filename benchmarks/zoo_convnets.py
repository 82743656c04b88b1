"""Convolutional nets of the zoo, and a small perceptron; `small` narrows them and keeps their layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from zoo_samples import Input, Recipe, Sample

CONVNETS: dict[str, Recipe] = {}


def convnet(name: str) -> Callable[[Any], Any]:
    def register(build: Callable[[bool], Sample]) -> Callable[[bool], Sample]:
        CONVNETS[name] = Recipe(lambda small, _: build(small), {"": ("ts", "dynamo", "tsraw")})
        return build

    return register


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
    return Sample(
        nn.Sequential(*layers, *pooled(fan_in, classes)), [Input("image", ("batch", 3, side, side))], ["logits"]
    )


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
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, width // 4, 1),
            nn.ReLU(),
            nn.Conv2d(width // 4, width, 1),
            nn.Hardsigmoid(),
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
    """A focus stem (slices to depth), two scales joined by upsampling, a pooled pyramid, boxes as means over bins."""

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
            nn.Sequential(conv_silu(fan_in, fan_in), nn.Conv2d(fan_in, classes + 4 * bins, 1))
            for fan_in in (2 * width, 4 * width)
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
        super().__init__(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 10)
        )


@convnet("mlp")
def mlp(small: bool) -> Sample:
    width = 64 if small else 512
    return Sample(Mlp(width), [Input("x", ("batch", "sequence", width))], ["y"])
