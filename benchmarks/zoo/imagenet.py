"""Classifiers of images that are timed and not judged by their node counts; sizes are the published ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.zoo.convnets import Residual, SqueezeExcite, conv_norm, convnet, of_image, pooled
from benchmarks.zoo.samples import Sample


@convnet("vgg16", exporters=())
def vgg16(small: bool) -> Sample:
    scale, side, classes = (8, 64, 100) if small else (1, 224, 1000)
    layers: list[nn.Module] = []
    fan_in = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(fan_in, width // scale, 3, padding=1), nn.ReLU()]
            fan_in = width // scale
        layers.append(nn.MaxPool2d(2))
    hidden, pixels = 4096 // scale, (side // 32) ** 2
    layers += [nn.Flatten(), nn.Linear(fan_in * pixels, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
    return of_image([*layers, nn.Linear(hidden, classes)], side)


@convnet("efficientnet-b0", exporters=())
def efficientnet_b0(small: bool) -> Sample:
    scale, side, classes = (4, 64, 100) if small else (1, 224, 1000)
    fan_in = 32 // scale
    layers = [*conv_norm(3, fan_in, 3, 2), nn.SiLU()]
    for expand, kernel, width, blocks, first in (
        (1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2), (6, 5, 112, 3, 1), (6, 5, 192, 4, 2),
        (6, 3, 320, 1, 1),
    ):  # fmt: skip
        for block in range(blocks):
            stride, fan_out, hidden = (1 if block else first), width // scale, fan_in * expand
            wide = [] if expand == 1 else [*conv_norm(fan_in, hidden, 1), nn.SiLU()]
            deep = [*conv_norm(hidden, hidden, kernel, stride, hidden), nn.SiLU()]
            weighed = [SqueezeExcite(hidden, max(1, fan_in // 4), nn.SiLU, nn.Sigmoid), *conv_norm(hidden, fan_out, 1)]
            whole = wide + deep + weighed
            layers += [Residual(whole, [], nn.Identity())] if stride == 1 and fan_in == fan_out else whole
            fan_in = fan_out
    last = 1280 // scale
    return of_image([*layers, *conv_norm(fan_in, last, 1), nn.SiLU(), *pooled(last, classes)], side)


class ShuffleUnit(nn.Module):
    """Half the channels pass (all of them, in a copy, where the image shrinks), and the halves are interleaved."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        half = fan_out // 2
        taken = fan_in if stride > 1 else half
        around = [*conv_norm(taken, taken, 3, stride, taken), *conv_norm(taken, half, 1), nn.ReLU()]
        self.kept = nn.Sequential(*around) if stride > 1 else None
        inner = [*conv_norm(taken, half, 1), nn.ReLU(), *conv_norm(half, half, 3, stride, half)]
        self.passed = nn.Sequential(*inner, *conv_norm(half, half, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        kept, passed = x.chunk(2, 1) if self.kept is None else (self.kept(x), x)
        both = torch.cat((kept, self.passed(passed)), 1)
        return both.view(len(both), 2, -1, *both.shape[2:]).transpose(1, 2).flatten(1, 2)


@convnet("shufflenetv2", exporters=())
def shufflenetv2(small: bool) -> Sample:
    scale, side, classes = (2, 64, 100) if small else (1, 224, 1000)
    fan_in, last = 24, 1024 // scale
    layers = [*conv_norm(3, fan_in, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for width, units in ((116, 4), (232, 8), (464, 4)):
        for unit in range(units):
            layers.append(ShuffleUnit(fan_in, width // scale, 1 if unit else 2))
            fan_in = width // scale
    return of_image([*layers, *conv_norm(fan_in, last, 1), nn.ReLU(), *pooled(last, classes)], side)


class Transposed(nn.Module):
    """Layers over the channels of an image, with those last."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by


def convnext_block(width: int) -> Residual:
    wide = [nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
    deep = nn.Conv2d(width, width, 7, padding=3, groups=width)
    return Residual([deep, Transposed(*wide, Scale(width))], [], nn.Identity())


@convnet("convnext-tiny", exporters=())
def convnext_tiny(small: bool) -> Sample:
    width, side, classes = (16, 64, 100) if small else (96, 224, 1000)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), Transposed(nn.LayerNorm(width, eps=1e-6))]
    for stage, blocks in enumerate((3, 3, 9, 3)):
        if stage:
            norm = Transposed(nn.LayerNorm(width, eps=1e-6))
            layers += [norm, nn.Conv2d(width, 2 * width, 2, 2)]
            width *= 2
        layers += [convnext_block(width) for _ in range(blocks)]
    flat = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)]
    return of_image([*layers, *flat], side)
