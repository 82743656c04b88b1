"""More threads than can run."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sardonyx.profile.facts import Facts
from sardonyx.profile.findings import OPPORTUNITY, Finding, Fix

THROTTLED_SHARE = 0.05
CROWDED = 2
"""Threads of callers at once, for each CPU."""
WAITED_SHARE = 0.5


def quota(facts: Facts) -> Iterator[Finding]:
    """A container's quota below the threads that were asked for."""
    env = facts.environment
    if env.quota is None or env.quota >= env.cpus:
        return
    whole = max(1, math.ceil(env.quota))
    pools = {name: n for name, n in env.thread_variables.items() if n > whole}
    if facts.asked_threads > whole or pools:
        asked = facts.asked_threads or max(pools.values())
        named = f" {', '.join(pools)} ask{'' if len(pools) > 1 else 's'} as much for other libraries." if pools else ""
        yield Finding(
            "quota",
            f"{asked} threads share a quota of {env.quota:g} CPU{'s' if env.quota > 1 else ''}",
            {"quota_cpus": env.quota, "asked_threads": asked, "visible_cpus": env.cpus, "engine_threads": whole},
            f"The container's quota is used up before its period ends, and then all threads stand still.{named} "
            f"The engine starts no more than {whole}, whatever is asked.",
            _threads(whole, "and set the variables of other libraries alike" if pools else ""),
        )
    share = env.throttled_periods / env.periods if env.periods else 0.0
    if share > THROTTLED_SHARE:
        yield Finding(
            "throttled",
            f"the container was throttled in {100 * share:.0f} % of its periods",
            {"throttled_periods": env.throttled_periods, "periods": env.periods, "quota_cpus": env.quota},
            "Its processes together use more CPU than the quota allows.",
            Fix("give the container more CPUs, or run fewer threads and processes in it"),
        )


def too_many(facts: Facts) -> Iterator[Finding]:
    """More threads than CPUs."""
    env, asked = facts.environment, facts.asked_threads
    is_limited = env.quota is not None and env.quota < env.cpus
    if asked > env.cpus and not is_limited:
        yield Finding(
            "too-many-threads",
            f"{asked} threads were asked for, and there are {env.cpus} CPUs",
            {"asked_threads": asked, "cpus": env.cpus, "total_cpus": env.total_cpus},
            f"Threads beyond the CPUs only take turns; the engine starts no more than {env.cpus}.",
            _threads(env.cpus),
        )


def crowded(facts: Facts) -> Iterator[Finding]:
    """Callers at once, each with a team of threads."""
    callers = _most_at_once(facts)
    threads, cores = int(facts.profile.settings.get("threads", 1)), facts.environment.cores
    if facts.profile.is_own_calls and callers > 1 and callers * threads > CROWDED * cores:
        each = max(1, cores // callers)
        yield Finding(
            "crowded",
            f"{callers} callers at once, with {threads} threads each, on {cores} CPUs",
            {"callers": callers, "threads": threads, "cpus": cores},
            "A run finds its team busy, and callers wait for one another's CPUs.",
            _threads(each, "or call from fewer threads"),
        )


def waiting(facts: Facts) -> Iterator[Finding]:
    """Threads that wait for one another longer than they work; on a busy machine they wait for other processes."""
    if facts.disturbances:
        return
    used = max((k.threads for k in facts.profile.kernels), default=1)
    share = facts.profile.waited_share
    if used > 1 and share > WAITED_SHARE:
        yield Finding(
            "waiting",
            f"threads wait for one another {100 * share:.0f} % of their time",
            {"waited_share": share, "threads": used, "kernels": len(facts.profile.kernels)},
            "The work is too small for so many threads.",
            _threads(max(1, used // 2)),
            kind=OPPORTUNITY,
        )


def _threads(count: int, more: str = "") -> Fix:
    text = f"options.intra_op_num_threads = {count}, or 0, which lets the engine decide"
    return Fix(f"{text}; {more}" if more else text, {"intra_op_num_threads": count})


def _most_at_once(facts: Facts) -> int:
    changes = [(r.start_s, 1) for r in facts.profile.runs] + [(r.start_s + r.seconds, -1) for r in facts.profile.runs]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
