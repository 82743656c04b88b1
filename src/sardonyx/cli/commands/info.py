"""``sardonyx info``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli.console import facts, nbytes_text, show
from sardonyx.cli.options import AsJson

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.bench.description import Description

EXAMPLES = """
sardonyx info
sardonyx info --no-measure
sardonyx info --json
"""


def command(
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure what the chip and its memory reach.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Tell about this machine and this installation: what to write into a report of a problem."""
    from sardonyx.bench.description import describe

    found = describe(measure=measure)
    show(found, lambda out: _print(out, found), as_json)


def _print(out: Console, found: Description) -> None:
    chip, threads, cache = found.chip, found.threads, found.cache
    out.print(facts(found.versions))
    out.print()
    features = ", ".join(chip.features) or "none that kernels use"
    caches = ", ".join(
        f"{name} {nbytes_text(nbytes)}"
        for name, nbytes in (("L1", chip.l1_nbytes), ("L2", chip.l2_nbytes), ("L3", chip.l3_nbytes))
    )
    about = {
        "system": found.system,
        "chip": chip.name,
        "instructions": features,
        "kernels": f"{chip.kernels}, {chip.vector_bits}-bit vectors, compiled for {chip.llvm_name}"
        + (", emulated" if chip.is_emulated else ""),
        "caches": caches,
        "memory": nbytes_text(found.memory_nbytes) if found.memory_nbytes else "unknown",
        "threads": f"{threads.used} by default: {threads.reason}",
    }
    if found.rates is not None:
        rates = found.rates
        about["products"] = f"{rates.f32_flops / 1e9:.0f} GFLOP/s f32" + (
            f", {rates.bf16_flops / 1e9:.0f} GFLOP/s bf16 tiles" if rates.bf16_flops else ""
        )
        about["bandwidth"] = f"{rates.read_nbytes / 1e9:.1f} GB/s read, {rates.copy_nbytes / 1e9:.1f} GB/s copy"
    out.print(facts(about))
    out.print()
    out.print(facts({"providers": ", ".join(found.providers), **_grouped(found)}))
    out.print()
    out.print(facts({name: version or "not installed" for name, version in found.peers.items()}))
    out.print()
    if cache.folder is None:
        out.print(facts({"cache": cache.why_off}))
    else:
        size = f"{nbytes_text(cache.nbytes)} of at most {nbytes_text(cache.most_nbytes)} in {cache.files} files"
        out.print(facts({"cache": cache.folder, "": size}))
    if found.variables:
        out.print()
        out.print(facts(found.variables))


def _grouped(found: Description) -> dict[str, str]:
    """Providers that this installation lacks in one line, others with their reasons."""
    lacking = [name for name, why in found.unusable.items() if why.startswith("Sardonyx has no provider for")]
    others = {name: why for name, why in found.unusable.items() if name not in lacking}
    short = ", ".join(name.removesuffix("ExecutionProvider") for name in lacking)
    return {**others, "not in this installation": short}
