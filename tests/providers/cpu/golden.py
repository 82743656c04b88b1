"""Digests of the IR that small models are compiled to, on every instruction set: what a refactoring must not change.

    python -m tests.providers.cpu.golden             compare with the golden file, name what differs
    python -m tests.providers.cpu.golden --only conv --only net     models whose name contains one of these
    python -m tests.providers.cpu.golden --update    write it anew

The models are those of ``empty`` (every operator that is compiled, every kernel variant), with sizes named and with
sizes given, random image nets and encoders. A digest covers the kernels of a model's steps, in order, and those that
pack its constants; names of kernels are left out. Cache sizes are fixed, tile instructions are never emulated, and
nothing is compiled or run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from sardonyx.lower.build import lower
from sardonyx.lower.sizes import Refused
from sardonyx.partition.provider import Executable, Part
from sardonyx.providers.cpu import CpuProvider
from sardonyx.providers.cpu.language.dsl import Spec
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.machine.isa import CPUS, Isa
from sardonyx.providers.cpu.pipeline import steps_for
from sardonyx.providers.cpu.program.analysis import Target
from sardonyx.providers.cpu.program.steps import Packed, Ref
from sardonyx.providers.reference import ReferenceProvider
from sardonyx.session.build import build
from sardonyx.session.engine import BuildOptions
from tests.providers.cpu.empty import CASES, Case
from tests.providers.cpu.test_random_nets import random_net
from tests.transformers.models import encoder

FILE = Path(__file__).with_name("golden.json")
CHIPS = ("x86-64", "haswell", "skylake-avx512", "cooperlake", "sapphirerapids", "neoverse-n1")
PRECISIONS = {"sapphirerapids": ("highest", "high", "medium"), "cooperlake": ("highest", "medium")}
NETS = 24
MORE = {
    "strided on tiles": Case(
        "a = Conv(x, w) b = Relu(a) y = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(b, v)",
        "float[n_, 128, 28, 28] x",
        "float[n_, 512, 14, 14] y",
        {"n_": 1},
        {"w": (128, 128, 1, 1), "v": (512, 128, 3, 3)},
    ),
    "linear attention": Case(
        'y, s = LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = "linear">(q, k, v)',
        "float[b_, t_, 32] q, float[b_, t_, 32] k, float[b_, t_, 32] v",
        "float[b_, t_, 32] y, float[b_, 2, 16, 16] s",
        {"b_": 2, "t_": 5},
        opsets='"" : 27',
    ),
    "integer weights of a run": Case(
        "y = ConvInteger(x, w, a)",
        "uint8[n_, 4, 9, 9] x, uint8[6, 4, 3, 3] w, uint8 a",
        "int32[n_, 6, 7, 7] y",
        {"n_": 2},
    ),
}
"""Kernels that those do not reach."""
WIDTHS = (64, 96)
"""Hidden sizes of the encoders."""


class Recorder(CpuProvider):
    """Writes down the kernels of each part, and leaves running it to numpy."""

    def __init__(self, precision: str) -> None:
        super().__init__(threads=2, precision=precision)
        self.found: list[str] = []

    def compile(self, part: Part) -> Executable:
        graph, chip = part.nodes[0].graph, isa.current()
        assert graph is not None
        try:
            steps = steps_for(lower(part, self.facts(graph)).groups, Target(chip, self.precision))
            for step in steps:
                self.found.append(emitted(step.spec, chip))
                packed = (a.storage for a in step.args.values() if isinstance(a, Ref) and isinstance(a.storage, Packed))
                self.found += (emitted(p.packing.spec, chip) for p in packed if p.packing is not None)
        except Refused:
            self.found.append("refused")
        return ReferenceProvider().compile(part)


_emitted: dict[tuple[str, str], str] = {}


def emitted(spec: Spec, chip: Isa) -> str:
    """A digest of a kernel's IR, whatever its name."""
    found = _emitted.get((spec.digest, chip.cpu))
    if found is None:
        text = re.sub(rf"@{re.escape(spec.name)}\b", "@kernel", str(spec.emit(chip).module))
        found = _emitted[spec.digest, chip.cpu] = hashlib.sha256(text.encode()).hexdigest()
    return found


def models() -> Iterator[tuple[str, Callable[[], bytes], dict[str, int]]]:
    """Name, content, and sizes for the names of dimensions."""
    for name, case in {**CASES, **MORE}.items():
        yield name, case.model.SerializeToString, dict(case.sizes)
    for seed in range(NETS):
        yield f"net {seed}", lambda seed=seed: random_net(seed)[0], {}  # type: ignore[misc]
    for hidden in WIDTHS:
        yield f"encoder {hidden}", lambda hidden=hidden: encoder(hidden=hidden).SerializeToString(), {}  # type: ignore[misc]


def digest(model: bytes, sizes: dict[str, int], chip: str) -> str:
    """That of a model on a chip: at every precision, for any sizes and for those given."""
    h = hashlib.sha256()
    with mock.patch.object(isa, "current", lambda: CPUS[chip]):
        for precision in PRECISIONS.get(chip, ("highest",)):
            for given in ({}, sizes) if sizes else ({},):
                recorder = Recorder(precision)
                build(model, BuildOptions(providers=[recorder], free_dims=given))
                h.update(" ".join(recorder.found).encode())
    return h.hexdigest()[:12]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.providers.cpu.golden")
    parser.add_argument("--update", action="store_true", help="write the golden file")
    parser.add_argument("--only", action="append", help="a piece of the names of models to compare")
    options = parser.parse_args()
    chosen = [m for m in models() if not options.only or any(piece in m[0] for piece in options.only)]
    found = {name: {chip: digest(make(), sizes, chip) for chip in CHIPS} for name, make, sizes in chosen}
    if options.update and not options.only:
        FILE.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
        return 0
    wanted = json.loads(FILE.read_text(encoding="utf-8"))
    wrong = [
        f"{name} on {chip}"
        for name in (found if options.only else found | wanted)
        for chip in CHIPS
        if found.get(name, {}).get(chip) != wanted.get(name, {}).get(chip)
    ]
    print("\n".join(wrong) or f"{len(found)} models on {len(CHIPS)} chips: nothing changed")
    return min(1, len(wrong))


if __name__ == "__main__":
    sys.exit(main())
