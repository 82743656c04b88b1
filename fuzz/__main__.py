"""python -m fuzz FUZZER --seconds N; see README.md here."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from fuzz.fuzzers import FUZZERS, by_name
from fuzz.runner import BLOCK, CPUS, Plan, Runner, alone, report_lines, share_kernels


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzzes Sardonyx; see fuzz/README.md.")
    parser.add_argument("fuzzer", nargs="?", choices=[*FUZZERS, "all"])
    parser.add_argument("--seconds", type=float, help="how long to run")
    parser.add_argument("--cases", type=int, help="how many models of each fuzzer, instead of a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the first index")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--cpu", action="append", help=f"an instruction set; several may be given; by default all of {', '.join(CPUS)}"
    )
    parser.add_argument("--keep", type=Path, help="a folder for findings")
    parser.add_argument(
        "--replay", nargs="+", metavar="FILE", help="files of findings, or names such as operators/0/17"
    )
    parser.add_argument("--block", type=int, default=BLOCK, help="models that one worker runs on one instruction set")
    parser.add_argument("--strict", action="store_true", help="a refusal where onnxruntime answers is a finding too")
    parser.add_argument("--missing", action="store_true", help="list the operators that nothing generates")
    parser.add_argument("--planted", action="store_true", help="check that faults put in on purpose are seen")
    options = parser.parse_args(arguments)
    if options.missing or options.planted:
        return checks(options.missing)
    if options.replay:
        return replay(options.replay, options.cpu)
    if options.fuzzer is None:
        parser.error("which fuzzer?")
    fuzzers = FUZZERS if options.fuzzer == "all" else (options.fuzzer,)
    seconds = options.seconds if options.seconds or options.cases else 60.0
    plan = Plan(
        fuzzers,
        options.seed,
        seconds,
        options.cases,
        options.workers,
        tuple(options.cpu or CPUS),
        options.keep,
        options.block,
        options.first,
    )
    runner = Runner(plan)
    summary = runner.run()
    print("\n".join(report_lines(summary, runner.line())[: 400 if options.keep is None else 60]))
    return min(1, len(summary.findings) + (len(summary.alone) if options.strict else 0))


def checks(is_about_operators: bool) -> int:
    if is_about_operators:
        from fuzz.operators import missing

        wrong = [".".join(key) for key in missing()]
    else:
        from fuzz.planted import check

        wrong = check()
    print("\n".join(wrong))
    return min(1, len(wrong))


def replay(files: list[str], cpus: list[str] | None) -> int:
    from fuzz.cases import load

    found = 0
    share_kernels()
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            case = load(Path(file)) if Path(file).exists() else by_name(file)
            for cpu in cpus or [case.options.cpu]:
                verdict = alone(case.with_options(cpu=None if cpu == "host" else cpu), Path(folder))
                found += verdict.kind == "found"
                print(f"{file} {cpu or 'host'}: {verdict.kind} {verdict.signature}\n{verdict.text}")
    return min(1, found)


if __name__ == "__main__":
    sys.exit(main())
