"""Operators alone, each beside onnxruntime: times, rates, shares of the machine's limit, and errors.

    python -m benchmarks.kernels gemm [--precision highest high medium] [--isa skylake-avx512] [--threads 1]
    python -m benchmarks.kernels conv attention --only 56- BERT
    python -m benchmarks.kernels memory --threads 2 --markdown FILE

Processes, rounds and intervals are those of ``benchmarks.compare``: a time is the median of whole calls of a session,
so that a call's own cost is in it (``call`` tells how much that is). The limit is what the machine reached in the same
rounds: arithmetic in registers at that precision, reading the weights, or copying inputs to outputs, whichever takes
longest. None is known for products of bytes. Errors are relative L2 distances from float64.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.compare import cases
from benchmarks.compare.report import error, ms, percent, table
from benchmarks.compare.rounds import Settings, measure
from benchmarks.kernels import convolutions, loops, products, sequences
from benchmarks.kernels.case import Case
from sardonyx.bench.engines import PEERS, Contestant
from sardonyx.bench.statistics import Ratio

FAMILIES: dict[str, tuple[Case, ...]] = {
    "gemm": products.GEMM,
    "conv": convolutions.CONV,
    "attention": sequences.ATTENTION,
    "recurrent": sequences.RECURRENT,
    "quantized": (*products.QUANTIZED, *convolutions.QUANTIZED),
    "memory": loops.MEMORY,
    "call": loops.CALL,
}
HEADER = ("", "median ms", "10 %", "90 %", "Gop/s", "GB/s", "of the limit", "error", "onnxruntime / it", "kernels")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("families", nargs="+", choices=FAMILIES)
    add("--only", nargs="+", default=[""], help="cases whose names contain one of these")
    add("--threads", type=int, default=1)
    add("--precision", nargs="+", choices=("highest", "high", "medium"), default=["highest"])
    add("--isa", nargs="+", default=[], help="CPUs to which further contestants of ours hold themselves")
    engines = sorted({peer.engine for peer in PEERS})
    add("--peers", nargs="*", choices=engines, default=["onnxruntime"], help="onnxruntime by default")
    add("--rounds", type=int, default=15)
    add("--seconds", type=float, default=2.0, help="for the rounds of one case")
    add("--no-errors", action="store_true", help="do not compute in float64")
    add("--markdown", type=Path, help="write the page there")
    return parser.parse_args()


def contestants(args: argparse.Namespace) -> list[Contestant]:
    ours = [Contestant("sardonyx", p) for p in args.precision]
    ours += [Contestant("sardonyx", args.precision[0], isa) for isa in args.isa]
    return ours + [peer for peer in PEERS if peer.engine in args.peers]


def result_of(case: Case, args: argparse.Namespace, cache: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        files = case.write(Path(folder), has_errors=not args.no_errors)
        settings = Settings(cache, args.threads, args.rounds, args.seconds)
        return measure(cases.Case.of(case.name), files, contestants(args), settings)


def rows(case: Case, result: dict[str, Any]) -> Iterator[list[str]]:
    """One line for each contestant."""
    for name, entry in result["contestants"].items():
        seconds = entry["median_s"]
        ratio = result["ratios"].get(name, {}).get("onnxruntime")
        yield [
            f"{case.name}, {name}",
            *(ms(entry[key]) for key in ("median_s", "low_s", "high_s")),
            f"{case.flops / seconds / 1e9:.1f}" if case.flops else "",
            f"{result['cost']['moved'] / seconds / 1e9:.2f}",
            percent(entry["share"]) if case.has_limit else "",
            "" if math.isnan(entry["error"]) else error(entry["error"]),
            str(Ratio(**ratio)) if ratio else "",
            ", ".join(dict.fromkeys(entry.get("kernels", ()))),
        ]


def main() -> None:
    args = parse()
    text = [page.head("Operators alone", tuple(args.peers), f"{args.threads} threads")]
    print(text[0])
    with tempfile.TemporaryDirectory() as cache:
        for family in args.families:
            found: list[list[str]] = []
            missing: list[str] = []
            for case in (c for c in FAMILIES[family] if any(part in c.name for part in args.only)):
                result = result_of(case, args, cache)
                of_case = list(rows(case, result))
                print("\n".join("  ".join(filter(None, row)) for row in of_case), flush=True)
                found += of_case
                absent = (result["failed"] | result["absent"]).items()
                missing += [f"{case.name}, {name}: {why[:120]}" for name, why in absent]
            text += [f"## {family}", "", table(HEADER, found), "", *missing, ""]
            print("\n" + "\n".join(text[-5 - len(missing) :]))
    page.write(args.markdown, "\n".join(text))


if __name__ == "__main__":
    main()
