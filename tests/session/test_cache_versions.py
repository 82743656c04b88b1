"""Caches that other versions of Sardonyx and of its dependencies made: none of their entries is used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx.parser
import pytest

import sardonyx
from sardonyx.session import cache_key

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[n, 3] x) => (float[n, 3] y) <float[3] c = {1.5, -2.0, 3.0}> { a = Mul(x, c) b = Relu(a) y = Add(b, c) }"""
PROGRAM = (
    "import sys, numpy as np, sardonyx as sx\n"
    "from sardonyx import cache\n"
    "session = sx.InferenceSession(sys.argv[1])\n"
    "y = session.run(None, {'x': np.arange(-3, 3, dtype='f').reshape(2, 3)})[0]\n"
    "cache.flush()\n"
    "print(sx.__version__, type(session._sess.engine).__name__, y.tolist())"
)
X = np.arange(-3, 3, dtype="f").reshape(2, 3)
C = np.array([1.5, -2, 3], "f")
BUILT, CACHED = "Engine", "CachedEngine"


def replace_in_place(path: Path, old: str, new: str) -> None:
    """Another text of the same size, at the same time."""
    info, text = path.stat(), path.read_text()
    assert old in text and len(old) == len(new)
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def test_a_cache_of_another_version_is_not_used(tmp_path: Path) -> None:
    """Installed in one place one after the other, with equal sizes and times of files, by turns."""
    site, model = tmp_path / "site", tmp_path / "model.onnx"
    source = Path(sardonyx.__file__).parent
    shutil.copytree(source, site / "sardonyx", ignore=shutil.ignore_patterns("__pycache__"))
    model.write_bytes(onnx.parser.parse_model(TEXT).SerializeToString())
    env = {**os.environ, "PYTHONPATH": str(site), "SARDONYX_CACHE": str(tmp_path / "cache")}
    env = {name: value for name, value in env.items() if name not in ("SARDONYX_VERIFY", "PYTHONDONTWRITEBYTECODE")}
    expected = (np.maximum(X * C, 0) + C).tolist()
    version = sardonyx.__version__
    other = version[:-1] + ("9" if version[-1] != "9" else "8")
    now = version
    for wanted, engine in ((version, BUILT), (version, CACHED), (other, BUILT), (other, CACHED), (version, CACHED)):
        if wanted != now:
            replace_in_place(site / "sardonyx" / "__init__.py", f'"{now}"', f'"{wanted}"')
            shutil.rmtree(site / "sardonyx" / "__pycache__", ignore_errors=True)
            now = wanted
        done = subprocess.run([sys.executable, "-c", PROGRAM, model], env=env, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (f"{wanted} {engine} {expected}\n", "")


@pytest.mark.parametrize("package", cache_key.PACKAGES)
@pytest.mark.parametrize("change", ["version", "time", "place"])
def test_another_version_of_a_dependency_is_another_key(
    package: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages are not imported, so what is found of them need not be what runs here."""
    for site in ("here", "there"):
        for name in cache_key.PACKAGES:
            (tmp_path / site / name).mkdir(parents=True)
            (tmp_path / site / name / "__init__.py").write_text("")
            os.utime(tmp_path / site / name / "__init__.py", (1, 1))
            (tmp_path / site / f"{name}-1.0.dist-info").mkdir()
    site_of = dict.fromkeys(cache_key.PACKAGES, "here")

    def find_spec(name: str) -> SimpleNamespace:
        return SimpleNamespace(origin=str(tmp_path / site_of[name] / name / "__init__.py"))

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    before = cache_key.versions.__wrapped__()
    assert cache_key.versions.__wrapped__() == before
    if change == "version":
        (tmp_path / "here" / f"{package}-1.0.dist-info").rename(tmp_path / "here" / f"{package}-1.1.dist-info")
    elif change == "time":
        os.utime(tmp_path / "here" / package / "__init__.py", (2, 2))
    else:
        site_of[package] = "there"
    assert cache_key.versions.__wrapped__() != before


@pytest.mark.parametrize("module", [np, sys, sardonyx], ids=["numpy", "python", "sardonyx"])
def test_another_version_of_what_is_imported_is_another_key(module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key.versions.__wrapped__()
    monkeypatch.setattr(module, "version" if module is sys else "__version__", "0.0.1")
    assert cache_key.versions.__wrapped__() != before
