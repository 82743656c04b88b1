"""Whether two answers are the same, by dtype, precision and what the operators accumulate."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz.draws import is_float

RELATIVE = {"float64": 1e-6, "float32": 2e-4, "float16": 8e-3, "bfloat16": 4e-2, "complex64": 2e-4, "complex128": 1e-6}
COARSE = 0.15
"""Of float8 and float4: about two steps."""
PRECISION = {"highest": 0.0, "high": 3e-4, "medium": 3e-2}
"""What a product in bf16 parts may add, relative to the largest element."""
RANDOM = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout")
)


def difference(
    ours: list[Any], theirs: list[Any], *, precision: str = "highest", kind: str = "plain", has_numbers: bool = True
) -> str | None:
    """What differs, in words that name the first such output; None where nothing does. Without ``has_numbers``, types
    and shapes alone count: what several operators make of NaN and the largest numbers follows from their order.
    """
    if len(ours) != len(theirs):
        return f"{len(ours)} outputs, expected {len(theirs)}"
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        why = _differs(a, b, precision, kind)
        if why is not None and (has_numbers or " elements, at" not in why):
            return f"output {i}: {why}"
    return None


def _differs(a: Any, b: Any, precision: str, kind: str) -> str | None:
    if isinstance(b, (list, tuple)):
        if not isinstance(a, (list, tuple)) or len(a) != len(b):
            return f"a sequence of {len(a) if isinstance(a, (list, tuple)) else type(a).__name__}, expected {len(b)}"
        return next((why for x, y in zip(a, b, strict=True) if (why := _differs(x, y, precision, kind))), None)
    if isinstance(b, dict):
        if not isinstance(a, dict) or list(a) != list(b):
            return "other keys"
        return next((why for k in b if (why := _differs(_narrow(a[k]), _narrow(b[k]), precision, kind))), None)
    if a is None or b is None:
        return None if a is None and b is None else "None"
    a, b = np.asarray(a), np.asarray(b)
    if is_text(a) and is_text(b):
        return None if a.shape == b.shape and [*map(_word, a.ravel())] == [*map(_word, b.ravel())] else "other text"
    if a.dtype != b.dtype:
        return f"dtype {a.dtype}, expected {b.dtype}"
    if a.shape != b.shape:
        return f"shape {list(a.shape)}, expected {list(b.shape)}"
    return numbers(a, b, precision, kind)


def _narrow(x: Any) -> Any:
    """A number of a map, which was a float32 before it was Python's."""
    return np.float32(x) if isinstance(x, float) else x


def is_text(a: Any) -> bool:
    return bool(a.dtype.kind in "OUST")


def _word(x: Any) -> str:
    return x.decode("utf-8", "replace") if isinstance(x, bytes) else str(x)


def numbers(a: Any, b: Any, precision: str, kind: str) -> str | None:
    if a.tobytes() == b.tobytes():
        return None
    if not is_float(a.dtype) and a.dtype.kind != "c":
        return _integers(a, b)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        x, y = a.astype(wide), b.astype(wide)
        rtol = RELATIVE.get(a.dtype.name, COARSE)
        finite = np.isfinite(x) & np.isfinite(y)
        special = ~finite & ~((x == y) | (np.isnan(x) & np.isnan(y)))
        largest = float(np.abs(y[finite]).max()) if finite.any() else 0.0
        slack = (rtol + PRECISION[precision]) * np.maximum(np.abs(y), largest if kind != "exact" else 0.0) + 1e-30
        if kind == "extreme":
            slack = slack + rtol
            special &= np.isnan(x) != np.isnan(y)
        far = finite & (np.abs(x - y) > slack)
    bad = far | special
    if not bad.any():
        return None
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {a.size} {a.dtype} elements, at {list(at)} {a[at]!r}, expected {b[at]!r}"


def _integers(a: Any, b: Any) -> str | None:
    x, y = a.astype(object), b.astype(object)
    bad = np.array([p != q for p, q in zip(x.ravel(), y.ravel(), strict=True)])
    at = int(np.argmax(bad))
    shown = f"{int(bad.sum())} of {a.size} {a.dtype} elements, at {at} {x.ravel()[at]}, expected {y.ravel()[at]}"
    return shown if bad.any() else None
