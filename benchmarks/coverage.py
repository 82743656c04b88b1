"""What the CPU provider compiles of ONNX's backend suite and of a folder of models, and what it leaves, and why.

    python benchmarks/coverage.py [--models FOLDER] [--markdown FILE]

A case or model is native when the provider claims every node of its optimized graph. Nodes whose shapes follow from
operands of the run count: they are compiled when those operands come.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import page
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize
from sardonyx.optimize.pipelines import optimize
from sardonyx.providers.cpu import CpuProvider
from tests.conformance.onnx_cases import every

LEVEL = "all"
Left = list[tuple[str, str]]
"""Operator and reason of each node that is not claimed."""


def left(source: Any) -> Left:
    model = load(source)
    normalize(model)
    optimize(model.graph, LEVEL)
    claims = CpuProvider().claims(model.graph)
    return [(_name(node), why) for node, why in claims.items() if why is not None]


def _name(node: Any) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


def summary(found: dict[str, Left]) -> Iterator[str]:
    whole = sum(not rest for rest in found.values())
    yield f"{whole:,} of {len(found):,} ({whole / max(len(found), 1):.1%}) are native. Left to the reference provider:"
    yield ""
    yield "| operator | in | why |"
    yield "| --- | ---: | --- |"
    where: dict[str, set[str]] = defaultdict(set)
    why: dict[str, Counter[str]] = defaultdict(Counter)
    for name, rest in found.items():
        for op_type, reason in rest:
            where[op_type].add(name)
            why[op_type][reason] += 1
    for op_type in sorted(where, key=lambda o: (-len(where[o]), o)):
        reasons = "; ".join(reason for reason, _ in why[op_type].most_common(2))
        yield f"| {op_type} | {len(where[op_type])} | {reasons.replace('|', '/')} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="a folder of models")
    parser.add_argument("--markdown", type=Path, help="write the tables there")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [page.head("What is compiled on the CPU", ("onnx",)), "## ONNX's suite", ""]
    lines += summary({case.name: left(case.model().SerializeToString()) for case in every()})
    if args.models:
        lines += ["", "## Models", ""]
        lines += summary({path.stem: left(str(path)) for path in sorted(args.models.glob("*.onnx"))})
    text = "\n".join(lines) + "\n"
    print(text)
    page.write(args.markdown, text)


if __name__ == "__main__":
    main()
