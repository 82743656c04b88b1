"""Results as text: Markdown tables, which read well on a screen too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sardonyx.bench.statistics import Ratio, geometric_mean, ratio_of_medians

Result = dict[str, Any]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A padded Markdown table: the first column to the left, figures to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(2, *(len(line[i]) for line in lines)) for i in range(len(header))]
    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]
    return "\n".join(
        "| "
        + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(x, widths, strict=True)))
        + " |"
        for x in (lines[0], rule, *lines[1:])
    )


def case_text(name: str, result: Result) -> str:
    """One case: who took how long, how exactly, and how near to the limit; then the ratios."""
    cost, limits, entries = result["cost"], result["limits"], result["contestants"]
    count = max(len(e["rounds"]) for e in entries.values())
    head = f"{name}: {cost['flops'] / 1e9:.3g} GFLOP, {cost['weights'] / 1e6:.3g} M weights; "
    head += f"{result['threads']} threads, {count} rounds; limit {limit_text(limits)}"
    rows = [
        [
            n,
            ms(e["median_s"]),
            ms(e["low_s"]),
            ms(e["high_s"]),
            ms(e["first_s"]),
            error(e["error"]),
            percent(e["share"]),
        ]
        for n, e in entries.items()
    ]
    text = [head, "", table(["", "median ms", "10 %", "90 %", "first", "error", "of the limit"], rows), ""]
    for ours, against in result["ratios"].items():
        told = ", ".join(f"{Ratio(**r)} times {peer}'s" for peer, r in against.items())
        text += [f"speed of {ours}: {told}"] if told else []
    text += [step_text(n, e) for n, e in entries.items() if "reading_s" in e]
    text += [note for note in map(placement, entries, entries.values()) if note]
    text += [f"{name} FAILED: {why}" for name, why in result["failed"].items()]
    return "\n".join(text) + "\n"


def step_text(name: str, entry: Result) -> str:
    read = entry["reading_s"]
    return (
        f"a step of {name}: {entry['median_s'] / read:.2f} times the {ms(read)} ms of reading the weights once; "
        f"{entry['first_s'] / read:.2f} times in the session's first generation"
    )


def placement(name: str, entry: Result) -> str:
    """Says so where a contestant of ours leaves nodes to the reference provider."""
    nodes = entry.get("nodes", {})
    left = sum(count for provider, count in nodes.items() if "reference" in provider.lower())
    return f"{name}: {left} of {sum(nodes.values())} nodes run on the reference provider" if left else ""


def starts_text(name: str, result: Result) -> str:
    rows = [
        [
            n,
            *(f"{of[kind][key]:.3f}" for key in ("open_s", "first_s") for kind in ("cold", "warm")),
            f"{of['warm']['import_s']:.3f}",
            *(f"{of[kind]['peak_mb']:.0f}" for kind in ("cold", "warm")),
        ]
        for n, of in result["contestants"].items()
    ]
    header = ["", "open, cold s", "warm s", "first run, cold s", "warm s", "import s", "peak MB, cold", "warm"]
    return f"{name}, start in a fresh process, median of {result['times']}\n\n{table(header, rows)}\n"


def scaling_text(name: str, results: Sequence[Result]) -> str:
    """Times by threads, and how many times one thread's rate each number of threads reaches."""
    base = results[0]
    names = [n for n in base["contestants"] if all(n in r["contestants"] for r in results)]
    rows = []
    for r in results:
        row = [str(r["threads"]), *(ms(r["contestants"][n]["median_s"]) for n in names)]
        gains = [base["contestants"][n]["median_s"] / r["contestants"][n]["median_s"] for n in names]
        peak = r["limits"]["f32_flops"] / base["limits"]["f32_flops"]
        rows.append([*row, *(f"{g:.2f}" for g in gains), f"{peak:.2f}", *(percent(g / peak) for g in gains)])
    header = ["threads", *(f"{n} ms" for n in names), *(f"{n} gain" for n in names), "limit's gain"]
    lines = [f"{name} by threads; the limit is {base['limits']['source']}", ""]
    lines += [table([*header, *(f"{n} of it" for n in names)], rows), ""]
    for n in names:
        same = len({r["contestants"][n]["digest"] for r in results}) == 1
        lines.append(f"{n}: answers {'are bit-identical' if same else 'DIFFER'} over thread counts")
    return "\n".join(lines) + "\n"


