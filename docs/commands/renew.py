"""Runs the commands that pages show, those of this folder by default, and writes what they print into the pages.

    python docs/commands/renew.py [PAGE...]

A block begins with ```console. A line of it that begins with ``$ sardonyx``, ``$ python`` or ``$ cat`` is a command,
and what it prints replaces the lines up to the next one. Commands run in a folder with the demo's model and data,
``wide.onnx``, a perceptron in float64, and the page's Python blocks that begin with a comment ``# NAME.py``; 80 columns
wide. Other lines with ``$`` are left alone, with what follows them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = ("$ sardonyx ", "$ python ", "$ cat ")
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)


def output(command: str, folder: Path) -> str:
    python = shlex.quote(sys.executable)
    words = shlex.split(re.sub("^(python|sardonyx)", lambda m: python + " -m sardonyx" * (m[1] == "sardonyx"), command))
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": paths, "XDG_CACHE_HOME": str(folder / ".cache")}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    lines = (done.stdout + done.stderr).replace(f"{folder}/", "~/").splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def write_wide(path: Path) -> None:
    """A perceptron as numpy makes it by default, in float64."""
    sizes = (256, 1024, 1024, 16)
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i, (rows, columns) in enumerate(pairwise(sizes)):
        weights.append(numpy_helper.from_array(rng.standard_normal((rows, columns)) / np.sqrt(rows), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"h{i}"], f"product{i}"))
        nodes.append(helper.make_node("Tanh", [f"h{i}"], [f"y{i}"], f"tanh{i}"))
        x = f"y{i}"
    ends = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["batch", n]) for name, n in (("x", 256), (x, 16))]
    graph = helper.make_graph(nodes, "wide", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def renewed(block: str, folder: Path) -> str:
    found = []
    starts = [match.start() for match in COMMAND.finditer(block)]
    for start, end in zip(starts, [*starts[1:], len(block)], strict=True):
        line, _, old = block[start:end].partition("\n")
        is_ours = f"{line} ".startswith(RUN)
        found.append(f"{line}\n{output(line[2:], folder) if is_ours else old}")
    return block[: starts[0] if starts else None] + "".join(found)


def renewed_page(text: str, folder: Path) -> str:
    """A page with what its commands print in a folder that begins with the usual files."""
    for name in ("digits.onnx", "heldout.npz"):
        shutil.copy(ROOT / "demo" / name, folder / name)
    write_wide(folder / "wide.onnx")
    for program in PROGRAM.finditer(text):
        (folder / program[2]).write_text(program[1], encoding="utf-8")
    return BLOCK.sub(lambda match: f"```console\n{renewed(match[1], folder)}```", text)


def main() -> None:
    pages = [Path(name).resolve() for name in sys.argv[1:]] or sorted(HERE.glob("*.md"))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as made:
            new = renewed_page(text, Path(made))
        page.write_text(new, encoding="utf-8")
        print(f"{page.name}: {'renewed' if new != text else 'as it was'}")


if __name__ == "__main__":
    main()
