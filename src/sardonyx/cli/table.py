"""The commands. A row NAME is the file ``commands/NAME.py``, which holds

    command     the function, whose parameters typer reads, or a dict of functions: subcommands by name
    EXAMPLES    lines of the shell, shown below its help

Its docstring is the help. It returns an exit status, or None for 0. Engines and numpy are imported inside functions,
so that ``sardonyx --help`` is quick.
"""

from __future__ import annotations

BEGIN, MEASURE, UNDERSTAND, CHANGE = "Begin here", "Run and measure", "Understand a model", "Change a model"
KEEP = "This machine"

COMMANDS: dict[str, str] = {
    "demo": BEGIN,
    "run": MEASURE,
    "bench": MEASURE,
    "profile": MEASURE,
    "tune": MEASURE,
    "inspect": UNDERSTAND,
    "explain": UNDERSTAND,
    "compare": UNDERSTAND,
    "report": UNDERSTAND,
    "optimize": CHANGE,
    "quantize": CHANGE,
    "info": KEEP,
    "cache": KEEP,
}
"""Names and the panels of the help in which they are shown, in the order of the help."""
