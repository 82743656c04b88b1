"""A case as text, for reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import printer

from fuzz.cases import Case

LONG = 6_000


def shown(case: Case, run: int) -> str:
    """The model in ONNX's text, and the feeds of a run."""
    try:
        model = onnx.load_from_string(case.model)
        text = printer.to_text(model)
    except Exception as error:
        text = f"a model that onnx does not print: {error}"
    lines = [text[:LONG]]
    feeds = case.runs[run].feeds if run < len(case.runs) else {}
    lines += [f"feed {name} = {short(value)}" for name, value in feeds.items()]
    return "\n".join(lines)


def short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        text = np.array2string(value, threshold=60, precision=6, max_line_width=150)
        return f"{value.dtype}{list(value.shape)} {text[:1500]}"
    return str(value)[:1500]
