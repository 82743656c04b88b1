"""Starts workers, watches them, knows which case killed one, replays it alone, and keeps what was found."""

from __future__ import annotations

import collections
import contextlib
import gc
import hashlib
import os
import pickle
import re
import select
import signal
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.cases import Case
from fuzz.execute import Watch
from fuzz.fuzzers import case_of, ready
from fuzz.judge import Verdict
from fuzz.oracle import Oracle
from fuzz.reduce import reduced
from fuzz.worker import Report, Slot, settle, tried, work

HARD_S = 10.0
"""Processor time of a build or a run after which a worker is stopped; other programs may share its core."""
CONFIRM_S = 240.0
"""How long findings are made smaller, at most."""
REDUCED = ("graphs", "models", "binding")
QUIET_S = 60.0
"""How long a worker may wait without working."""
BLOCK = 150
CPUS = ("host", "sapphirerapids", "skylake-avx512", "haswell", "x86-64", "neoverse-n1")


@dataclass
class Plan:
    """What to run: fuzzers in rotation, up to a number of cases or seconds."""

    fuzzers: tuple[str, ...]
    seed: int = 0
    seconds: float | None = None
    models: int | None = None
    workers: int = 1
    cpus: tuple[str, ...] = CPUS
    keep: Path | None = None
    block: int = BLOCK
    first: int = 0


@dataclass
class Finding:
    signature: str
    text: str
    case: Case
    run: int
    count: int = 1
    is_reproduced: bool | None = None

    @property
    def file(self) -> str:
        digest = hashlib.sha256(self.signature.encode()).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9.]+', '-', self.case.operator or 'case')}-{digest}"


@dataclass
class Summary:
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    by_fuzzer: collections.Counter[str] = field(default_factory=collections.Counter)
    findings: dict[str, Finding] = field(default_factory=dict)
    alone: collections.Counter[str] = field(default_factory=collections.Counter)
    """Refusals where onnxruntime answers, by signature."""
    unsettled: collections.Counter[str] = field(default_factory=collections.Counter)
    examples: dict[str, str] = field(default_factory=dict)
    operators: set[str] = field(default_factory=set)
    compiled: set[str] = field(default_factory=set)
    models: int = 0
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        return sum(self.counts.values())


@dataclass
class _Child:
    pid: int
    pipe: int
    slot: Slot
    fuzzer: str
    indices: range
    cpu: str | None
    errors: Path
    buffer: bytearray = field(default_factory=bytearray)
    is_done: bool = False
    is_killed: bool = False
    spent_s: float = 0.0
    quiet_s: float = 0.0


