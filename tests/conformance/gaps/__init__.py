"""What each provider is known to leave to the reference provider: a file of its name, one line per pattern of cases."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

FOLDER = Path(__file__).parent


def known(provider: str) -> dict[str, str]:
    """Patterns of names of cases, and the reason of each; nothing where the provider has no file."""
    file = FOLDER / f"{provider}.txt"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return dict(line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#"))


def reason(patterns: dict[str, str], case: str) -> str | None:
    """Why a case is a known gap, or None where it is none."""
    return next((why for pattern, why in patterns.items() if fnmatchcase(case, pattern)), None)


def problem(patterns: dict[str, str], case: str, left: list[str]) -> str | None:
    """A gap that is new, or one that has closed: ``left`` are the nodes that others run, each with the reason."""
    why = reason(patterns, case)
    if left and why is None:
        return f"a new gap: {'; '.join(left)}"
    if why is not None and not left:
        return f"a gap that has closed: remove {case} from the file of gaps ({why})"
    return None


def unmatched(patterns: dict[str, str], cases: list[str]) -> list[str]:
    """Patterns that no case has."""
    return [pattern for pattern in patterns if not any(fnmatchcase(case, pattern) for case in cases)]
