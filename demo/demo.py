"""The main job, end to end: load a trained model, see what runs where, read held-out digits, count, time.

`make demo` runs this. The model and the images come from train.py; the images were never trained on.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import sardonyx

HERE = Path(__file__).parent
MODEL = HERE / "digits.onnx"
INK = " .:-=+*#%@"
TURNS, WARM, RUNS, PAUSE_S = 10, 10, 40, 0.02


def heading(text: str) -> None:
    print(f"\n{text}\n{'─' * len(text)}")


def drawn(image: np.ndarray[Any, Any]) -> list[str]:
    """Eight lines of two characters a pixel, dark ink for high values (0 to 16)."""
    return ["".join(INK[value * (len(INK) - 1) // 16] * 2 for value in row) for row in image.tolist()]


def show(images: np.ndarray[Any, Any], captions: list[str]) -> None:
    """Pictures side by side with their captions below."""
    for line in zip(*(drawn(image) for image in images), strict=True):
        print("   ".join(line))
    print("   ".join(f"{caption:16}" for caption in captions))


def settle() -> None:
    """Pause until no thread is busy, or for a second: some wait for more with a core each, for 50 milliseconds."""
    for _ in range(round(1 / PAUSE_S)):
        start = time.process_time()
        time.sleep(PAUSE_S)
        if time.process_time() - start < PAUSE_S / 10:
            return


def interleaved(contestants: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Microseconds of each call, in turns, so that all see the same machine."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(TURNS):
        for name, call in contestants.items():
            settle()
            for run in range(WARM + RUNS):
                start = time.perf_counter_ns()
                call()
                if run >= WARM:
                    times[name].append((time.perf_counter_ns() - start) / 1e3)
    return times


def main() -> None:
    print(f"Sardonyx {sardonyx.__version__}")

    heading("Load")
    start = time.perf_counter()
    session = sardonyx.InferenceSession(str(MODEL))
    print(f"{MODEL.name}, {MODEL.stat().st_size / 1e3:.0f} kB, in {(time.perf_counter() - start) * 1e3:.0f} ms")
    for kind, args in (("in ", session.get_inputs()), ("out", session.get_outputs())):
        for arg in args:
            print(f"  {kind}  {arg.name:12} {arg.type:16} {arg.shape}")

    heading("Explain: who runs each node, and why")
    print(session.explain())

    heading("Predict: digits that were held out of training")
    with np.load(HERE / "heldout.npz") as file:
        images, labels = file["images"], file["labels"]
    found, probability = session.run(["label", "probability"], {"image": images})
    show(images[:5], [f"{n} ({p.max():.1%} sure)" for n, p in zip(found[:5], probability[:5], strict=True)])
    right = found == labels
    print(f"\naccuracy: {right.sum()} of {len(labels)}, {right.mean():.2%}")
    for i in np.flatnonzero(~right)[:3]:
        print(f"\nmistaken: read as {found[i]} ({probability[i, found[i]]:.1%} sure), labelled {labels[i]}")
        print("\n".join(drawn(images[i])))

    heading("Time: microseconds per run")
    engines: dict[str, Any] = {f"sardonyx {sardonyx.__version__}": session}
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        peer = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
        engines[f"onnxruntime {onnxruntime.__version__}"] = peer
        same = np.array_equal(peer.run(["label"], {"image": images})[0], found)
        print(f"the labels are {'the same as' if same else 'NOT those of'} onnxruntime's on all {len(images)} images")
    else:
        print("onnxruntime is not installed, so there is nothing to compare with: pip install onnxruntime")
    print(f"{'batch':>5}  {'engine':20}{'median':>9}{'10 %':>9}{'90 %':>9}")
    for batch in (1, 32):
        feed = {"image": images[:batch]}
        calls = {name: partial(engine.run, None, feed) for name, engine in engines.items()}
        for name, micros in interleaved(calls).items():
            deciles = statistics.quantiles(micros, n=10)
            print(f"{batch:5}  {name:20}{statistics.median(micros):9.0f}{deciles[0]:9.0f}{deciles[-1]:9.0f}")


if __name__ == "__main__":
    main()