def summary_text(cases: dict[str, Result]) -> str:
    """All cases at once: times, errors, shares, and ratios with their intervals."""
    names = list(dict.fromkeys(n for r in cases.values() for n in r["contestants"]))
    text = []
    for title, key, show in SUMMARY:
        rows = [
            [c, *(show(r["contestants"][n][key]) if n in r["contestants"] else "" for n in names)]
            for c, r in cases.items()
        ]
        text += [f"## {title}", "", table(["", *names], rows), ""]
    text += ["## Times as fast as the peers, with the 95 % interval", "", "The lower bound counts.", ""]
    for ours in dict.fromkeys(n for r in cases.values() for n in r["ratios"]):
        text += [ratios_table(ours, {c: r["ratios"][ours] for c, r in cases.items() if ours in r["ratios"]}), ""]
    return "\n".join(text)


def ratios_table(ours: str, ratios: dict[str, Result]) -> str:
    """Case by case, one of our contestants against every peer."""
    peers = list(dict.fromkeys(p for against in ratios.values() for p in against))
    rows = [[c, *(str(Ratio(**against[p])) if p in against else "" for p in peers)] for c, against in ratios.items()]
    means = [geometric_mean(against[p]["value"] for against in ratios.values() if p in against) for p in peers]
    return table([ours, *peers], [*rows, ["geometric mean", *(f"{m:.2f}" for m in means)]])


def document(results: Result) -> str:
    """The whole run, for benchmarks/results."""
    machine, versions = results["machine"], results["versions"]
    text = [
        "# Sardonyx beside its peers",
        "",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['system']}",
        f"- Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}",
        f"- Command: `{results['command']}`",
        f"- Date: {results['made'][:10]}",
        "",
    ]
    if results["absent"]:
        text += [*(f"Not here: {name}: {why}." for name, why in results["absent"].items()), ""]
    if results["cases"]:
        text += [summary_text(results["cases"]), "## Case by case", ""]
        text += [case_text(name, r) for name, r in results["cases"].items()]
    if results["starts"]:
        text += ["## Start and memory", "", *(starts_text(name, r) for name, r in results["starts"].items())]
    if results["scaling"]:
        text += ["## Scaling", "", *(scaling_text(name, r) for name, r in results["scaling"].items())]
    text += [f"Left out: {line}" for line in results["skipped"]]
    return "\n".join(text).rstrip() + "\n"


def comparison(old: Result, new: Result) -> str:
    """This run beside an earlier one; the last column takes out how the machine changed, as onnxruntime saw it."""
    rows = []
    for case, result in new["cases"].items():
        before = old["cases"].get(case, {"contestants": {}})["contestants"]
        for name, entry in result["contestants"].items():
            if name not in before:
                continue
            gain = ratio_of_medians(before[name]["rounds"], entry["rounds"])
            rows.append([case, name, ms(before[name]["median_s"]), ms(entry["median_s"]), str(gain)])
            rows[-1].append(_steadied(before, result["contestants"], name))
            rows[-1].append("" if not gain.is_settled else "faster" if gain.value > 1 else "slower")
    header = ["case", "contestant", "then ms", "now ms", "times as fast", "drift taken out", ""]
    return table(header, rows)


def _steadied(before: Result, after: Result, name: str, clock: str = "onnxruntime") -> str:
    if name == clock or clock not in before or clock not in after:
        return ""
    then, now = ([a / b for a, b in zip(e[name]["rounds"], e[clock]["rounds"], strict=True)] for e in (before, after))
    return str(ratio_of_medians(then, now))


def limit_text(limits: Result) -> str:
    peaks = {"f32": limits["f32_flops"], "bf16": limits.get("bf16_flops")}
    rates = [f"{rate / 1e9:.0f} GFLOP/s {name}" for name, rate in peaks.items() if rate]
    return ", ".join([*rates, f"{limits['read_nbytes'] / 1e9:.1f} GB/s read"]) + f" by {limits['source']}"


def ms(seconds: float) -> str:
    """Three figures, without an exponent."""
    value = seconds * 1e3
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 5)}f}"


def error(value: float) -> str:
    return f"{value:.1e}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


SUMMARY: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("Median milliseconds", "median_s", ms),
    ("Error against float64", "error", error),
    ("Share of the machine's limit", "share", percent),
)
