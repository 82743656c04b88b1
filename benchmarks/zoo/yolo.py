"""Detectors: boxes and scores from several scales of an image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.zoo.convnets import Residual, conv_norm, convnet, of_image
from benchmarks.zoo.samples import Sample

BINS = 16
"""A side's distance is a mean over so many bins."""


def conv_silu(fan_in: int, fan_out: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(*conv_norm(fan_in, fan_out, kernel, stride), nn.SiLU())


class Split(nn.Module):
    """YOLO's C2f: half the channels pass a chain of convolutions, and every step is kept."""

    def __init__(self, fan_in: int, fan_out: int, steps: int = 2, residual: bool = True) -> None:
        super().__init__()
        half = fan_out // 2
        self.first, self.last = conv_silu(fan_in, fan_out, 1), conv_silu((2 + steps) * half, fan_out, 1)
        self.chain = nn.ModuleList(chained(half, residual) for _ in range(steps))

    def forward(self, x: Tensor) -> Tensor:
        kept = list(self.first(x).chunk(2, 1))
        for step in self.chain:
            kept.append(step(kept[-1]))
        return self.last(torch.cat(kept, 1))


def chained(width: int, residual: bool) -> nn.Module:
    pair = [conv_silu(width, width), conv_silu(width, width)]
    return Residual(pair, [], nn.Identity()) if residual else nn.Sequential(*pair)


class Pyramid(nn.Module):
    """YOLO's SPPF: an image beside itself, pooled once, twice and three times."""

    def __init__(self, fan_in: int, width: int, fan_out: int) -> None:
        super().__init__()
        self.before, self.pool = conv_silu(fan_in, width, 1), nn.MaxPool2d(5, 1, 2)
        self.after = conv_silu(4 * width, fan_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.before(x)]
        for _ in range(3):
            kept.append(self.pool(kept[-1]))
        return self.after(torch.cat(kept, 1))


class Boxes(nn.Module):
    """Distances from each point to the four sides of its box, told as bins, to boxes; and its scores."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.expect = nn.Conv2d(BINS, 1, 1, bias=False)

    def forward(self, raw: Tensor, points: Tensor, stride: Tensor | int) -> Tensor:
        batch, _, count = raw.shape
        bins, scores = raw.split((4 * BINS, self.classes), 1)
        sides = self.expect(bins.view(batch, 4, BINS, count).transpose(2, 1).softmax(1)).view(batch, 4, -1)
        near, far = sides.chunk(2, 1)
        low, top = points - near, points + far
        return torch.cat((torch.cat(((low + top) / 2, top - low), 1) * stride, scores.sigmoid()), 1)


def points_of(raw: Tensor) -> Tensor:
    """The middles of an image's pixels: (1, 2, pixels)."""
    high, wide = raw.shape[2:]
    y, x = torch.meshgrid(torch.arange(high) + 0.5, torch.arange(wide) + 0.5, indexing="ij")
    return torch.stack((x, y)).view(1, 2, -1)


class Yolo(nn.Module):
    """A focus stem (slices to depth), and two scales joined by upsampling."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = conv_silu(12, width)
        self.down = nn.Sequential(conv_silu(width, 2 * width, stride=2), Split(2 * width, 2 * width))
        self.deep = nn.Sequential(conv_silu(2 * width, 4 * width, stride=2), Split(4 * width, 4 * width))
        self.pyramid = Pyramid(4 * width, 2 * width, 4 * width)
        self.up = nn.Upsample(scale_factor=2.0, mode="nearest")
        self.join = conv_silu(6 * width, 2 * width, 1)
        self.heads = nn.ModuleList(
            nn.Sequential(conv_silu(fan_in, fan_in), nn.Conv2d(fan_in, classes + 4 * BINS, 1))
            for fan_in in (2 * width, 4 * width)
        )
        self.boxes = Boxes(classes)

    def forward(self, x: Tensor) -> Tensor:
        corners = (x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2])
        fine = self.down(self.stem(torch.cat(corners, 1)))
        coarse = self.pyramid(self.deep(fine))
        fine = self.join(torch.cat((self.up(coarse), fine), 1))
        raws = [head(scale) for head, scale in zip(self.heads, (fine, coarse), strict=True)]
        found = [self.boxes(raw.flatten(2), points_of(raw), stride) for raw, stride in zip(raws, (4, 8), strict=True)]
        return torch.cat(found, 2)


class YoloV8(nn.Module):
    """Five scales down, two up and two down again; boxes and scores of the last three, each by a head of its own."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        w = [width << i for i in range(5)]
        self.stem = nn.Sequential(conv_silu(3, w[0], 3, 2), conv_silu(w[0], w[1], 3, 2), Split(w[1], w[1], 1))
        self.fine = nn.Sequential(conv_silu(w[1], w[2], 3, 2), Split(w[2], w[2], 2))
        self.middle = nn.Sequential(conv_silu(w[2], w[3], 3, 2), Split(w[3], w[3], 2))
        self.coarse = nn.Sequential(
            conv_silu(w[3], w[4], 3, 2), Split(w[4], w[4], 1), Pyramid(w[4], w[3], w[4])
        )  # fmt: skip
        self.up = nn.Upsample(scale_factor=2.0, mode="nearest")
        self.up_middle, self.up_fine = Split(w[4] + w[3], w[3], 1, False), Split(w[3] + w[2], w[2], 1, False)
        self.down_fine, self.down_middle = conv_silu(w[2], w[2], 3, 2), conv_silu(w[3], w[3], 3, 2)
        self.to_middle, self.to_coarse = Split(w[3] + w[2], w[3], 1, False), Split(w[4] + w[3], w[4], 1, False)
        self.sides = nn.ModuleList(head(fan_in, 4 * BINS, 4 * BINS) for fan_in in w[2:])
        self.scores = nn.ModuleList(head(fan_in, max(w[2], classes), classes) for fan_in in w[2:])
        self.boxes = Boxes(classes)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(self.stem(x))
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        middle = self.up_middle(torch.cat((self.up(coarse), middle), 1))
        fine = self.up_fine(torch.cat((self.up(middle), fine), 1))
        middle = self.to_middle(torch.cat((self.down_fine(fine), middle), 1))
        coarse = self.to_coarse(torch.cat((self.down_middle(middle), coarse), 1))
        scales = zip((fine, middle, coarse), self.sides, self.scores, strict=True)
        raws = [torch.cat((sides(scale), scores(scale)), 1) for scale, sides, scores in scales]
        strides = [torch.full((int(raw.shape[2] * raw.shape[3]),), s) for raw, s in zip(raws, (8, 16, 32), strict=True)]
        points = torch.cat([points_of(raw) for raw in raws], 2)
        return self.boxes(torch.cat([raw.flatten(2) for raw in raws], 2), points, torch.cat(strides))


def head(fan_in: int, width: int, fan_out: int) -> nn.Sequential:
    return nn.Sequential(conv_silu(fan_in, width), conv_silu(width, width), nn.Conv2d(width, fan_out, 1))


@convnet("yolo")
def yolo(small: bool) -> Sample:
    width, side = (8, 64) if small else (32, 320)
    return of_image([Yolo(width, 10)], side, "boxes")


@convnet("yolov8n", exporters=())
def yolov8n(small: bool) -> Sample:
    width, classes, side = (8, 10, 64) if small else (16, 80, 640)
    return of_image([YoloV8(width, classes)], side, "boxes")
