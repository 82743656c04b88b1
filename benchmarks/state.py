"""What does a decoder's step take with the cache handed on by the caller, and with it grown in place?

    python -m benchmarks.state GPT2-PAST.onnx [--past 64 1024] [--markdown FILE]

The model is `gpt2-past` of `python -m benchmarks.zoo timed`. Times are processor seconds of the best of a few steps of
one token, both ways in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import sardonyx
from benchmarks import page

STEPS = 8


def feeds(past: int) -> dict[str, Any]:
    mask = np.ones((1, past + 1), np.int64)
    return {"input_ids": np.full((1, 1), 7), "attention_mask": mask, "position_ids": np.full((1, 1), past)}


def best(ways: Sequence[Callable[[int], object]], past: int) -> list[float]:
    """Processor seconds of a step, each way; the first plans its shape."""
    taken: list[list[float]] = [[] for _ in ways]
    for i in range(STEPS):
        for way, seconds in zip(ways, taken, strict=True):
            start = time.process_time()
            way(past + i)
            seconds.append(time.process_time() - start)
    return [min(seconds[1:]) for seconds in taken]


def row(session: sardonyx.InferenceSession, past: int) -> str:
    rng = np.random.default_rng(0)
    inputs = [i for i in session.get_inputs() if i.name.startswith("past")]
    sizes = {i.name: (1, int(i.shape[1] or 0), past, int(i.shape[3] or 0)) for i in inputs}
    cache = {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}
    binding = session.io_binding()
    binding.bind_output("logits")
    for name, value in cache.items():
        binding.bind_state(name, name.replace("past_key_values", "present"), value, capacity=past + STEPS)

    def by_copying(length: int) -> None:
        results = session.run(None, {**feeds(length), **cache})
        cache.update(zip(sizes, results[1:], strict=True))

    def in_place(length: int) -> None:
        for name, value in feeds(length).items():
            binding.bind_cpu_input(name, value)
        session.run_with_iobinding(binding)

    copying_s, in_place_s = best((by_copying, in_place), past)
    return f"| {past} | {copying_s * 1e3:.2f} | {in_place_s * 1e3:.2f} | {copying_s / in_place_s:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--past", type=int, nargs="+", default=[64, 256, 1000])
    parser.add_argument("--markdown", type=Path, help="write the page there")
    given = parser.parse_args()
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = 1
    session = sardonyx.InferenceSession(str(given.model), options)
    lines = [
        page.head("A step of GPT-2: the cache copied, and grown in place", (), "1 thread"),
        "| past | copying ms | in place ms | ratio |",
        "| ---: | ---: | ---: | ---: |",
    ]
    print("\n".join(lines))
    for past in given.past:
        lines.append(row(session, past))
        print(lines[-1], flush=True)
    page.write(given.markdown, "\n".join(lines))


if __name__ == "__main__":
    main()
