"""The convolutions of ResNet-50 on one thread: time, and the share of what the machine can do.

    python benchmarks/conv.py [--rounds N] [--layers NAME ...] [--ort] [--json FILE]

Each layer has bias and Relu. Contestants: our kernels on vectors, for images that lie plane by plane and pixel by
pixel, and on tiles, where the chip has them, by precision,
from an image in terms to an image in terms, as inside a network; beside it what splitting the image alone takes, which
layers at the edge of a network add. A figure is the best of all rounds, in time of the thread. Shares are of a loop of
tile products in registers (of multiply-adds, for vectors) that does the products which the layer needs: 1, 3 or 6 for
each of the convolution's. The last line sums the layers, each as often as the network has it.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from burst import burst_s, onnxruntime_call

from sardonyx.dtypes import bf16, f32
from sardonyx.ir.scalar import Emitter, Expr, trace
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Apply, Convolution, Expression, Storage, View, Window
from sardonyx.lower.views import dense, permuted
from sardonyx.providers.cpu.codegen import machine_limits
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.kernels.common.window import WindowGeometry
from sardonyx.providers.cpu.kernels.conv import direct, nhwc
from sardonyx.providers.cpu.kernels.conv import on_tiles as conv_on_tiles
from sardonyx.providers.cpu.kernels.conv.packed_image import PackedImageLayout
from sardonyx.providers.cpu.kernels.gemm.amx import TERMS
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import PRODUCTS
from sardonyx.providers.cpu.layout.packed_images import Image
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.constants import content
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step, Target

Array = np.ndarray[Any, Any]
PRECISIONS = ("highest", "high", "medium")


@dataclass(frozen=True)
class Layer:
    """Channels, size of the image, filters, size of the kernel, stride; and how often the network has it."""

    channels: int
    size: int
    filters: int
    kernel: int
    stride: int
    times: int

    @property
    def name(self) -> str:
        return f"{self.channels}x{self.size}-{self.filters}k{self.kernel}s{self.stride}"

    @property
    def out(self) -> int:
        return -(-self.size // self.stride)

    @property
    def flops(self) -> float:
        return 2.0 * self.channels * self.kernel**2 * self.filters * self.out**2


RESNET = [
    Layer(3, 224, 64, 7, 2, 1),
    Layer(64, 56, 64, 1, 1, 1), Layer(64, 56, 64, 3, 1, 3), Layer(64, 56, 256, 1, 1, 4), Layer(256, 56, 64, 1, 1, 2),
    Layer(256, 56, 128, 1, 1, 1), Layer(128, 56, 128, 3, 2, 1), Layer(256, 56, 512, 1, 2, 1),
    Layer(128, 28, 128, 3, 1, 3), Layer(128, 28, 512, 1, 1, 4), Layer(512, 28, 128, 1, 1, 3),
    Layer(512, 28, 256, 1, 1, 1), Layer(256, 28, 256, 3, 2, 1), Layer(512, 28, 1024, 1, 2, 1),
    Layer(256, 14, 256, 3, 1, 5), Layer(256, 14, 1024, 1, 1, 6), Layer(1024, 14, 256, 1, 1, 5),
    Layer(1024, 14, 512, 1, 1, 1), Layer(512, 14, 512, 3, 2, 1), Layer(1024, 14, 2048, 1, 2, 1),
    Layer(512, 7, 512, 3, 1, 2), Layer(512, 7, 2048, 1, 1, 3), Layer(2048, 7, 512, 1, 1, 2),
]  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--layers", nargs="+", metavar="NAME", help="by name, as printed")
    parser.add_argument("--ort", action="store_true", help="run onnxruntime too")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def bias_and_relu(e: Emitter, x: Expr, bias: Expr) -> Expr:
    return e.maximum(x + bias, 0)


def _image(storage: Storage, channels: int, size: int, by_pixel: bool) -> View:
    if by_pixel:
        return permuted(dense(storage, (1, size, size, channels)), (0, 3, 1, 2))
    return dense(storage, (1, channels, size, size))


class Ours:
    """A layer as our compiler would run it inside a network."""

    def __init__(self, layer: Layer, precision: str, *, on_tiles: bool = False, by_pixel: bool = False) -> None:
        rng = np.random.default_rng(0)
        c, f, n = layer.channels, layer.filters, layer.kernel
        weights = (rng.standard_normal((f, c, n, n)) / (c * n * n) ** 0.5).astype(np.float32)
        x, w, b, y = (
            Storage("input", f32, c * layer.size**2),
            Storage("constant", f32, weights.size, tensor=Tensor.of(weights)),
            Storage("constant", f32, f, tensor=Tensor.of(rng.standard_normal(f).astype(np.float32))),
            Storage("temporary", f32, f * layer.out**2),
        )
        self._arrays: dict[int, Array] = {x.number: rng.standard_normal(int(x.elements)).astype(np.float32)}
        box = (1, f, layer.out, layer.out)
        epilogue = Expression((f32, f32), (Apply(trace(bias_and_relu, (True, True)), (0, 1), f32),), (2,))
        window = Window((n, n), (layer.stride,) * 2, (1, 1), ((n - 1) // 2,) * 2)
        image, result = _image(x, c, layer.size, by_pixel), _image(y, f, layer.out, by_pixel)
        bias = View(b, box, (0, 1, 0, 0))
        group = Convolution((), epilogue, (bias,), (result,), image, dense(w, weights.shape), window, 1)
        chip = isa.current()
        if not on_tiles:
            steps = nhwc.steps if by_pixel else direct.vector_steps
            self.steps = steps(group, Target(chip, precision))
            self.before: list[Launch] = []
        else:
            terms = TERMS[precision]
            after = PackedImageLayout(terms, 1, f, (1, layer.out, layer.out), (0, 1, 1), (0, 1, 1))
            images = {y: Image(after, Storage("temporary", bf16, after.elements), False)}
            first = conv_on_tiles.steps(group, terms, Target(chip, precision, images=images))
            self.before = [self._launch(step) for step in first[:-1]]
            found = conv_on_tiles.geometry(group, WindowGeometry.of(group, collapse=False), terms).layout
            images[x] = Image(found, Storage("temporary", bf16, found.elements), False)
            self.steps = conv_on_tiles.steps(group, terms, Target(chip, precision, images=images))
        self._launches = [self._launch(step) for step in self.steps]

    def _launch(self, step: Step) -> Launch:
        given = {name: self._array(v) if isinstance(v, Ref) else v for name, v in step.args.items()}
        return Launch(step.spec, given, scratch_nbytes=int(step.scratch_nbytes), checked=False)

    def _array(self, ref: Ref) -> Array:
        storage = ref.storage
        if storage.number not in self._arrays:
            if isinstance(storage, Packed) or storage.tensor is not None:
                self._arrays[storage.number] = content(storage)
            else:
                self._arrays[storage.number] = np.zeros(int(storage.elements), storage.dtype.numpy)
        return self._arrays[storage.number].reshape(-1)[int(ref.offset) :]

    def __call__(self) -> None:
        for launch in self._launches:
            launch()

    def split(self) -> None:
        for launch in self.before:
            launch()


def onnxruntime_conv(layer: Layer) -> Callable[[], Any]:
    from onnx import helper

    rng, pad = np.random.default_rng(0), (layer.kernel - 1) // 2
    w = rng.standard_normal((layer.filters, layer.channels, layer.kernel, layer.kernel)).astype(np.float32)
    x = rng.standard_normal((1, layer.channels, layer.size, layer.size)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], strides=[layer.stride] * 2, pads=[pad] * 4),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    return onnxruntime_call(nodes, x, {"w": w, "b": w[:, 0, 0, 0].copy()})


def measure(layer: Layer, rounds: int, with_ort: bool) -> dict[str, float]:
    """Seconds by contestant."""
    runs: dict[str, Callable[[], Any]] = {"planes": Ours(layer, "highest")}
    runs["pixels"] = Ours(layer, "highest", by_pixel=True)
    for precision in PRECISIONS if isa.current().amx else ():
        ours = Ours(layer, precision, on_tiles=True)
        runs[precision] = ours
        runs[f"{precision}, splitting"] = ours.split
        ours.split()
    if with_ort:
        runs["onnxruntime"] = onnxruntime_conv(layer)
    for run in runs.values():
        run()
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], burst_s(run))
    return best


def limit_s(layer: Layer, name: str, peaks: dict[str, float]) -> float | None:
    if name in ("planes", "pixels"):
        return layer.flops / peaks["vectors"]
    if name in PRECISIONS:
        return layer.flops * len(PRODUCTS[TERMS[name]]) / peaks["tiles"]
    return None


def main() -> None:
    args = parse()
    peaks = {"vectors": machine_limits.peak_flops(f32), "tiles": machine_limits.peak_tile_flops() or 0.0}
    print(
        f"{platform.machine()} {isa.current().cpu}, one thread; "
        + ", ".join(f"{n} {p / 1e9:.0f} GFLOP/s" for n, p in peaks.items())
    )
    total: dict[str, list[float]] = {}
    results = {}
    for layer in RESNET:
        if args.layers and layer.name not in args.layers:
            continue
        found = results[layer.name] = measure(layer, args.rounds, args.ort)
        cells = []
        for name, seconds in found.items():
            least = limit_s(layer, name, peaks)
            sums = total.setdefault(name, [0.0, 0.0])
            sums[0] += layer.times * seconds
            sums[1] += layer.times * (least or 0.0)
            cells.append(f"{name} {seconds * 1e6:.0f} us" + (f" {least / seconds:.0%}" if least else ""))
        print(f"{layer.name:20s} x{layer.times}  " + "; ".join(cells), flush=True)
    cells = [f"{n} {s * 1e3:.2f} ms" + (f" {least / s:.0%}" if least else "") for n, (s, least) in total.items()]
    print(f"{'all':20s}     " + "; ".join(cells))
    if args.json:
        args.json.write_text(json.dumps({"cpu": isa.current().cpu, "peaks": peaks, "seconds": results}, indent=1))


if __name__ == "__main__":
    main()
