"""What a decoder's step moves beside its weights, with the cache handed on by the caller and with it grown in place.

    python -m benchmarks.state GPT2-PAST.onnx [--past 64 1024] [--markdown FILE]

The model is `gpt2-past` of `python -m benchmarks.zoo timed`. Bytes are those that the copies of a step read and write,
counted from the step table: the weights, which every step reads once, and attention's own reading of keys and values
are left out. Times are CPU seconds of the best of a few steps of one token.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sardonyx
from benchmarks import page

STEPS = 8
WORK = ("gemm", "gemm_amx", "attention", "attention_amx")


def feeds(past: int) -> dict[str, Any]:
    mask = np.ones((1, past + 1), np.int64)
    return {"input_ids": np.full((1, 1), 7), "attention_mask": mask, "position_ids": np.full((1, 1), past)}


def moved_nbytes(executable: Any) -> int:
    """By the last shape that was planned."""
    shape = next(reversed(executable._shapes.values()))
    steps = zip(executable.table.steps, shape.traffic, strict=True)
    return sum(int(nbytes) for step, nbytes in steps if step.spec.name not in WORK)


def best(step: Callable[[int], object], past: int) -> float:
    """CPU seconds of a step; the first plans its shape."""
    taken = []
    for i in range(STEPS):
        start = time.process_time()
        step(past + i)
        taken.append(time.process_time() - start)
    return min(taken[1:])


def row(session: sardonyx.InferenceSession, past: int) -> str:
    rng = np.random.default_rng(0)
    names = [i.name for i in session.get_inputs() if i.name.startswith("past")]
    cache = {n: rng.standard_normal((1, 12, past, 64)).astype("f") for n in names}
    binding = session.io_binding()
    binding.bind_output("logits")
    for name, value in cache.items():
        binding.bind_state(name, name.replace("past_key_values", "present"), value, capacity=past + STEPS)

    def by_copying(length: int) -> None:
        results = session.run(None, {**feeds(length), **cache})
        cache.update(zip(names, results[1:], strict=True))

    def in_place(length: int) -> None:
        for name, value in feeds(length).items():
            binding.bind_cpu_input(name, value)
        session.run_with_iobinding(binding)

    executable: Any = session._sess.engine.quick
    copying_s = best(by_copying, past)
    copied = moved_nbytes(executable)
    in_place_s = best(in_place, past)
    kept = moved_nbytes(next(reversed(executable._appending.values())))
    cells = f"{copied / 1e6:.1f} | {kept / 1e6:.1f} | {copying_s * 1e3:.1f} | {in_place_s * 1e3:.1f}"
    return f"| {past} | {cells} | {copying_s / in_place_s:.2f} |"


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
        "MB that the copies of a step read and write, and its CPU time.",
        "",
        "| past | copying: MB | in place: MB | copying: ms | in place: ms | ratio |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    print("\n".join(lines))
    for past in given.past:
        lines.append(row(session, past))
        print(lines[-1], flush=True)
    page.write(given.markdown, "\n".join(lines))


if __name__ == "__main__":
    main()
