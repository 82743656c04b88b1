"""How long do whole programs take, of libraries that carry their models in their wheels, with Sardonyx in the place of
onnxruntime, and are their results the same?

    python benchmarks/programs.py FOLDER [--rounds 5] [--only NAME ...] [--install] [--processor-time]
        [--json FILE] [--markdown FILE]

FOLDER keeps a virtual environment, into which the libraries of ``benchmarks.program_cases`` are installed (about 2 GB,
with ``--install``, or if there is none), and the files that programs read. Each program runs in a process of its own:
with onnxruntime, and with Sardonyx by ``python -m sardonyx.shim``, nothing else being set; the cache is the one in the
user's cache folder, which is FOLDER/home here and empty at first. The first run of each engine is not counted but
shown; the rounds that follow alternate, and which engine begins alternates too. A ratio is the median over rounds of
onnxruntime's time / ours, with a bootstrap interval. Memory is the most that the process ever had.

The exit status is 1 if a program fails or has other results, or if it is slower than with onnxruntime by more than
10 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks import page
from benchmarks.compare.report import table as aligned
from benchmarks.program_cases import COMMON, INPUTS, PROGRAMS, Program
from sardonyx.bench.statistics import Ratio, geometric_mean, paired_ratio

OURS, THEIRS = "sardonyx", "onnxruntime"
ENGINES = (THEIRS, OURS)
SLOWER = 1.1
"""A program may take so many times as long as with onnxruntime."""
TIMEOUT_S = 300
PRELUDE = """
import json
import numpy as np

def plain(value):
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)

def tell(*values):
    print("\\n" + json.dumps(values, default=plain))
"""


@dataclass
class Run:
    seconds: float
    """Wall clock; processor time, which a busy machine changes less, with ``--processor-time``."""
    rss_nbytes: int
    result: str
    error: str = ""


@dataclass
class Figures:
    name: str
    first: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {OURS: [], THEIRS: []})
    rss_nbytes: dict[str, int] = field(default_factory=lambda: {OURS: 0, THEIRS: 0})
    problem: str = ""
    is_excluded: bool = False
    """Whether it does not run with onnxruntime either."""

    @property
    def ratio(self) -> Ratio:
        return paired_ratio(self.seconds[THEIRS], self.seconds[OURS])

    @property
    def is_bad(self) -> bool:
        return not self.is_excluded and bool(self.problem or self.ratio.value * SLOWER < 1)


def install(folder: Path, programs: Sequence[Program]) -> None:
    """Make the virtual environment, with the engine's dependencies, onnxruntime and the libraries."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    peer = [name for name in project["optional-dependencies"]["bench"] if name.startswith(THEIRS)]
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    pip = [str(python_of(folder)), "-m", "pip", "install", "-q"]
    subprocess.run([*pip, *project["dependencies"], *peer, *COMMON], check=True)
    for package in sorted({package for program in programs for package in program.packages}):
        if subprocess.run([*pip, "--no-deps", package]).returncode:
            print(f"{package} cannot be installed", file=sys.stderr)


def python_of(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def command(folder: Path, program: Program, engine: str, scripts: Path) -> list[str]:
    target = list(program.argv)
    if program.code:
        script = scripts / f"program_{program.name.replace('-', '_')}.py"  # no name of a library
        script.write_text(PRELUDE + program.code)
        target = [str(script)]
    else:
        target = ["-m", *target]
    shim = ["-m", "sardonyx.shim"] if engine == OURS else []
    return [str(python_of(folder)), *shim, *target]


def run(folder: Path, program: Program, engine: str, scripts: Path, is_processor_time: bool = False) -> Run:
    """One process, from its start to its end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(folder / "home")}
    for name in ("SARDONYX_CACHE", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)
    work = folder / "work"
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command(folder, program, engine, scripts), cwd=work, env=environment, stdout=out, stderr=errors
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        if is_processor_time:
            seconds = used.ru_utime + used.ru_stime
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace").strip())
    if process.returncode:
        return Run(seconds, 0, "", texts[1][-1000:] or f"exit status {process.returncode}")
    if program.result:
        import hashlib

        result = json.dumps([hashlib.sha256((work / program.result).read_bytes()).hexdigest()])
    else:
        result = texts[0].rpartition("\n")[2]
    return Run(seconds, used.ru_maxrss * 1024, result)


def is_same(a: Any, b: Any, tolerance: float) -> bool:
    """Whether results are the same but for roundings."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b or abs(a - b) <= tolerance * max(1, abs(a))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(is_same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_same(a[key], b[key], tolerance) for key in a)
    return bool(a == b)


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def measure(folder: Path, program: Program, rounds: int, scripts: Path, is_processor_time: bool) -> Figures:
    figures, results = Figures(program.name), {}
    for engine in ENGINES:
        done = run(folder, program, engine, scripts, is_processor_time)
        if done.error:
            figures.problem, figures.is_excluded = f"{engine}: {done.error}", engine == THEIRS
            return figures
        figures.first[engine], results[engine] = done.seconds, parsed(done.result)
    for i in range(rounds):
        for engine in ENGINES[:: 1 if i % 2 else -1]:
            done = run(folder, program, engine, scripts, is_processor_time)
            figures.seconds[engine].append(done.seconds)
            figures.rss_nbytes[engine] = max(figures.rss_nbytes[engine], done.rss_nbytes)
            if done.error or not is_same(results[THEIRS], parsed(done.result), program.tolerance):
                figures.problem = done.error or f"{engine}: another result: {done.result} for {results[THEIRS]}"
    return figures


def rows_of(found: Sequence[Figures]) -> list[list[str]]:
    rows = [["program", "onnxruntime s", "Sardonyx s", "times as fast", "first run s", "memory MB", "results"]]
    for each in found:
        if not each.seconds[OURS]:
            rows.append([each.name, "", "", "", "", "", "not run"])
            continue
        times = [f"{statistics.median(each.seconds[engine]):.2f}" for engine in ENGINES]
        first = " / ".join(f"{each.first[engine]:.2f}" for engine in ENGINES)
        memory = " / ".join(f"{each.rss_nbytes[engine] / 1e6:.0f}" for engine in ENGINES)
        rows.append([each.name, *times, str(each.ratio), first, memory, "differ" if each.problem else "same"])
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--processor-time", action="store_true", help="what all threads computed, not the clock's time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(argv)
    folder = options.folder.resolve()
    programs = [program for program in PROGRAMS if not options.only or program.name in options.only]
    if options.install or not python_of(folder).exists():
        install(folder, programs)
    (folder / "work").mkdir(parents=True, exist_ok=True)
    subprocess.run([str(python_of(folder)), "-c", INPUTS], cwd=folder / "work", check=True)
    found = []
    with tempfile.TemporaryDirectory() as scripts:
        for program in programs:
            found.append(measure(folder, program, options.rounds, Path(scripts), options.processor_time))
            print(" ".join(rows_of(found[-1:])[1]), flush=True)
            if found[-1].problem:
                print(f"    {found[-1].problem}", file=sys.stderr)
    rows = rows_of(found)
    print(aligned(rows[0], rows[1:]))
    timed = [each.ratio.value for each in found if each.seconds[OURS]]
    if timed:
        print(f"{len(timed)} programs, geometric mean {geometric_mean(timed):.2f}, least {min(timed):.2f}")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    note = "processor time" if options.processor_time else ""
    page.write(options.markdown, f"{page.head('Programs', (THEIRS,), note)}\n{aligned(rows[0], rows[1:])}")
    return int(any(each.is_bad for each in found))


if __name__ == "__main__":
    sys.exit(main())
