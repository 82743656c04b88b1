"""How exact is each precision? Relative L2 error against the model run in float64, onnxruntime's beside it.

    python benchmarks/precision.py MODEL.onnx ... [--markdown FILE]

Feeds are those of MODEL.npz beside the model or in its folder `ref` (as `in:NAME`). The error of a model is that of its
worst output. What a precision means depends on the chip: bf16 in parts where there are matrix tiles, f32 elsewhere.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.compare.reference import Wide  # noqa: E402
from benchmarks.compare.stats import relative_error  # noqa: E402

import sardonyx  # noqa: E402
from sardonyx.interpret.context import RunContext  # noqa: E402
from sardonyx.providers.cpu import isa  # noqa: E402

PRECISIONS = ("highest", "high", "medium")


def feeds_of(path: Path) -> dict[str, Any]:
    for candidate in (path.with_suffix(".npz"), path.parent / "ref" / f"{path.stem}.npz"):
        if candidate.exists():
            with np.load(candidate, allow_pickle=True) as file:
                return {k[3:].replace("|", "/"): file[k] for k in file if k.startswith("in:")}
    raise SystemExit(f"{path}: no feeds beside it")


def errors(path: Path) -> dict[str, float]:
    """By contestant, the error of the worst floating-point output."""
    feeds = feeds_of(path)
    exact = Wide(path).run(feeds, RunContext())
    found: dict[str, float] = {}
    for name, session in sessions(path):
        results = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
        floats = [n for n, v in results.items() if isinstance(v, np.ndarray) and v.dtype.kind == "f" and v.size]
        if not floats:
            raise SystemExit(f"{path}: no output is a float")
        found[name] = max(relative_error(results[n], exact[n]) for n in floats)
    return found


def sessions(path: Path) -> Any:
    for precision in PRECISIONS:
        yield precision, sardonyx.InferenceSession(str(path), precision=precision)
    try:
        import onnxruntime
    except ImportError:
        return
    yield "onnxruntime", onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    chip = isa.current()
    columns = (*PRECISIONS, "onnxruntime")
    lines = [
        f"{chip.cpu} ({chip.name})",
        "",
        f"| model | {' | '.join(columns)} |",
        f"| --- |{' ---: |' * len(columns)}",
    ]
    print("\n".join(lines), flush=True)
    for path in given.models:
        row = errors(path)
        cells = [f"{row[c]:.1e}" if c in row else "" for c in columns]
        lines.append(f"| {path.stem} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if given.markdown is not None:
        given.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
