"""The page: data, scripts and styles in one HTML file that loads nothing from anywhere.

Strings of a model are untrusted. They reach the page as JSON in which no character can end the script element, and
scripts write them as text only. The page's content security policy allows its own script by digest, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import Any

from sardonyx.report.records import ReportData, plain

SCRIPTS = ("dom", "theme", "view", "paint", "graph", "layers", "roofline", "memory", "measurements", "tables", "main")
"""In the order in which they are joined: each uses only those before it."""
LONGEST = 400
"""Characters of a string from a model that the page carries."""
_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def page(data: ReportData) -> str:
    """The HTML of a report."""
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(f"{name}.js") for name in SCRIPTS) + "\n})();\n"
    style = _asset("page.css")
    parts = {
        "title": html.escape(_shortened(data.title)),
        "policy": html.escape(_policy(script, style)),
        "style": style,
        "data": _embedded(data),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda m: parts[m[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("sardonyx.report") / "assets" / name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    """Only the page's own script and style sheet, by digest; scripts may set styles of elements."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src-elem '{_digest(style)}'; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _embedded(data: ReportData) -> str:
    """JSON without characters that could end a script element or a line of JavaScript."""
    found = json.dumps(_limited(plain(data)), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return found.translate(_UNSAFE).encode("utf-8", "replace").decode()


def _limited(value: Any) -> Any:
    if isinstance(value, str):
        return _shortened(value)
    if isinstance(value, list):
        return [_limited(v) for v in value]
    return {k: _limited(v) for k, v in value.items()} if isinstance(value, dict) else value


def _shortened(text: str) -> str:
    """Printable characters, at most so many: a model's names may be of any length and hold control characters."""
    kept = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in kept)
