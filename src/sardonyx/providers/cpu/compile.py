"""From a part to an executable: lower, choose kernels, lay out the step table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from sardonyx import knobs
from sardonyx.lower.analysis.multiples import multiples
from sardonyx.lower.build import Lowered, lower
from sardonyx.lower.sizes import Refused
from sardonyx.lower.states import State
from sardonyx.partition.provider import Executable, Part
from sardonyx.providers.cpu.codegen.jit import linker, statistics
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.machine import object_cache as objects
from sardonyx.providers.cpu.pipeline import dump, steps_for
from sardonyx.providers.cpu.program.analysis import Target
from sardonyx.providers.cpu.program.constants import content, contents
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step, Unrepresentable
from sardonyx.providers.cpu.runtime import team
from sardonyx.providers.cpu.runtime.deferred import DeferredExecutable
from sardonyx.providers.cpu.runtime.executable import CpuExecutable
from sardonyx.providers.cpu.runtime.step_table import StepTable
from sardonyx.providers.cpu.runtime.tier_up import TierUp

if TYPE_CHECKING:
    from sardonyx.providers.cpu.provider import CpuProvider

ROUNDS = 8
"""The most rounds of choosing kernels anew, when constants turn out not to be representable in the chosen layouts."""


ByShape = Callable[[Part, "CpuProvider"], DeferredExecutable]
"""Compiles a part for each set of shapes by itself."""


def compile_part(part: Part, provider: CpuProvider, by_shape: ByShape, states: Sequence[State] = ()) -> CpuExecutable:
    """Compile a part, with these states updated in place.

    Where sizes are assumed to be multiples, or to take one branch of an If, the code for other sizes is compiled when a
    run brings them.
    """
    with provider.timed("compile/lower"):
        even = None if states else _for_multiples(part, provider)
    if even is not None:
        with objects.kept_in(provider.cache):
            return _compiled(part, provider, even, by_shape, otherwise=lambda: compile_uneven(part, provider, by_shape))
    return compile_uneven(part, provider, by_shape, states)


def compile_uneven(part: Part, provider: CpuProvider, by_shape: ByShape, states: Sequence[State] = ()) -> CpuExecutable:
    """Compile a part without assuming that sizes are multiples."""
    with provider.timed("compile/lower"):
        lowered = _lowered(part, provider, states)
    with objects.kept_in(provider.cache):
        return _compiled(part, provider, lowered, by_shape, has_states=bool(states))


def _compiled(
    part: Part,
    provider: CpuProvider,
    lowered: Lowered,
    by_shape: ByShape,
    *,
    has_states: bool = False,
    otherwise: Callable[[], Executable] | None = None,
) -> CpuExecutable:
    target, kept = Target(isa.current(), provider.precision, provider.policy), list[Any]()
    unrepresentable: frozenset[object] = frozenset()
    if (folder := knobs.DUMP.get()) is not None:
        dump(lowered.groups, target, folder)
    baseline = provider.uses_baseline_code
    find = linker.baseline if baseline else linker.address
    has_names = any(not isinstance(d, int) for v in lowered.inputs[: len(part.inputs)] for d in v.shape)
    for _ in range(ROUNDS):
        with provider.timed("compile/steps"):
            steps = steps_for(lowered.groups, target, unrepresentable)
        if knobs.VERIFY.get():
            for step in steps:
                step.verify()
        natives = team.natives(baseline=baseline)
        others: list[Callable[[], Any]] = [*natives, *(partial(content, s) for s in _packed(steps))]
        try:
            with _kernels_timed(provider):
                specs = {step.spec.digest: step.spec for step in steps}.values()
                made = linker.prepare(specs, target.isa, provider.threads, others, baseline=baseline)
                made += [find(spec, target.isa) for spec in specs]
                code = [native() for native in natives]
            with provider.timed("compile/table"):
                table = StepTable(
                    steps, lowered.inputs, lowered.outputs, lowered.checks, target.isa, lowered.counted,
                    baseline=baseline, room=lowered.room,
                )  # fmt: skip
            with provider.timed("compile/constants"):
                constants = contents(table.constants, provider.threads)
            del made  # until here it keeps kernels and what was packed
            tier_up = TierUp([*table.code, *code], provider.threads)
            if not baseline:
                tier_up.finish()  # of native functions there may be another session's baseline code
            return CpuExecutable(
                part, table, constants, lowered.views, provider.settings, provider.threads, provider.max_memory,
                None if has_states else partial(compile_part, part, provider, by_shape), otherwise, provider.arenas,
                partial(by_shape, part, provider) if has_names and not has_states else None, lowered.is_guarded,
                provider.said, tier_up if baseline else None, provider.on_numpy,
            )  # fmt: skip
        except Unrepresentable as first:
            unrepresentable |= {first.identity, *_unrepresentable(_packed(steps), kept)}
    raise AssertionError("constants are refused again and again")


@contextmanager
def _kernels_timed(provider: CpuProvider) -> Iterator[None]:
    """Time the compilation of kernels, and add up what all threads computed for it. Kernels that another session
    compiles at the same time count too."""
    before = [len(found) for found in _computed()]
    try:
        with provider.timed("compile/kernels"):
            yield
    finally:
        for what, found, start in zip(("written", "translated by LLVM"), _computed(), before, strict=True):
            provider.add_seconds(f"compile/kernels/{what}, all threads", sum(found[start:]))


def _computed() -> tuple[list[float], list[float]]:
    return statistics.written, statistics.translated


def _unrepresentable(constants: Sequence[Packed], kept: list[Any]) -> Iterator[object]:
    """The identities of all constants that their layouts cannot represent; ``kept`` holds the others, so that they are
    not packed again."""
    for constant in constants:
        try:
            kept.append(content(constant))
        except Unrepresentable as found:
            yield found.identity


def _packed(steps: Sequence[Step]) -> list[Packed]:
    """The prepacked constants of these steps."""
    found = (arg.storage for step in steps for arg in step.args.values() if isinstance(arg, Ref))
    return list(dict.fromkeys(storage for storage in found if isinstance(storage, Packed)))


def _for_multiples(part: Part, provider: CpuProvider) -> Lowered | None:
    """The part under the assumption that some sizes are multiples; None where no assumption helps."""
    graph = part.nodes[0].graph
    assert graph is not None
    try:
        facts = multiples(part, provider.facts(graph))
        return None if facts is None else lower(part, facts)
    except Refused:
        return None


def _lowered(part: Part, provider: CpuProvider, states: Sequence[State] = ()) -> Lowered:
    graph = part.nodes[0].graph
    assert graph is not None
    try:
        return lower(part, provider.facts(graph), states)
    except Refused:
        return lower(part, states=states)  # another provider may have written values since the graph was looked at
