"""The command ``sardonyx``, also ``python -m sardonyx``. It needs the extra ``cli`` (typer and rich).

``table.py`` lists the commands, one file each in ``commands/``; a command calls library functions and prints what they
return. Exit status:

    0    done, and what was to be checked is good
    1    done, and a check failed: outputs differ, a benchmark is slower than before
    2    nothing done: bad usage, or input that cannot be used
    3    a defect of Sardonyx
    130  interrupted

Results go to stdout; errors, warnings and progress to stderr.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # this is imported before Ctrl-C is dealt with, so it imports little
if TYPE_CHECKING:
    from collections.abc import Sequence

GOOD, FAILED, UNUSABLE, DEFECT, INTERRUPTED = 0, 1, 2, 3, 130

REQUIRED = ("typer", "rich")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status. Without ``argv`` the process is this command, and deals with
    Ctrl-C from now on to its end.
    """
    try:
        if argv is not None:
            return _run(argv)
        from sardonyx.cli import interrupts

        interrupts.hold_back()
        status = _run(sys.argv[1:])
        interrupts.end_at_once()
        return status
    except KeyboardInterrupt:  # while commands are imported; later ones come as a status
        print("sardonyx: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    from importlib.util import find_spec

    if missing := [name for name in REQUIRED if find_spec(name) is None]:
        print(f"sardonyx: {' and '.join(missing)} not installed; pip install 'sardonyx[cli]'", file=sys.stderr)
        return UNUSABLE
    from sardonyx.cli.running import run

    return run(argv)