class Runner:
    def __init__(self, plan: Plan, log: Any = sys.stdout) -> None:
        self.plan, self.log = plan, log
        self.summary = Summary()
        self._seen: dict[str, set[str]] = collections.defaultdict(set)
        self._children: list[_Child] = []
        self._blocks = self._make_blocks()
        self._redo: list[tuple[str, range, str | None]] = []
        self._folder = Path(tempfile.mkdtemp(prefix="sardonyx-fuzz-"))

    def _make_blocks(self) -> Any:
        """Blocks of indices, with fuzzers and instruction sets in rotation."""
        plan, number = self.plan, 0
        starts = dict.fromkeys(plan.fuzzers, plan.first)
        end = None if plan.models is None else plan.first + plan.models
        while True:
            live = [f for f in plan.fuzzers if end is None or starts[f] < end]
            if not live:
                return
            for fuzzer in live:
                start = starts[fuzzer]
                stop = start + plan.block if end is None else min(start + plan.block, end)
                starts[fuzzer] = stop
                cpu = plan.cpus[number % len(plan.cpus)]
                yield fuzzer, range(start, stop), None if cpu == "host" else cpu
                number += 1

    def run(self) -> Summary:
        share_kernels()
        ready(self.plan.fuzzers)
        _warm_up()
        gc.collect()
        gc.freeze()
        begin = self._begin = time.monotonic()
        end = begin + self.plan.seconds if self.plan.seconds is not None else None
        shown = begin
        try:
            while True:
                is_over = end is not None and time.monotonic() > end
                while not is_over and len(self._children) < self.plan.workers and self._start():
                    pass
                if not self._children or is_over:
                    break
                self._wait()
                self.summary.seconds = time.monotonic() - begin
                if time.monotonic() > shown + 30:
                    shown = time.monotonic()
                    print(self.line(), file=self.log, flush=True)
        finally:
            for child in self._children:
                self._end(child)
        self.summary.seconds = time.monotonic() - begin
        self._confirm()
        self._write()
        return self.summary

    def line(self) -> str:
        s = self.summary
        counts = ", ".join(f"{k} {n:,}" for k, n in s.counts.most_common())
        rate = s.cases / max(s.seconds, 1e-9)
        took = f"{s.cases:,} cases of {s.models:,} models in {s.seconds:.0f} s ({rate:.0f}/s)"
        return f"{took}: {counts}; {len(s.findings)} findings"

    # -- children

    def _start(self) -> bool:
        fuzzer, indices, cpu = self._redo.pop(0) if self._redo else next(self._blocks, (None, None, None))
        if fuzzer is None or indices is None:
            return False
        slot, (read, write) = Slot(), os.pipe()
        errors = self._folder / f"stderr-{time.monotonic_ns()}"
        seen = self._seen[fuzzer] if self.plan.models is None else None
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(read)
                _redirect(errors)
                work(fuzzer, self.plan.seed, indices, cpu, slot, write, seen)
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write)
        self._children.append(_Child(pid, read, slot, fuzzer, indices, cpu, errors))
        return True

    def _wait(self) -> None:
        ready_pipes, _, _ = select.select([c.pipe for c in self._children], [], [], 0.5)
        for child in list(self._children):
            if child.pipe in ready_pipes:
                content = os.read(child.pipe, 1 << 20)
                if content:
                    child.buffer += content
                    self._take(child)
                else:
                    self._ended(child)
            else:
                index, _, _, phase, since = child.slot.read()
                if index < 0 or child.is_killed or phase not in ("build", "run"):
                    continue
                child.quiet_s = child.quiet_s + 0.5 if processor_s(child.pid) == child.spent_s else 0.0
                child.spent_s = processor_s(child.pid)
                if child.spent_s - since > HARD_S or child.quiet_s > QUIET_S:
                    child.is_killed = True
                    os.kill(child.pid, signal.SIGKILL)

    def _take(self, child: _Child) -> None:
        while len(child.buffer) >= 8:
            (size,) = struct.unpack("<Q", child.buffer[:8])
            if len(child.buffer) < 8 + size:
                return
            report: Report | None = pickle.loads(bytes(child.buffer[8 : 8 + size]))
            del child.buffer[: 8 + size]
            if report is None:
                child.is_done = True
            else:
                self._count(child, report)

    def _count(self, child: _Child, report: Report) -> None:
        s = self.summary
        s.models += 1
        s.operators.add(report.operator)
        self._seen[child.fuzzer] |= report.reached
        s.compiled |= {key.partition("@")[0] for key in report.reached if "@CPUExecutionProvider" in key}
        for run, verdict in enumerate(report.verdicts):
            s.counts[verdict.kind] += 1
            s.by_fuzzer[child.fuzzer] += 1
            name = f"{child.fuzzer}/{self.plan.seed}/{report.index}" + (
                "" if report.mutation is None else f"+{report.mutation}"
            )
            if verdict.kind == "found":
                self._found(child, report.index, report.mutation, run, verdict)
            elif verdict.kind in ("alone", "unsettled"):
                tally = s.alone if verdict.kind == "alone" else s.unsettled
                tally[verdict.signature] += 1
                s.examples.setdefault(verdict.signature, f"{name} run {run}: {verdict.text[:300]}")

    def _found(self, child: _Child, index: int, mutation: int | None, run: int, verdict: Verdict) -> None:
        known = self.summary.findings.get(verdict.signature)
        if known is not None:
            known.count += 1
            return
        case = case_of(child.fuzzer, self.plan.seed, index, mutation).with_options(cpu=child.cpu)
        self.summary.findings[verdict.signature] = Finding(verdict.signature, verdict.text, case, run)
        print(
            f"FOUND {verdict.signature}\n  {case.name} run {run} on {child.cpu or 'host'}: {verdict.text[-300:]}",
            file=self.log,
            flush=True,
        )

    def _ended(self, child: _Child) -> None:
        """A worker has gone: it is done, or its case killed it, and the rest of its block goes to another."""
        _, status = os.waitpid(child.pid, 0)
        os.close(child.pipe)
        self._children.remove(child)
        errors = child.errors.read_text(errors="replace")[-3000:] if child.errors.exists() else ""
        child.errors.unlink(missing_ok=True)
        if child.is_done:
            return
        index, mutation, run, phase, _ = child.slot.read()
        if index < 0:
            raise RuntimeError(f"a worker did not start: {errors}")
        self.summary.counts["died"] += 1
        rest = range(index + 1, child.indices.stop)
        if rest:
            self._redo.append((child.fuzzer, rest, child.cpu))
        if phase == "make" or (phase == "judge" and not child.is_killed):
            signature = f"the fuzzer itself: {phase}: {errors.strip().splitlines()[-1] if errors.strip() else status}"
            self._found(child, index, mutation, run, Verdict("found", signature, errors))
            return
        case = case_of(child.fuzzer, self.plan.seed, index, mutation)
        how = (
            "hang"
            if child.is_killed
            else f"crash by signal {status & 0x7F}"
            if status & 0x7F
            else f"exit {status >> 8}"
        )
        self._found(child, index, mutation, run, Verdict("found", f"{case.operator}: {how} in {phase}", errors))

    def _end(self, child: _Child) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        os.close(child.pipe)
        child.errors.unlink(missing_ok=True)

    # -- findings

    def _confirm(self) -> None:
        """Replay each finding alone, and make those of graphs and models smaller."""
        end = time.monotonic() + CONFIRM_S
        for finding in self.summary.findings.values():
            verdict = alone(finding.case, self._folder)
            finding.is_reproduced = verdict.kind == "found"
            if finding.is_reproduced and finding.case.name.split("/")[0] in REDUCED and time.monotonic() < end:
                wanted = what(verdict)
                finding.case = reduced(
                    finding.case, finding.run, lambda c, wanted=wanted: what(alone(c, self._folder)) == wanted
                )
                finding.run = 0 if len(finding.case.runs) == 1 else finding.run
            if not finding.is_reproduced and any(w in finding.signature for w in (": slow", ": hang", ": memory")):
                self.summary.counts["slow once"] += 1
        once = [k for k, f in self.summary.findings.items() if not f.is_reproduced and re.search(": (slow|hang)", k)]
        for key in once:
            del self.summary.findings[key]

    def _write(self) -> None:
        if self.plan.keep is None:
            return
        self.plan.keep.mkdir(parents=True, exist_ok=True)
        for finding in self.summary.findings.values():
            finding.case.save(self.plan.keep / f"{finding.file}.zip")
            (self.plan.keep / f"{finding.file}.txt").write_text(described(finding))
        text = "\n".join(report_lines(self.summary, self.line()))
        (self.plan.keep / "summary.txt").write_text(text + "\n")


