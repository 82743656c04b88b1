"""Profiles as text for people, 80 columns wide, and in JSON's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sardonyx.profile.records import Profile

ROWS = 12
CALLED_SHARE = 0.9
UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))


def report(profile: Profile, rows: int = ROWS) -> str:
    """The hot list."""
    settings = profile.settings
    told = [f"{len(profile.runs)} runs", f"{seconds_text(profile.seconds)} each (median)"]
    if "threads" in settings:
        told.append(f"{settings['threads']} threads, precision {settings.get('precision', '')}")
    lines = [profile.source, ", ".join(told)]
    waited = f", {percent(profile.waited_share)} of the threads' time is waiting" if profile.waited_share else ""
    lines.append(f"{percent(profile.nodes_share)} of a run is in nodes{waited}")
    if profile.nodes_share < CALLED_SHARE:
        lines.append("the rest is what calling the session and recording the run cost")
    if profile.left_out:
        lines.append(f"{profile.left_out} more runs are not in the trace, which was full")
    if profile.kernels:
        lines += ["", "  share      time  limit  bound       kernel and nodes"]
        for use in profile.hot(rows):
            limit = percent(use.roofline_share) if use.roofline_s else "-"
            lines.append(
                f"{percent(profile.share(use)):>7} {seconds_text(use.seconds):>9} {limit:>6}  {use.bound:<10}  "
                f"{cut(f'{use.kernel}: {use.label}', 42)}"
            )
    numpy_nodes = [n for n in profile.hot_nodes(len(profile.nodes)) if n.engine != "cpu"]
    if numpy_nodes:
        lines += ["", "  share      time  nodes that are not compiled"]
        for node in numpy_nodes[:rows]:
            what = cut(f"{node.op_type} {node.name} ({node.engine})", 60)
            lines.append(f"{percent(profile.share(node)):>7} {seconds_text(node.seconds):>9}  {what}")
    return "\n".join(lines)


def as_json(value: Any) -> Any:
    """Records become objects; properties that a reader would have to compute are added to profiles."""
    from sardonyx.profile.records import Profile

    if is_dataclass(value) and not isinstance(value, type):
        found = {name: as_json(getattr(value, name)) for name in value.__dataclass_fields__}
        if isinstance(value, Profile):
            found |= {
                name: getattr(value, name) for name in ("seconds", "nodes_share", "waited_share", "nbytes", "flops")
            }
        return found
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_json(item) for item in value]
    return value


def percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.0995 or not share else 1}f} %"


def seconds_text(seconds: float) -> str:
    """Three digits: 1.23 ms."""
    for unit, size in UNITS:
        if seconds >= size or unit == "us":
            break
    value = seconds / size
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def nbytes_text(nbytes: float) -> str:
    """Three digits: 1.50 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1000 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.{2 if nbytes < 10 else 1 if nbytes < 100 else 0}f} {unit}"


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
