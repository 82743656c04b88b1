"""Nodes that no fast provider runs, and providers that are not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sardonyx import knobs
from sardonyx.partition import registry
from sardonyx.profile.facts import Facts
from sardonyx.profile.findings import Finding, Fix


def fallback(facts: Facts) -> Iterator[Finding]:
    """Nodes on numpy, next to nodes that are compiled."""
    rows = [p for p in facts.explanation.placements if p.op_type != "Constant"]
    left = [p for p in rows if p.provider == "reference"]
    compiled = [p for p in rows if p.provider != "reference"]
    if not left or not compiled:
        return
    names = {p.node for p in left}
    kinds = Counter(p.op_type for p in left)
    seconds = sum(n.seconds for n in facts.profile.nodes if n.engine == "reference")
    owners = ["reference" if p.provider == "reference" else "compiled" for p in rows]
    parts = sum(a == "compiled" and b != "compiled" for a, b in zip(owners, [*owners[1:], ""], strict=True))
    listed = ", ".join(f"{op} {n}" for op, n in kinds.most_common(4))
    yield Finding(
        "fallback",
        f"{len(left)} of {len(rows)} nodes run on numpy ({listed})",
        {"nodes_on_numpy": len(left), "compiled_parts": parts, "seconds_a_run": seconds},
        f"The compiled part is cut into {parts}, and each cut returns to Python. Why: {left[0].reason}.",
        Fix(
            "replace the operator by ones that are compiled (docs/status.md lists what is not), or write it as "
            "a compiled custom operator: sardonyx.custom_op"
        ),
        tuple(sorted(names)),
        cost=facts.share(seconds),
    )


def nothing_compiled(facts: Facts) -> Iterator[Finding]:
    """No node is compiled."""
    rows = facts.explanation.placements
    if rows and all(p.provider == "reference" for p in rows):
        switched_off = knobs.CPU.get() == "none"
        fix = f"unset {knobs.CPU.name}" if switched_off else "see explain() for the reason of each node"
        yield Finding(
            "not-compiled",
            f"none of {len(rows)} nodes is compiled",
            {"nodes_on_numpy": len(rows)},
            f"{knobs.CPU.name}=none turns the compiler off." if switched_off else f"Why: {rows[0].reason}.",
            Fix(fix),
            cost=1.0,
        )


def missing_provider(facts: Facts) -> Iterator[Finding]:
    """Execution providers that were asked for and are not usable."""
    lacking = [name for name in facts.providers if name not in facts.session.get_providers()]
    for name in lacking:
        why = registry.why_not(name) if registry.is_known(name) else "there is no provider of this name"
        used = ", ".join(facts.session.get_providers())
        yield Finding(
            "missing-provider",
            f"{name} was asked for and is not used",
            {"asked": name, "used": used},
            f"The session runs on {used} instead. Why: {why}.",
            Fix(f"ask for what is there: providers={facts.session.get_providers()!r}, or install the provider"),
        )
