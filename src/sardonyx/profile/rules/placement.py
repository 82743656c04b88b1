"""Nodes that no fast provider runs, and providers that are not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sardonyx import knobs
from sardonyx.partition import registry
from sardonyx.profile.facts import Facts
from sardonyx.profile.findings import OPPORTUNITY, Finding, Fix

MAPS = frozenset(("ZipMap",))
"""Operators whose results are no tensors, so that Python makes them whatever runs the model."""
MAPS_SHARE = 0.25
INSIDE_SHARE = 0.05
"""Of a run; below, it does not matter what runs them."""
UNTOLD = "what the runs brought is not compiled for"


def fallback(facts: Facts) -> Iterator[Finding]:
    """Nodes on numpy, next to nodes that are compiled."""
    rows = [p for p in facts.explanation.placements if p.op_type != "Constant"]
    left = [p for p in rows if p.provider == "reference" and p.op_type not in MAPS]
    compiled = [p for p in rows if p.provider != "reference"]
    if not left or not compiled:
        return
    names = {p.node for p in left}
    kinds = Counter(p.op_type for p in left)
    seconds = _numpy_seconds(facts, names)
    owners = ["reference" if p.provider == "reference" else "compiled" for p in rows]
    parts = sum(a == "compiled" and b != "compiled" for a, b in zip(owners, [*owners[1:], ""], strict=True))
    listed = ", ".join(f"{op} {n}" for op, n in kinds.most_common(4))
    cut = f"They cut the compiled part into {parts}, and each cut returns to Python. " if parts > 1 else ""
    yield Finding(
        "fallback",
        f"{len(left)} of {len(rows)} nodes run on numpy ({listed})",
        {"nodes_on_numpy": len(left), "compiled_parts": parts, "seconds_a_run": seconds},
        f"{cut}{left[0].reason}.",
        Fix(
            "replace the operator by ones that are compiled (docs/status.md lists what is not), or write it as "
            "a compiled custom operator: sardonyx.custom_op"
        ),
        tuple(sorted(names)),
        cost=facts.share(seconds),
    )


def inside(facts: Facts) -> Iterator[Finding]:
    """Nodes of a provider that compiles, which numpy ran all the same."""
    owned = {p.node: p for p in facts.explanation.placements if p.provider != "reference"}
    seconds: dict[str, float] = {}
    for use in facts.profile.nodes:
        if use.engine == "reference" and use.name in owned:
            seconds[use.name] = seconds.get(use.name, 0.0) + use.seconds
    total = sum(seconds.values())
    if facts.share(total) < INSIDE_SHARE:
        return
    slowest = sorted(seconds, key=lambda name: -seconds[name])
    kinds = Counter(owned[name].op_type for name in slowest)
    listed = ", ".join(f"{op} {n}" for op, n in kinds.most_common(4))
    why = next((owned[name].on_numpy for name in slowest if owned[name].on_numpy), UNTOLD)
    yield Finding(
        "numpy-inside",
        f"{len(seconds)} of {len(owned)} nodes run on numpy inside compiled parts ({listed})",
        {"nodes_on_numpy": len(seconds), "seconds_a_run": total, "share_of_a_run": facts.share(total)},
        f"{why[:1].upper()}{why[1:]}.",
        Fix(
            "give operands that decide shapes or axes few different values, or constants when the model is exported; "
            "pad inputs to few different shapes"
        ),
        tuple(slowest),
        cost=facts.share(total),
    )


def maps(facts: Facts) -> Iterator[Finding]:
    """Outputs that are lists of dictionaries, which Python makes row by row."""
    names = {p.node for p in facts.explanation.placements if p.provider == "reference" and p.op_type in MAPS}
    seconds = _numpy_seconds(facts, names)
    if facts.share(seconds) > MAPS_SHARE:
        yield Finding(
            "maps",
            "an output is a list of dictionaries, one for each row",
            {"seconds_a_run": seconds, "share_of_a_run": facts.share(seconds)},
            "Dictionaries are objects of Python, made one by one.",
            Fix("export probabilities as a tensor: zipmap=False in skl2onnx, or drop the ZipMap"),
            tuple(sorted(names)),
            kind=OPPORTUNITY,
            cost=facts.share(seconds),
        )


def _numpy_seconds(facts: Facts, names: set[str]) -> float:
    return sum(n.seconds for n in facts.profile.nodes if n.engine == "reference" and n.name in names)


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
            f"{knobs.CPU.name}=none turns the compiler off." if switched_off else f"{rows[0].reason}.",
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
