"""What an outcome is worth beside the oracles' answers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fuzz import explained
from fuzz.cases import Case
from fuzz.compare import RANDOM, difference
from fuzz.execute import SOFT_S, Outcome, plain
from fuzz.oracle import Oracle


@dataclass
class Verdict:
    """``ok``, ``refused``, ``late``, ``unsettled``, ``alone`` (refused here only), or ``found``, with a signature."""

    kind: str
    signature: str = ""
    text: str = ""


def judged(case: Case, index: int, outcome: Outcome, oracle: Oracle | None) -> Verdict:
    """The verdict on one run. Without an oracle only what is wrong in itself is found."""
    run = case.runs[index]
    if outcome.kind == "found":
        return Verdict("found", f"{case.operator}: {outcome.signature}", outcome.text)
    if oracle is None or case.operator.split(".")[-1] in RANDOM:
        return Verdict(outcome.kind, outcome.signature, outcome.text)
    if outcome.kind == "late":
        theirs = oracle.ask("onnxruntime", case.model, run)
        if theirs[0] == "ok":
            return Verdict(
                "found", f"{case.operator}: slow: {plain(outcome.text)}", f"{outcome.text}\nonnxruntime answers in time"
            )
        return Verdict("late", "", outcome.text)
    theirs = oracle.ask("onnxruntime", case.model, run)
    if outcome.kind == "refused":
        if theirs[0] == "ok":
            return Verdict("alone", f"{case.operator}: {outcome.signature}", outcome.text)
        return Verdict("refused", outcome.signature, outcome.text)
    assert outcome.results is not None
    precision, kind = case.options.precision, run.kind
    if theirs[0] == "ok":
        why = difference(outcome.results, theirs[1], precision=precision, kind=kind)
        who = "onnxruntime"
    else:
        theirs = oracle.ask("reference", case.model, run)
        if theirs[0] != "ok":
            return Verdict("ok")
        why = difference(outcome.results, theirs[1], precision=precision, kind=kind)
        who = "the reference provider"
    if why is None:
        return slow(case, outcome)
    reason = explained.why(case, kind, why)
    if reason is not None:
        return Verdict("unsettled", "explained", reason)
    other = oracle.ask("onnx", case.model, run)
    if other[0] == "ok" and difference(theirs[1], other[1], precision=precision, kind=kind) is not None:
        agrees = difference(outcome.results, other[1], precision=precision, kind=kind) is None
        if who != "onnxruntime" and not agrees:
            pass  # compiled code and the reference provider are to agree, whatever onnx.reference says
        else:
            return Verdict("unsettled", f"{case.operator}: {'oracles disagree' if not agrees else 'onnx agrees'}", why)
    text = f"differs from {who}: {why}"
    return Verdict("found", f"{case.operator}: differs from {who}: {shape_of(why)} ({kind})", text)


def slow(case: Case, outcome: Outcome) -> Verdict:
    if outcome.seconds > SOFT_S * 2:
        return Verdict("found", f"{case.operator}: slow", f"{outcome.seconds:.1f} s of processor time")
    return Verdict("ok")


def shape_of(why: str) -> str:
    """The kind of a difference: which output, and whether type, shape or elements."""
    match = re.match(r"output (\d+): (.*)", why)
    if match is None:
        return "number of outputs"
    what = match.group(2)
    if "elements" in what:
        dtype = re.search(r"of \d+ (\S+) elements", what)
        return f"elements {dtype.group(1) if dtype else ''}"
    return what.split(" ")[0]
