"""Every level and spelling gives the answers of level disabled, on real models and on exporters' graphs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.optimize import api, pipelines
from sardonyx.optimize.check import Checker, answers, difference
from tests.conftest import MODELS
from tests.slices import TEST_ALL
from tests.transformers.models import encoder, feeds

REAL = sorted(MODELS.glob("*.onnx")) if MODELS.is_dir() else []
ZOO = sorted(Path(os.environ["SARDONYX_ZOO"]).glob("*.onnx")) if "SARDONYX_ZOO" in os.environ else []
"""What `python -m benchmarks.zoo exported --small` writes, where SARDONYX_ZOO says that it is."""

WAYS = [("basic", "portable"), ("extended", "contrib")]
if TEST_ALL:
    WAYS = [(level, spelling) for level in pipelines.LEVELS if level != "disabled" for spelling in pipelines.SPELLINGS]

TOLERANCE = 1e-3
"""Relative, on every output, group by group of like magnitude: rounding adds up over a whole network."""

INTEGER_OPERATORS = {"QLinearConv", "QLinearMatMul", "com.microsoft.QGemm", "com.microsoft.QLinearAdd"}
ONE_STEP = 1e-2
"""Relative, where integer operators take the place of floats between quantizations: the last step may differ."""

LARGE, MANY = 30_000_000, 140_000
"""Bytes of a model, and numbers fed to it, from which only the full run looks at it: numpy takes long."""

LONG = {"style__fns-candy"}
"""And those without stored feeds that take as long."""


def stored(path: Path) -> dict[str, Any] | None:
    """The feeds that are stored with a model, if any."""
    for beside in (path.with_suffix(".npz"), path.parent / "ref" / f"{path.stem}.npz"):
        if beside.exists():
            arrays = np.load(beside)
            return {k[3:].replace("|", "/"): arrays[k] for k in arrays.files if k.startswith("in:")}
    return None


def same_everywhere(source: Any, fed: dict[str, Any] | None) -> None:
    model, _, _ = api._loaded(source, None)
    checker = Checker(model.graph, fed)
    for level, spelling in WAYS:
        result = sardonyx.optimize_model(model, level, spelling=spelling)
        got = answers(result.model, checker.feeds)
        for name, a, b in zip(model.graph.output_names, checker.outputs, got, strict=True):
            why = difference(a, b, _tolerance(a, result.statistics().keys() & INTEGER_OPERATORS))
            assert why is None, f"{level} {spelling}: {name}: {why}"


def _tolerance(x: Any, integer: Any) -> float | None:
    if not isinstance(x, np.ndarray) or x.dtype != np.float32:
        return None
    return ONE_STEP if integer else TOLERANCE


def known(paths: list[Path], otherwise: str) -> list[Any]:
    """Each of the files; or one case that says why there is none."""
    return paths or [pytest.param(Path("none"), marks=pytest.mark.skip(reason=otherwise))]


@pytest.mark.sliced(2)
@pytest.mark.parametrize(
    "path", known(REAL, "no real models here; SARDONYX_MODELS names a folder"), ids=lambda p: p.stem
)
def test_real_models(path: Path) -> None:
    fed = stored(path)
    numbers = sum(np.size(x) for x in (fed or {}).values())
    if (path.stat().st_size > LARGE or numbers > MANY or path.stem in LONG) and not TEST_ALL:
        pytest.skip("large; runs with SARDONYX_TEST_ALL=1")
    same_everywhere(path, fed)


@pytest.mark.parametrize(
    "path", known(ZOO, "no exported models here; SARDONYX_ZOO names a folder"), ids=lambda p: p.stem
)
def test_exported_models(path: Path) -> None:
    same_everywhere(path, stored(path))


def test_an_encoder() -> None:
    same_everywhere(encoder(), feeds())