def what(verdict: Verdict) -> str:
    """A verdict without the operator: what a smaller case must show too."""
    if verdict.kind != "found":
        return ""
    return verdict.signature.partition(": ")[2] if ": differs" in verdict.signature else verdict.signature


def described(f: Finding) -> str:
    from fuzz.show import shown

    return (
        f"{f.signature}\n\ncase {f.case.name}, run {f.run}, {f.count} times, reproduced alone: {f.is_reproduced}\n"
        f"options: {f.case.options}\n\n{f.text}\n\n{shown(f.case, f.run)}\n"
    )


def report_lines(s: Summary, line: str) -> list[str]:
    lines = [line, ""]
    lines += [
        f"FOUND {f.count:6} {f.file} {f.signature} ({f.case.name}, run {f.run}, reproduced: {f.is_reproduced})"
        for f in sorted(s.findings.values(), key=lambda f: -f.count)
    ]
    lines += ["", "refused here only:"]
    lines += [f"  {n:6} {k}    {s.examples.get(k, '')}" for k, n in s.alone.most_common(300)]
    lines += ["", "unsettled:"]
    lines += [f"  {n:6} {k}    {s.examples.get(k, '')}" for k, n in s.unsettled.most_common(300)]
    return lines


def share_kernels() -> None:
    """Keep compiled kernels where all workers, and later runs, find them: a cache of the fuzzers' own."""
    os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"sardonyx-fuzz-{os.getuid()}")


def processor_s(pid: int) -> float:
    """The processor time that a child has taken, in all of its threads."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _redirect(errors: Path) -> None:
    out = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)


def _warm_up() -> None:
    """Import what workers need, without starting a thread."""
    import importlib
    import pkgutil

    import sardonyx

    names = [m.name for m in pkgutil.walk_packages(sardonyx.__path__, "sardonyx.", onerror=lambda name: None)]
    skipped = ("sardonyx.shim", "sardonyx.transformers", "sardonyx.backend", "sardonyx.capi", "sardonyx.datasets")
    for name in [*(n for n in names if not n.startswith(skipped)), "onnx.reference", "onnxruntime"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def alone(case: Case, folder: Path, *, with_oracle: bool = True, limit_s: float = HARD_S + 5) -> Verdict:
    """The verdict on a case in a process of its own; the worst of its runs."""
    slot, (read, write) = Slot(), os.pipe()
    errors = folder / f"alone-{time.monotonic_ns()}"
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            _redirect(errors)
            oracle = Oracle() if with_oracle else None
            settle(case.options.cpu)
            report = tried(case, Watch(), oracle, slot, (0, None))
            worst = next((v for v in report.verdicts if v.kind == "found"), report.verdicts[-1])
            os.write(write, pickle.dumps(worst)[:60_000])
            if oracle is not None:
                oracle.close()
        finally:
            os._exit(0)
    os.close(write)
    deadline, content, is_hung = time.monotonic() + 120, b"", False
    while True:
        if not select.select([read], [], [], 0.2)[0]:
            if (processor_s(pid) > limit_s or time.monotonic() > deadline) and not is_hung:
                is_hung = True
                os.kill(pid, signal.SIGKILL)
            continue
        part = os.read(read, 1 << 16)
        if not part:
            break
        content += part
    os.close(read)
    _, status = os.waitpid(pid, 0)
    text = errors.read_text(errors="replace")[-3000:]
    errors.unlink(missing_ok=True)
    if content:
        verdict: Verdict = pickle.loads(content)
        return verdict
    how = "hang" if is_hung else f"crash by signal {status & 0x7F}"
    return Verdict("found", f"{case.operator}: {how} in {slot.read()[3]}", text)
