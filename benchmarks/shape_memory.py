"""How much memory a session takes over many shapes, beside its largest shape alone: peaks of processes of their own.

    python benchmarks/shape_memory.py [--shapes 2000] [--nets transformer detector] [--threads 1] [--json FILE]

Shapes are random, of a fixed seed: batch 1 to 8 and length 1 to 256, or height and width 64 to 512; the largest of all
comes in the middle. Kernels have been compiled before, as after a first start. `beyond` is the peak less what the
process took when the session was made and had not run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("sardonyx", "onnxruntime")
LARGEST = {"transformer": (8, 256), "detector": (512, 512)}
LEAST = {"transformer": (1, 1), "detector": (64, 64)}


def shapes_of(net: str, count: int) -> list[tuple[int, ...]]:
    """The largest among random ones; of one, the largest alone."""
    rng = np.random.default_rng(7)
    found = [tuple(map(int, rng.integers(LEAST[net], LARGEST[net], endpoint=True))) for _ in range(count - 1)]
    return [*found[: count // 2], LARGEST[net], *found[count // 2 :]]


def feeds_of(net: str, shape: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(shape)
    if net == "detector":
        return {"image": rng.standard_normal((1, 3, *shape), np.float32)}
    return {"ids": rng.integers(0, 2000, shape), "mask": np.ones(shape, np.int64)}


def status(what: str) -> float:
    """MiB of this process: `VmRSS` now, `VmHWM` at most."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"the system does not tell {what}")


def one(engine: str, path: Path, count: int, threads: int) -> dict[str, float]:
    """What this process takes."""
    runtime = importlib.import_module(engine)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    before = status("VmRSS")
    for shape in shapes_of(path.stem, count):
        session.run(None, feeds_of(path.stem, shape))
    return {"before": before, "peak": status("VmHWM"), "after": status("VmRSS")}


def apart(engine: str, path: Path, count: int, threads: int) -> dict[str, float]:
    """The same, asked of a child."""
    told = {"--one": engine, "--path": path, "--shapes": count, "--threads": threads}
    command = [sys.executable, __file__, *(str(word) for pair in told.items() for word in pair)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def compare(nets: list[str], count: int, threads: int, folder: Path) -> list[dict[str, Any]]:
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    from benchmarks import open_shapes

    print(f"onnxruntime {importlib.metadata.version('onnxruntime')}, {threads} threads, MiB")
    columns = ("before", "peak", "after", "beyond", "by largest")
    print(f"{'':12} {'':12} {'shapes':>7}", *(f"{column:>10}" for column in columns))
    rows = []
    for net in nets:
        path = folder / f"{net}.onnx"
        path.write_bytes(getattr(open_shapes, net)())
        for engine in ENGINES:
            apart(engine, path, 1, threads)
            alone = apart(engine, path, 1, threads)
            for number, found in ((1, alone), (count, apart(engine, path, count, threads))):
                rows.append({"net": net, "engine": engine, "shapes": number, **found})
                sizes = *found.values(), found["peak"] - found["before"]
                told = (*(f"{n:10.1f}" for n in sizes), f"{found['peak'] / alone['peak']:10.2f}")
                print(f"{net:12} {engine:12} {number:7}", *told, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=2000)
    parser.add_argument("--nets", nargs="+", choices=LARGEST, default=list(LARGEST))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        sys.path.insert(0, str(ROOT / "src"))
        print(json.dumps(one(args.one, args.path, args.shapes, args.threads)))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(args.nets, args.shapes, args.threads, Path(folder))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
