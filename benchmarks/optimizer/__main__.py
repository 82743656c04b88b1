"""The optimizer, judged: one question each.

    python -m benchmarks.optimizer counts ZOO_DIR [FOLDER_OR_MODEL ...] [--markdown benchmarks/results/node_counts.md]
    python -m benchmarks.optimizer portable ZOO_DIR [--only bert vit] [--markdown benchmarks/results/portable.md]
    python -m benchmarks.optimizer growth [MODEL ...]

ZOO_DIR is what `python -m benchmarks.zoo exported --small --out ZOO_DIR` writes, or any folder of models.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.optimizer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("question", choices=("counts", "portable", "growth"))
    add("paths", nargs="*", type=Path, help="folders of models, or models")
    add("--only", nargs="+", default=[""], help="models whose name holds one of these")
    add("--no-check", action="store_true", help="counts: run nothing")
    add("--rounds", type=int, default=3, help="growth: the best of so many counts")
    add("--markdown", type=Path, help="write the page there")
    args = parser.parse_args()
    run = importlib.import_module(f"benchmarks.optimizer.{args.question}").run
    if args.question != "growth" and not args.paths:
        parser.error("no models are named")
    sys.exit(not run(args))


if __name__ == "__main__":
    main()
