"""Convolutional nets, and a small perceptron; `small` narrows them and keeps their layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from benchmarks.zoo.samples import Input, Recipe, Sample

CONVNETS: dict[str, Recipe] = {}


def convnet(name: str, exporters: tuple[str, ...] = ("ts", "dynamo", "tsraw")) -> Callable[[Any], Any]:
    """Name a net. Those that no exporter of the zoo writes are only timed (zoo/timed.py)."""

    def register(build: Callable[[bool], Sample]) -> Callable[[bool], Sample]:
        CONVNETS[name] = Recipe(lambda small, _: build(small), {"": exporters})
        return build

    return register


def conv_norm(fan_in: int, fan_out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(fan_in, fan_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(fan_out)]


def of_image(layers: list[nn.Module], side: int, output: str = "logits") -> Sample:
    """The layers, one after the other, on square images."""
    return Sample(nn.Sequential(*layers), [Input("image", ("batch", 3, side, side))], [output])


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
    return of_image([*layers, *pooled(fan_in, classes)], side)


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
    return of_image(layers, side)


class SqueezeExcite(nn.Module):
    """Channels weighed by a gate of their means."""

    def __init__(self, width: int, squeezed: int, activation: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        narrow, wide = nn.Conv2d(width, squeezed, 1), nn.Conv2d(squeezed, width, 1)
        self.weigh = nn.Sequential(nn.AdaptiveAvgPool2d(1), narrow, activation(), wide, gate())

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
            SqueezeExcite(hidden, hidden // 4, nn.ReLU, nn.Hardsigmoid), *conv_norm(hidden, 2 * width, 1),
        ]  # fmt: skip
        width *= 2
    layers += [*pooled(width, 4 * width), nn.Hardswish(), nn.Linear(4 * width, classes)]
    return of_image(layers, side)


class Mlp(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 10)
        )


@convnet("mlp")
def mlp(small: bool) -> Sample:
    width = 64 if small else 512
    return Sample(Mlp(width), [Input("x", ("batch", "sequence", width))], ["y"])
