"""Compares outcomes with the oracles' answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import onnx

from fuzz import explained
from fuzz.cases import Case, Run
from fuzz.compare import RANDOM, difference
from fuzz.execute import EMULATED, SOFT_S, Outcome, plain
from fuzz.oracle import Oracle


@dataclass
class Verdict:
    """``ok``, ``refused``, ``late``, ``unsettled``, ``alone`` (refused here only), or ``found``, with a signature."""

    kind: str
    signature: str = ""
    text: str = ""


SLOW_S = SOFT_S * EMULATED
"""Processor time of a build and a first run that is too much, kernels that are compiled for the first time included."""
BY_DATA = (b"NonZero", b"Unique", b"NonMaxSuppression", b"Compress", b"TopK", b"Loop", b"If")
"""Operators whose results' sizes, or whose ways, follow from data."""
ACCUMULATING = re.compile(
    "Norm|LRN|Conv|Pool|MatMul|Gemm|Einsum|Reduce|Softmax|Loss|Attention|RNN|LSTM|GRU|Resize|Upsample|GridSample|DFT|STFT"
    "|CumSum|CumProd|Mean|Sum|Det|Affine|RoiAlign|Col2Im|Embedding|ai.onnx.ml|training|Linear"
)
"""Operators that add up: what becomes of NaN, Inf and the largest numbers follows from the order."""


def accumulates(operator: str) -> bool:
    return ACCUMULATING.search(operator) is not None


def is_single(case: Case) -> bool:
    """Whether a case is of one operator, which it is named for."""
    return "+" not in case.operator and not case.name.startswith(("models/", "corpus/"))


def judged(case: Case, index: int, outcome: Outcome, oracle: Oracle | None) -> Verdict:
    """The verdict on one run. Without an oracle only what is wrong in itself is found."""
    run = case.runs[index]
    if outcome.kind == "found":
        subject = f"{case.operator}: " if is_single(case) else ""
        return Verdict("found", f"{subject}{outcome.signature}", outcome.text)
    if oracle is None or case.operator.split(".")[-1] in RANDOM:
        return Verdict(outcome.kind, outcome.signature, outcome.text)
    theirs = oracle.ask("onnxruntime", case.model, run)
    if outcome.kind == "late":
        if theirs[0] == "ok":
            text = f"{outcome.text}\nonnxruntime answers in time"
            return Verdict("found", f"{subject_of(case, None)}: slow: {plain(outcome.text)}", text)
        return Verdict("late", "", outcome.text)
    if outcome.kind == "refused":
        if theirs[0] == "ok":
            return Verdict("alone", f"{case.operator if is_single(case) else ''}: {outcome.signature}", outcome.text)
        return Verdict("refused", outcome.signature, outcome.text)
    assert outcome.results is not None
    return compared(case, run, outcome, outcome.results, theirs, oracle)


def compared(case: Case, run: Run, outcome: Outcome, results: list[Any], theirs: Any, oracle: Oracle) -> Verdict:
    """Our results compared with onnxruntime's, else the reference provider's; onnx.reference arbitrates."""
    is_wild = run.kind in ("extreme", "out")
    has_numbers = not is_wild or (is_single(case) and not accumulates(case.operator))

    def differs(a: list[Any], b: list[Any]) -> str | None:
        return difference(a, b, precision=case.options.precision, kind=run.kind, has_numbers=has_numbers)

    who = "onnxruntime"
    if theirs[0] != "ok":
        who, theirs = "the reference provider", oracle.ask("reference", case.model, run)
        if theirs[0] != "ok":
            return slow(case, outcome)
    why = differs(results, theirs[1])
    if why is None:
        return slow(case, outcome)
    subject = subject_of(case, why)
    maker = maker_of(case, why) if case.name.startswith("corpus/") else subject

    def agrees(other: str) -> bool:
        """Whether an oracle agrees with us, or a busy machine left it no time to answer."""
        answer = oracle.ask(other, case.model, run)
        return answer[0] == "late" or (answer[0] == "ok" and differs(results, answer[1]) is None)

    at = output_of(why)
    both = (None, None) if at is None else (results[at], theirs[1][at])
    reason = explained.why(explained.Difference(case, maker, run, why, *both, agrees))
    if reason is None and is_wild and any(name in case.model for name in BY_DATA):
        reason = "sizes that follow from data follow from NaN and the largest numbers too"
    if reason is not None:
        return Verdict("unsettled", f"{subject}: explained: {reason}", why)
    other = oracle.ask("onnx", case.model, run)
    if other[0] == "ok" and differs(theirs[1], other[1]) is not None:
        is_ours = differs(results, other[1]) is None
        if is_ours or who == "onnxruntime":
            return Verdict("unsettled", f"{subject}: {'onnx agrees' if is_ours else 'oracles disagree'}", why)
    what = kind_of(why)
    kind = f" ({run.kind})" if "elements" in what else ""
    return Verdict("found", f"{subject}: differs from {who}: {what}{kind}", f"differs from {who}: {why}")


def slow(case: Case, outcome: Outcome) -> Verdict:
    if outcome.seconds > SLOW_S:
        return Verdict("found", f"{subject_of(case, None)}: slow", f"{outcome.seconds:.1f} s of processor time")
    return Verdict("ok")


def subject_of(case: Case, why: str | None) -> str:
    """The operator of the case, or in a graph the one whose result differs."""
    return case.operator if is_single(case) else maker_of(case, why)


def output_of(why: str) -> int | None:
    """The number of the output that differs."""
    match = re.match(r"output (\d+):", why)
    return None if match is None else int(match.group(1))


def maker_of(case: Case, why: str | None) -> str:
    """The operator whose result differs."""
    at = output_of(why or "")
    if at is None:
        return "a graph"
    try:
        graph = onnx.load_from_string(case.model).graph
        name = graph.output[at].name
    except Exception:
        return "a graph"
    return next((n.op_type for n in graph.node if name in n.output), "an input")


def kind_of(why: str) -> str:
    """The kind of a difference: whether type, shape or elements, and of which type."""
    match = re.match(r"output (\d+): (.*)", why)
    if match is None:
        return "number of outputs"
    what = match.group(2)
    if "elements" in what:
        dtype = re.search(r"of \d+ (\S+) elements", what)
        return f"elements {dtype.group(1) if dtype else ''}"
    return what.split(" ")[0]
