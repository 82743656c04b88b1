"""How exact is each precision? Relative L2 error against the model run in float64, onnxruntime's beside it.

    python -m benchmarks.precision [--cases FOLDER CASE ...] [--tokens N] [--models MODEL.onnx ...] [--markdown FILE]

Cases are those of `python -m benchmarks.zoo timed`, in its folder. Feeds of other models are those of MODEL.npz beside
the model or in its folder `ref` (as `in:NAME`), else random. The error of a model is that of its worst floating-point
output. Tiles are the chip's, or emulated bit for bit where it has none; vectors are those of the chip at hand.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import sardonyx
from benchmarks import page
from benchmarks.compare.cases import CASES
from benchmarks.compare.reference import Wide
from benchmarks.zoo.trained import feeds_of
from sardonyx.bench.arrays import stored
from sardonyx.bench.statistics import relative_error
from sardonyx.interpret.context import RunContext
from sardonyx.providers.cpu.machine import isa

TILES, HOST = "sapphirerapids", isa.named(None)
VECTORS = "skylake-avx512" if HOST.amx else None
COLUMNS = {
    "highest": ("highest", TILES), "high": ("high", TILES), "medium": ("medium", TILES),
    "f32 vectors": ("highest", VECTORS), "bf16 weights": ("medium", VECTORS),
}  # fmt: skip
"""Precision, and the chip for which code is emitted; without tiles, `high` is `highest`."""


def subjects(
    folder: Path | None, names: list[str], tokens: int | None, models: list[Path]
) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """The name, file and feeds of every row."""
    by_name = {case.name: case for case in CASES}
    for case in (by_name[name] for name in names if folder is not None):
        assert folder is not None
        given = stored(case.feeds(folder), "in")
        feeds = cut(given, tokens)
        length = next(iter(feeds.values())).shape[1]
        is_cut = any(feeds[n].shape != v.shape for n, v in given.items())
        yield f"{case.name}, {length} tokens" if is_cut else case.name, case.onnx(folder), feeds
    for path in models:
        yield path.stem, path, feeds_of(path)


def cut(feeds: dict[str, Any], tokens: int | None) -> dict[str, Any]:
    """Feeds of so many tokens at most: whole models stay quick to emulate."""
    return {n: v[:, :tokens] if v.ndim == 2 and v.dtype.kind == "i" else v for n, v in feeds.items()}


def errors(path: Path, feeds: dict[str, Any]) -> dict[str, float]:
    """By contestant, the error of the worst floating-point output."""
    exact = Wide(path).run(feeds, RunContext())
    found: dict[str, float] = {}
    for name, session in sessions(path):
        results = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
        floats = [n for n, v in results.items() if isinstance(v, np.ndarray) and v.dtype.kind == "f" and v.size]
        if not floats:
            raise SystemExit(f"{path}: no output is a float")
        found[name] = max(relative_error(results[n], exact[n]) for n in floats)
    return found


def sessions(path: Path) -> Iterator[tuple[str, Any]]:
    for name, (precision, cpu) in COLUMNS.items():
        os.environ.pop("SARDONYX_CPU", None)
        if cpu is not None:
            os.environ["SARDONYX_CPU"] = cpu
        yield name, sardonyx.InferenceSession(str(path), precision=precision)
    try:
        import onnxruntime
    except ImportError:
        return
    yield "onnxruntime", onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[], help="a folder of `benchmarks.zoo timed`, then cases")
    parser.add_argument("--tokens", type=int, help="cut the feeds of cases to so many tokens")
    parser.add_argument("--models", nargs="+", type=Path, default=[])
    parser.add_argument("--markdown", type=Path, help="write the page there")
    given = parser.parse_args()
    folder = Path(given.cases[0]) if given.cases else None
    columns = (*COLUMNS, "onnxruntime")
    tiles = "the chip's own" if HOST.amx else "emulated, which gives the chip's numbers bit for bit"
    lines = [
        page.head("Errors of the precisions", ("onnxruntime",), HOST.name),
        f"Relative L2 error of the worst output against the model in float64. Tiles are {tiles}.",
        "`f32 vectors` and `bf16 weights` are `highest` (and `high`) and `medium` on chips without tiles.",
        "",
        f"| model | {' | '.join(columns)} |",
        f"| --- |{' ---: |' * len(columns)}",
    ]
    print("\n".join(lines), flush=True)
    for name, path, feeds in subjects(folder, given.cases[1:], given.tokens, given.models):
        row = errors(path, feeds)
        cells = [f"{row[c]:.1e}" if c in row else "" for c in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    page.write(given.markdown, "\n".join(lines))


if __name__ == "__main__":
    main()
