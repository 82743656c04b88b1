"""Creates the CPU provider from a session's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sardonyx import knobs
from sardonyx.errors import InvalidArgument
from sardonyx.partition.provider import Provider
from sardonyx.session import environment
from sardonyx.session.options import SessionOptions

if TYPE_CHECKING:
    from sardonyx.providers.cpu.program.variants import KernelPolicy
    from sardonyx.providers.cpu.runtime.team import Settings

PRECISIONS = ("highest", "high", "medium")
AFFINITIES = "session.intra_op_thread_affinities"
SPINNING, SPIN_US = "session.intra_op.allow_spinning", "session.intra_op.spin_duration_us"
SPINNING_STOPS = "session.force_spinning_stop"
FORCED, FORBIDDEN = "session.kernel.force", "session.kernel.forbid"
BASELINE = "session.baseline_code"
NONE = "none"
"""The value of ``SARDONYX_CPU`` that disables the compiler."""


def cpu_providers(options: SessionOptions) -> list[Provider]:
    """The compiling provider; empty if it is unusable. The reference provider is added in any case."""
    if options.precision not in PRECISIONS:
        raise InvalidArgument(
            "the option precision has an unknown value", expected=", ".join(PRECISIONS), got=options.precision
        )
    if knobs.CPU.get() == NONE:
        return []
    from sardonyx.providers.cpu import CpuProvider

    config = options._config
    threads = options.intra_op_num_threads if options.use_per_session_threads else environment.global_threads()
    threads = max(threads, 0)  # a negative number lets the engine decide, as in onnxruntime
    provider = CpuProvider(
        precision=options.precision,
        threads=threads,
        settings=_settings(config, threads),
        max_memory=options._max_memory,
        policy=_policy(config),
        baseline=config.get(BASELINE, "1") != "0",
    )
    return [] if provider.probe() is not None else [provider]


def _settings(config: Mapping[str, str], threads: int) -> Settings:
    from sardonyx.providers.cpu.runtime import team

    asked = config.get(SPIN_US, "")
    if asked and not asked.isdecimal():
        raise InvalidArgument(f"{SPIN_US} is a number of microseconds", expected="0 or more", got=asked)
    is_spinning, stops = config.get(SPINNING, "1") != "0", config.get(SPINNING_STOPS, "0") == "1"
    spin_us = int(asked or team.SPIN_US) if is_spinning else 0
    idle_us = int(asked or team.IDLE_US) if is_spinning and not stops else 0
    return team.Settings(spin_us, idle_us, affinities(config.get(AFFINITIES, ""), threads))


def _policy(config: Mapping[str, str]) -> KernelPolicy:
    from sardonyx.providers.cpu.program.variants import ANY_KERNEL, KernelPolicy

    forced, forbidden = (frozenset(split_names(config.get(key, ""))) for key in (FORCED, FORBIDDEN))
    if not forced and not forbidden:
        return ANY_KERNEL
    from sardonyx.providers.cpu.select import by_name

    known = by_name()

    for key, names in ((FORCED, forced), (FORBIDDEN, forbidden)):
        for name in sorted(names - known.keys()):
            raise InvalidArgument(
                f"{key} names a kernel variant that does not exist", expected=f"some of {', '.join(known)}", got=name
            )
    for name in sorted(forced & forbidden):
        raise InvalidArgument("a kernel variant is both forced and forbidden", got=name)
    return KernelPolicy(forced, forbidden)


def split_names(text: str) -> list[str]:
    """Names in the value of a configuration key, which are split at commas or semicolons."""
    return [name for part in text.replace(";", ",").split(",") if (name := part.strip())]


def affinities(text: str, threads: int) -> tuple[tuple[int, ...], ...]:
    """Parse onnxruntime's format: processors of each thread except the caller's, counted from 1: ``1,2;3-4``."""
    if not text:
        return ()
    groups = text.split(";")
    if len(groups) != threads - 1:
        raise InvalidArgument(
            f"{AFFINITIES} names processors for every thread but the caller's", expected=threads - 1, got=len(groups)
        )
    return tuple(_processors(group) for group in groups)


def _processors(group: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in group.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or int(first) < 1:
            raise InvalidArgument(f"{AFFINITIES} counts processors from 1", expected="1,2;3-4", got=group)
        found += range(int(first) - 1, int(last or first))
    return tuple(found)
