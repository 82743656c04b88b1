"""Every Python block of the documents runs, in order, one namespace per document.

A block that begins with a comment ``# NAME.py`` is a program that the page's commands run.
"""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(?!# \w+\.py\n)(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_python_blocks_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "demo", tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    text = document.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": document.stem}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], str(document), "exec"), namespace)


def test_the_tutorial_runs(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("skl2onnx")
    renew = runpy.run_path(str(ROOT / "docs" / "commands" / "renew.py"))
    text = renew["renewed_page"]((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"), tmp_path)
    assert len(re.findall(r"^accuracy: 0\.9\d+$", text, re.MULTILINE)) == 2
    assert "\nlabel agrees with" in text and "\nprobabilities agrees with" in text
    assert "\nevery rewrite gives the same results\n" in text and "\nThe budget is met" in text
    assert "\nSettings saved to digits.config.json" in text and "\nsardonyx: " not in text


def test_readme_shows_code_that_runs() -> None:
    assert BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("document", [*ROOT.glob("*.md"), *DOCUMENTS[1:]], ids=lambda p: p.name)
def test_links_point_at_files(document: Path) -> None:
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("name", ["architecture", "cpu-provider", "decisions", "glossary"])
def test_files_that_documents_name_exist(name: str) -> None:
    """Paths with a folder, below the package, the CPU provider or the repository; ``cpu/`` means the provider."""
    package = ROOT / "src" / "sardonyx"
    places = [
        ROOT,
        ROOT / "src",
        package,
        package / "providers",
        package / "providers" / "cpu",
        package / "providers" / "cpu" / "kernels",
    ]
    paths = re.findall(r"`([\w/*]+/[\w*]+\.py)`", (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"))
    assert not [path for path in paths if not any(any(place.glob(path)) for place in places)]
