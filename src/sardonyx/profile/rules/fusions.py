"""Rewrites that were not made."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from sardonyx.profile.facts import Facts
from sardonyx.profile.findings import OPPORTUNITY, PROBLEM, Finding, Fix
from sardonyx.session.cpu_options import split_names

FUSED = {
    "FuseLayerNorm": "LayerNormalization",
    "FuseRMSNorm": "RMSNormalization",
    "FuseGroupNorm": "GroupNormalization",
    "FuseGelu": "Gelu",
    "FuseTanhGelu": "Gelu",
    "FuseAttention": "Attention",
    "FuseFlatAttention": "Attention",
    "FuseRotaryEmbedding": "RotaryEmbedding",
}
"""Fusions whose expressions exporters write on purpose, and the operators that they make. An expression that several
look for, as RMS normalization is a part of layer normalization, is that of the first.
"""
DISABLED_KEY = "optimization.disable_specified_optimizers"
LIMITED = ("disabled", "basic")
MISSED_SHARE = 0.02
"""Of the bytes that kernels read and write: below it, a fusion that was missed is no problem."""
EXPORT = "export again with opset {opset} or later, which has the operator, or write the expression as the reason asks"
OPSETS = {"LayerNormalization": 17, "Gelu": 20, "GroupNormalization": 18}


def missed(facts: Facts) -> Iterator[Finding]:
    """Expressions that look like a fused operator, and were left because a condition does not hold."""
    left: dict[tuple[str, str], list[str]] = defaultdict(list)
    placed = {p.node: p for p in facts.explanation.placements}
    report = facts.explanation.report
    nears = [near for near in (*report.declined, *report.rolled_back) if near.name in FUSED]
    taken: dict[str, str] = {}
    for near in sorted(nears, key=lambda near: [*FUSED].index(near.name)):
        name = _name(near.node)
        if name in placed and taken.setdefault(name, near.name) == near.name:
            left[near.name, near.reason].append(name)
    for (pass_name, reason), nodes in left.items():
        operator = FUSED[pass_name]
        kernels = [k for k in facts.profile.kernels if not set(nodes).isdisjoint(k.nodes)]
        share = sum(k.nbytes for k in kernels) / facts.profile.nbytes if facts.profile.nbytes else 1.0
        yield Finding(
            "missed-fusion",
            f"{len(nodes)} expression{'s' if len(nodes) > 1 else ''} could not be fused into {operator}",
            {
                "pass": pass_name,
                "expressions": len(nodes),
                "kernels": len(kernels),
                "nodes_in_these_kernels": sum(len(k.nodes) for k in kernels),
                "share_of_bytes": share,
            },
            f"{pass_name} declined: {reason}.",
            Fix(EXPORT.format(opset=OPSETS.get(operator, 23))),
            tuple(nodes),
            PROBLEM if share >= MISSED_SHARE else OPPORTUNITY,
            facts.share(sum(k.seconds for k in kernels)),
        )


def _name(label: str) -> str:
    """The node's name in a message's label."""
    found = re.search(r"'([^']*)'", label)
    return found.group(1) if found else label


def limited(facts: Facts) -> Iterator[Finding]:
    """A level of optimization below the default, or passes that are left out."""
    level = str(facts.profile.settings.get("optimization_level", "all"))
    if level in LIMITED:
        from sardonyx.session.enums import GraphOptimizationLevel

        yield Finding(
            "level",
            f"the graph is optimized at the level {level}",
            {"level": level, "nodes": len(facts.nodes)},
            "Normalizations, activations and attention are fused at higher levels only.",
            Fix(
                "options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL",
                {"graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL},
            ),
        )
    disabled = split_names(facts.options._config.get(DISABLED_KEY, ""))
    if disabled:
        yield Finding(
            "disabled-passes",
            f"{len(disabled)} passes of the optimizer are left out",
            {"passes": ", ".join(disabled), "nodes": len(facts.nodes)},
            f"The configuration key {DISABLED_KEY} names them.",
            Fix(f"do not set {DISABLED_KEY}", config={DISABLED_KEY: ""}),
        )
