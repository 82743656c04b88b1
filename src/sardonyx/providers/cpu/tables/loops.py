"""Fused loops, copies and fills."""

from sardonyx.lower.groups import BitCast, Fill, Group, Loop, RandomStream
from sardonyx.providers.cpu.kernels.loops import copy, fill, interleave, loop, random_stream
from sardonyx.providers.cpu.program.variants import Variant

VARIANTS: dict[type[Group], tuple[Variant, ...]] = {
    BitCast: (Variant("loops.bit_cast", loop.bit_cast_steps),),
    Fill: (Variant("loops.fill", fill.steps),),
    Loop: (
        Variant("loops.interleave", interleave.steps, interleave.supports),
        Variant("loops.copy", copy.steps, copy.supports),
        Variant("loops.loop", loop.fused_steps),
    ),
    RandomStream: (Variant("loops.random_stream", random_stream.steps),),
}
