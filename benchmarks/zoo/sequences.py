"""Convolutional nets over sequences of any length: a vocoder (1-D) and a text recognizer (2-D)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from benchmarks.zoo.samples import Input, Sample

SLOPE = 0.1
DILATIONS = (1, 3, 5)


def scaled(module: nn.Module) -> nn.Module:
    """Weights with which LeakyReLU keeps the size of activations."""
    for layer in module.modules():
        if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
            nn.init.kaiming_normal_(layer.weight, a=SLOPE)
        elif isinstance(layer, nn.ConvTranspose1d):
            nn.init.normal_(layer.weight, std=(2 * layer.stride[0] / layer.weight[:, 0].numel()) ** 0.5)
    return module


class DilatedBlock(nn.Module):
    """x + conv(conv(x)), once for each dilation."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()

        def conv(dilation: int) -> nn.Module:
            return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=dilation * (kernel // 2))

        self.first = nn.ModuleList(conv(dilation) for dilation in DILATIONS)
        self.second = nn.ModuleList(conv(1) for _ in DILATIONS)

    def forward(self, x: Tensor) -> Tensor:
        for first, second in zip(self.first, self.second, strict=True):
            x = (x + second(leaky_relu(first(leaky_relu(x, SLOPE)), SLOPE))) / 2
        return x


class Vocoder(nn.Module):
    """HiFi-GAN's generator: each stage lengthens the sequence and averages blocks of three window sizes."""

    def __init__(self, width: int, rates: tuple[int, ...]) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.stages, self.blocks = nn.ModuleList(), nn.ModuleList()
        for rate in rates:
            self.stages.append(nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, padding=rate // 2))
            width //= 2
            self.blocks.append(nn.ModuleList(DilatedBlock(width, kernel) for kernel in (3, 7, 11)))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.first(mel)
        for stage, blocks in zip(self.stages, self.blocks, strict=True):
            x = stage(leaky_relu(x, SLOPE))
            x = sum(block(x) for block in blocks) / len(blocks)
        return self.last(leaky_relu(x, SLOPE)).tanh()


def vocoder(small: bool) -> Sample:
    module = scaled(Vocoder(32 if small else 128, (8, 8, 2, 2)))
    return Sample(module, [Input("mel", ("batch", 80, "sequence"))], ["audio"])


def recognizer(small: bool) -> Sample:
    """Lines of text, 32 pixels high: classes of characters for every four columns."""
    widths = (8, 16, 32, 32) if small else (64, 128, 256, 512)
    layers: list[nn.Module] = []
    fan_in = 1
    for fan_out, pooled in zip(widths, ((2, 2), (2, 2), (2, 1), (2, 1)), strict=True):
        for channels in (fan_in, fan_out):
            layers += [nn.Conv2d(channels, fan_out, 3, padding=1), nn.LeakyReLU(SLOPE)]
        layers.append(nn.MaxPool2d(pooled))
        fan_in = fan_out
    layers += [nn.Conv2d(fan_in, fan_in, (2, 1)), nn.LeakyReLU(SLOPE), nn.Conv2d(fan_in, 200, 1), nn.Softmax(1)]
    return Sample(scaled(nn.Sequential(*layers)), [Input("image", ("batch", 1, 32, "sequence"))], ["classes"])
